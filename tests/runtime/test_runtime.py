"""ONNX Runtime behind sdort: which distribution, which provider, what a session says and refuses."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support import runtime_copies

from sdort import console
from sdort.errors import BadModelError, ProviderError, UsageError
from sdort.families.denoiser_arguments import timestep_shape
from sdort.generation.files.image_files import output_paths
from sdort.generation.pictures.images import constant_problem, to_image
from sdort.generation.schedules.schedulers import load_scheduler
from sdort.machine import distributions as flavours
from sdort.machine.onnxruntime_copies import Flavour
from sdort.machine.system import System
from sdort.onnx_io.model_hash import hash_model
from sdort.providers import CPU, PROVIDERS
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import provider_options, tuning_remark
from sdort.runtime import opener, placement, probe
from sdort.runtime.environment import versions
from sdort.runtime.failures import load_error, reason_of, run_error
from sdort.runtime.placement import parse_placement, refuse_fallback, run_logged
from sdort.runtime.session import Session, open_session
from sdort.samplers.scheduler_names import SAMPLERS, find_scheduler

ROOT = Path(__file__).parents[2]

SAMPLE = """
<ir_version: 8, opset_import: ["": 17]>
unet (float16[batch,4,height,width] sample, int64 timestep) => (float16[batch,4,height,width] out_sample) {
  as_half = Cast <to = 10> (timestep)
  out_sample = Mul (sample, as_half)
}"""


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str], Path]:
    """Saves a model written in ONNX's text syntax."""

    def write(text: str) -> Path:
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        return path

    return write


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Pretends that these distributions, and no others, are installed."""
    flavours.import_onnxruntime.cache_clear()

    def pretend(**versions: str) -> None:
        runtime_copies.pretend(monkeypatch, {name.replace("_", "-"): version for name, version in versions.items()})

    yield pretend
    flavours.import_onnxruntime.cache_clear()


def on_cpu(path: Path, component: str = "unet") -> Session:
    return open_session(path, component, CPU, RuntimeOptions("cpu"))


# Which distribution


def test_one_distribution_is_what_there_should_be(installed: Callable[..., None]) -> None:
    installed(onnxruntime_rocm="1.22.2.post3")
    assert flavours.flavour() == Flavour("onnxruntime-rocm", "1.22.2.post3")


def test_no_distribution_is_an_error_with_the_commands_that_install_one(installed: Callable[..., None]) -> None:
    installed()
    with pytest.raises(ProviderError, match="is not installed") as caught:
        flavours.import_onnxruntime()
    assert caught.value.exit_code == 6
    for name in ("rocm", "migraphx", "cuda", "cpu"):
        assert f"pip install {shlex.quote(flavours.REQUIREMENTS[name])}" in str(caught.value)


def test_a_distribution_takes_the_place_of_the_one_that_is_there(installed: Callable[..., None]) -> None:
    installed(onnxruntime="1.31.1")
    remove, add = flavours.install_commands("onnxruntime-rocm==1.22.2.post3").split("\n")
    assert remove.endswith("-m pip uninstall -y onnxruntime")
    assert add.endswith("-m pip install onnxruntime-rocm==1.22.2.post3")
    assert remove.startswith("    ")
    assert add.startswith("    ")
    assert flavours.install_commands("onnxruntime>=1.40").endswith("-m pip install -U 'onnxruntime>=1.40'")
    assert flavours.install_commands("matplotlib>=3.8").endswith("-m pip install 'matplotlib>=3.8'")


def test_an_environment_of_uv_has_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert flavours.pip("uninstall", "-y", "x") == f"    uv pip uninstall --python {sys.executable} x"
    assert flavours.pip("install", "x") == f"    uv pip install --python {sys.executable} x"


def test_hints_name_what_pyproject_asks_for_and_no_package_that_is_on_no_index() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    for name, requirement in flavours.REQUIREMENTS.items():
        assert re.search(rf'^{name} = \["{re.escape(requirement)}"\]', project, re.MULTILINE), name
    for path in (ROOT / "sdort").rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"sdort\[[\w{]", text), path
        named = re.findall(r"pip install [-\w ]*'?([\w-]+)", text)
        assert all(name in project for name in named), (path, named)


def test_two_distributions_are_an_error_with_the_command_that_removes_both(installed: Callable[..., None]) -> None:
    installed(onnxruntime="1.31.1", onnxruntime_rocm="1.22.2")
    with pytest.raises(ProviderError, match="2 distributions") as caught:
        flavours.import_onnxruntime()
    assert "pip uninstall -y onnxruntime onnxruntime-rocm" in str(caught.value)


def test_a_distribution_that_does_not_import_is_an_error(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(onnxruntime_gpu="1.31.1")
    # What is left of the package when the other of two distributions was uninstalled.
    monkeypatch.delattr(onnxruntime, "InferenceSession")
    with pytest.raises(ProviderError, match="does not import") as caught:
        flavours.import_onnxruntime()
    assert "--force-reinstall --no-deps onnxruntime-gpu==1.31.1" in str(caught.value)


def test_versions_name_the_installed_distribution(installed: Callable[..., None]) -> None:
    versions.cache_clear()
    installed(onnxruntime_migraphx="1.27.1")
    try:
        assert versions()["onnxruntime-migraphx"] == "1.27.1"
        assert "onnxruntime" not in versions()
    finally:
        versions.cache_clear()


# Provider options


def test_rocm_always_uses_tunable_op_and_says_why() -> None:
    plain = provider_options(ROCM, RuntimeOptions("rocm"))
    assert plain == {"device_id": "0", "tunable_op_enable": "1", "arena_extend_strategy": "kSameAsRequested"}
    remark = tuning_remark(ROCM, RuntimeOptions("rocm"))
    assert remark is not None
    assert "attention" in remark


def test_tuning_on_rocm_searches_kernels_and_convolutions() -> None:
    options = provider_options(ROCM, RuntimeOptions("rocm", tuning=True, tuning_ms=250, device_id=1))
    assert options == {
        "device_id": "1",
        "tunable_op_enable": "1",
        "arena_extend_strategy": "kSameAsRequested",
        "tunable_op_tuning_enable": "1",
        "tunable_op_max_tuning_duration_ms": "250",
        "miopen_conv_exhaustive_search": "1",
        "miopen_conv_use_max_workspace": "1",
    }


def test_tuning_on_migraphx_is_exhaustive() -> None:
    assert provider_options(MIGRAPHX, RuntimeOptions(tuning=True))["migraphx_exhaustive_tune"] == "1"
    assert "migraphx_exhaustive_tune" not in provider_options(MIGRAPHX, RuntimeOptions())


@pytest.mark.parametrize("provider", [CPU, CUDA], ids=lambda provider: provider.name)
def test_tuning_without_anything_to_tune_has_no_effect_and_says_so(provider: Any) -> None:
    tuned, plain = RuntimeOptions(tuning=True, custom_ops="off"), RuntimeOptions()
    assert provider_options(provider, tuned) == provider_options(provider, plain)
    assert "no effect" in (tuning_remark(provider, tuned) or "")
    assert tuning_remark(provider, plain) is None


def test_tuning_on_cuda_is_for_sdorts_own_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sdort.providers.session_settings.resolve", lambda setting: tmp_path)
    assert "sdort's own kernels" in (tuning_remark(CUDA, RuntimeOptions(tuning=True)) or "")
    assert "no effect" in (tuning_remark(CPU, RuntimeOptions(tuning=True)) or "")


@pytest.mark.parametrize(("provider", "option"), [(ROCM, "enable_hip_graph"), (CUDA, "enable_cuda_graph")])
def test_graphs_are_an_option_of_the_provider(provider: Any, option: str) -> None:
    assert provider_options(provider, RuntimeOptions(graph=True))[option] == "1"
    assert option not in provider_options(provider, RuntimeOptions())


@pytest.mark.parametrize("provider", [CPU, MIGRAPHX], ids=lambda provider: provider.name)
def test_graphs_are_refused_where_there_are_none(provider: Any) -> None:
    with pytest.raises(UsageError, match=f"--graph is not possible on {provider.name}"):
        provider_options(provider, RuntimeOptions(graph=True))


def test_options_of_a_provider_are_passed_on_and_replace_ours() -> None:
    asked = RuntimeOptions(
        tuning=True, provider_options={"gpu_mem_limit": "1000", "miopen_conv_exhaustive_search": "0"}
    )
    options = provider_options(ROCM, asked)
    assert (options["gpu_mem_limit"], options["miopen_conv_exhaustive_search"]) == ("1000", "0")
    assert options["tunable_op_enable"] == "1"


REFUSED = [
    (ROCM, "cudnn_conv_algo_search", "EXHAUSTIVE", "ROCMExecutionProvider of ONNX Runtime 1.22 has no option"),
    (MIGRAPHX, "tunable_op_enable", "1", "MIGraphXExecutionProvider of ONNX Runtime 1.27 has no option"),
    (CPU, "device_id", "0", "has no option 'device_id'"),
    (CUDA, "sdpa_kernel", "flash", "the value is a whole number"),
    (CUDA, "use_tf32", "2", "the value is 0 or 1"),
    (CUDA, "use_tf32", "0\n", "the value is 0 or 1"),
    (CUDA, "cudnn_conv_algo_search", "exhaustive", "one of EXHAUSTIVE, HEURISTIC, DEFAULT"),
    (CUDA, "device_id", "1", "Use --device-id"),
    (CUDA, "enable_cuda_graph", "1", "Use --graph"),
    (ROCM, "user_compute_stream", "1", "an address"),
]


@pytest.mark.parametrize(("provider", "name", "value", "message"), REFUSED, ids=lambda each: getattr(each, "name", ""))
def test_an_option_that_a_provider_does_not_take_is_refused(provider: Any, name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        provider_options(provider, RuntimeOptions(provider_options={name: value}))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("version", "release", "known"),
    [("1.22.0", "1.22", False), ("1.23.2", "1.31", True), ("1.31.1", "1.31", True), ("1.40.0", "1.31", True)],
)
def test_options_are_those_of_the_installed_release(version: str, release: str, known: bool) -> None:
    assert CUDA.known_options(version)[0] == release
    assert ("enable_cudnn" in CUDA.known_options(version)[1]) is known


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=lambda provider: provider.name)
def test_what_we_set_ourselves_is_known_and_valid(provider: Any) -> None:
    everything = RuntimeOptions(tuning=True, graph=bool(provider.graph), device_id=3)
    for release in provider.releases:
        _, known = provider.known_options(release)
        for name, value in provider_options(provider, everything).items():
            assert re.fullmatch(known[name].values, value), name
        for name, option in known.items():
            assert re.fullmatch(option.values, option.default), name


# Which provider really loads


class FakeRuntime:
    """``onnxruntime`` with a provider that it lists, and whose sessions run elsewhere."""

    def __init__(
        self, listed: list[str], usable: list[str], printed: str = "", raises: str = "", fails: str = ""
    ) -> None:
        self.listed, self.usable, self.printed, self.raises, self.fails = listed, usable, printed, raises, fails
        self.asked: list[Any] = []
        self.severity = 2
        self.falls_back_in_a_run = True
        self.__file__ = onnxruntime.__file__
        self.SessionOptions = onnxruntime.SessionOptions

    def get_available_providers(self) -> list[str]:
        return self.listed

    def set_default_logger_severity(self, level: int) -> None:
        self.severity = level

    def InferenceSession(self, model: Any, options: Any, providers: list[Any], **_: Any) -> FakeRuntime:
        self.asked = providers
        if self.raises:
            raise RuntimeError(self.raises)
        if self.printed:
            print(self.printed)  # noqa: T201 - ONNX Runtime 1.22 does
        return self

    def get_providers(self) -> list[str]:
        return self.usable

    def run(self, outputs: Any, feeds: Any) -> None:
        if self.fails:
            raise RuntimeError(self.fails)

    def disable_fallback(self) -> None:
        self.falls_back_in_a_run = False


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeRuntime]:
    """Puts a :class:`FakeRuntime` in the place of ONNX Runtime while providers are probed."""

    def install(*listed: str, usable: tuple[str, ...] = ("cpu",), **more: Any) -> FakeRuntime:
        fake = FakeRuntime([PROVIDERS[n].ep for n in listed], [PROVIDERS[n].ep for n in usable], **more)
        monkeypatch.setattr(probe, "import_onnxruntime", lambda: fake)
        monkeypatch.setattr(opener, "import_onnxruntime", lambda: fake)
        probe._why_not.cache_clear()
        return fake

    return install


@pytest.fixture(autouse=True)
def _forget_probes() -> Any:
    yield
    probe._why_not.cache_clear()


def test_a_provider_that_was_not_built_in_names_the_package_that_has_it() -> None:
    reason = probe.why_not(ROCM, RuntimeOptions())
    assert reason is not None
    assert "built without ROCMExecutionProvider" in reason
    assert reason.endswith(flavours.install_commands(flavours.REQUIREMENTS["rocm"]))


def test_a_listed_provider_that_does_not_load_is_found_by_its_session(
    runtime: Callable[..., FakeRuntime], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime("rocm", "cpu", usable=("cpu",))

    def load(path: str, mode: int = 0) -> None:
        if "rocm" in path:
            raise OSError("libhipblas.so.3: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(ctypes, "CDLL", load)
    provider, reason = probe.choose_provider(RuntimeOptions("rocm", fallback=True))
    assert provider is CPU
    assert reason is not None
    assert "libhipblas.so.3" in reason
    assert "ROCm 7" in reason
    assert capsys.readouterr().out == ""


def test_a_provider_without_code_for_the_gpu_is_not_even_loaded(
    runtime: Callable[..., FakeRuntime], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = runtime("rocm", "cpu", usable=("rocm", "cpu"))
    properties = tmp_path / "sys/class/kfd/kfd/topology/nodes/1/properties"
    properties.parent.mkdir(parents=True)
    properties.write_text("simd_count 80\ngfx_target_version 110501\n")
    monkeypatch.setattr(probe, "System", lambda: System(tmp_path, {}))
    assert "no machine code for gfx1151" in (probe.why_not(ROCM, RuntimeOptions()) or "")
    assert fake.asked == []


@pytest.mark.parametrize("provider", [ROCM, CUDA], ids=lambda provider: provider.name)
def test_a_provider_whose_first_kernel_fails_does_not_work(
    provider: Any, runtime: Callable[..., FakeRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: None)
    failure = "no kernel image is available for execution on the device"
    runtime(provider.name, "cpu", usable=(provider.name, "cpu"), fails=failure)
    assert (probe.why_not(provider, RuntimeOptions()) or "").startswith(failure)


def test_a_missing_cudnn_is_named(
    runtime: Callable[..., FakeRuntime], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime("cuda", "cpu", raises="cuDNN is unavailable for CUDA Execution Provider: dlopen failed")
    monkeypatch.setattr(probe, "System", lambda: System(tmp_path, {}, tmp_path))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: None)
    assert "libcudnn.so.9 (nvidia-cudnn-cu13)" in (probe.why_not(CUDA, RuntimeOptions()) or "")


def test_what_onnxruntime_prints_before_it_falls_back_is_the_reason(
    runtime: Callable[..., FakeRuntime], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime(
        "cuda", "cpu", printed="**** EP Error ****\nEP Error CUDA failure 100: no device ; when using []\nFalling back"
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: None)
    reason = probe.why_not(CUDA, RuntimeOptions())
    assert (reason or "").startswith("CUDA failure 100: no device")
    assert capsys.readouterr().out == ""


def test_an_exception_of_a_provider_is_the_reason(
    runtime: Callable[..., FakeRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime("cuda", "cpu", raises="CUDA failure 35: driver too old\nstack")
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: None)
    reason = probe.why_not(CUDA, RuntimeOptions())
    assert (reason or "").startswith("CUDA failure 35: driver too old")
    assert "libcublas" not in (reason or "")  # the linker had nothing to say


@pytest.mark.parametrize("fallback", [None, False])
def test_a_named_provider_that_does_not_load_is_an_error(
    fallback: bool | None, runtime: Callable[..., FakeRuntime]
) -> None:
    runtime("migraphx", "cpu", usable=("cpu",))
    with pytest.raises(ProviderError, match="migraphx cannot be used") as caught:
        probe.choose_provider(RuntimeOptions("migraphx", fallback=fallback))
    assert caught.value.exit_code == 6


def test_graphs_on_a_provider_that_does_not_load_are_an_error_with_the_reason(
    runtime: Callable[..., FakeRuntime],
) -> None:
    runtime("cuda", "cpu", usable=("cpu",))
    with pytest.raises(ProviderError, match="cuda cannot be used") as caught:
        probe.choose_provider(RuntimeOptions("cuda", graph=True, fallback=True))
    assert "Without --graph" in str(caught.value)


def test_graphs_are_refused_before_anything_is_loaded(runtime: Callable[..., FakeRuntime]) -> None:
    fake = runtime("migraphx", "cpu", usable=("migraphx", "cpu"))
    with pytest.raises(UsageError, match="--graph"):
        probe.choose_provider(RuntimeOptions("cpu", graph=True))
    assert fake.asked == []


def test_a_provider_that_loads_is_used_with_its_options(runtime: Callable[..., FakeRuntime]) -> None:
    fake = runtime("rocm", "cpu", usable=("rocm", "cpu"))
    assert probe.choose_provider(RuntimeOptions("rocm", fallback=False)) == (ROCM, None)
    assert fake.asked == [
        ("ROCMExecutionProvider", provider_options(ROCM, RuntimeOptions("rocm"))),
        "CPUExecutionProvider",
    ]


def test_an_unknown_option_is_refused_before_anything_is_loaded(runtime: Callable[..., FakeRuntime]) -> None:
    fake = runtime("cuda", "cpu", usable=("cuda", "cpu"))
    with pytest.raises(UsageError, match="no option 'nonsense'"):
        probe.choose_provider(RuntimeOptions("cuda", provider_options={"nonsense": "1"}))
    assert fake.asked == []


def test_a_session_that_fell_back_is_an_error_with_what_onnxruntime_printed(
    runtime: Callable[..., FakeRuntime],
) -> None:
    runtime("rocm", "cpu", usable=("cpu",), printed="EP Error HIP failure 101: invalid device")
    with pytest.raises(ProviderError, match="rocm does not load: HIP failure 101"):
        opener.create_session(b"", ROCM, RuntimeOptions())


def test_a_session_never_falls_back_in_the_middle_of_a_run(runtime: Callable[..., FakeRuntime]) -> None:
    fake = runtime("rocm", "cpu", usable=("rocm", "cpu"))
    opener.create_session(b"", ROCM, RuntimeOptions())
    assert not fake.falls_back_in_a_run


@pytest.mark.parametrize(("verbosity", "severity"), [(console.QUIET, 4), (console.NORMAL, 4), (console.VERBOSE, 3)])
def test_the_runtime_logs_warnings_under_verbose_only(
    verbosity: int, severity: int, runtime: Callable[..., FakeRuntime]
) -> None:
    fake = runtime("cpu")
    console.set_verbosity(verbosity)
    try:
        opener.create_session(b"", CPU, RuntimeOptions())
    finally:
        console.set_verbosity(console.NORMAL)
    assert fake.severity == severity


def test_auto_takes_the_first_that_loads(runtime: Callable[..., FakeRuntime]) -> None:
    runtime("cuda", "migraphx", "cpu", usable=("migraphx", "cuda", "cpu"))
    assert probe.choose_provider(RuntimeOptions("auto")) == (MIGRAPHX, None)


def test_auto_says_what_it_passed_over(runtime: Callable[..., FakeRuntime]) -> None:
    runtime("rocm", "cpu", usable=("cpu",))
    provider, reason = probe.choose_provider(RuntimeOptions("auto"))
    assert provider is CPU
    assert "rocm cannot be used" in (reason or "")
    with pytest.raises(ProviderError, match="rocm cannot be used"):
        probe.choose_provider(RuntimeOptions("auto", fallback=False))


def test_auto_on_a_cpu_build_has_nothing_to_excuse() -> None:
    assert probe.choose_provider(RuntimeOptions("auto", fallback=False)) == (CPU, None)


def test_an_unknown_provider_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'tpu'") as caught:
        probe.choose_provider(RuntimeOptions("tpu"))
    assert "migraphx" in str(caught.value)


# Placement

MIXED = """
2026-01-01 [V:onnxruntime:, session_state.cc:1578 VerifyEachNodeIsAssignedToAnEp] Node placements
2026-01-01 [V:onnxruntime:, session_state.cc:1 VerifyEachNodeIsAssignedToAnEp]  Node(s) placed on [ROCMExecutionProvider]. Number of nodes: 2
2026-01-01 [V:onnxruntime:, session_state.cc:1 VerifyEachNodeIsAssignedToAnEp]   NhwcConv (/conv_in/Conv)
2026-01-01 [V:onnxruntime:, session_state.cc:1 VerifyEachNodeIsAssignedToAnEp]   MemcpyFromHost (Memcpy)
2026-01-01 [V:onnxruntime:, session_state.cc:1 VerifyEachNodeIsAssignedToAnEp]  Node(s) placed on [CPUExecutionProvider]. Number of nodes: 3
2026-01-01 [V:onnxruntime:, session_state.cc:1 VerifyEachNodeIsAssignedToAnEp]   Gather (/Gather)
2026-01-01 [V:onnxruntime:, session_state.cc:1 VerifyEachNodeIsAssignedToAnEp]   {op} (/mid/one)
2026-01-01 [V:onnxruntime:, session_state.cc:1 VerifyEachNodeIsAssignedToAnEp]   {op} (/mid/two)
2026-01-01 [V:onnxruntime:, session_state.cc:193 CreateGraphInfo] SaveMLValueNameIndexMapping
"""  # noqa: E501 - as ONNX Runtime writes it


def test_placement_is_read_from_the_log() -> None:
    assert parse_placement(MIXED.format(op="Einsum")) == {
        "ROCMExecutionProvider": {"NhwcConv": 1, "MemcpyFromHost": 1},
        "CPUExecutionProvider": {"Gather": 1, "Einsum": 2},
    }


def test_shape_arithmetic_may_stay_on_the_cpu() -> None:
    refuse_fallback(MIXED.format(op="Shape"), ROCM, "unet")


def test_any_other_operator_on_the_cpu_is_a_fallback() -> None:
    with pytest.raises(ProviderError, match="2 Einsum would run on the CPU, not on rocm"):
        refuse_fallback(MIXED.format(op="Einsum"), ROCM, "unet")


def test_the_real_log_of_this_onnxruntime_is_understood(save: Callable[[str], Path]) -> None:
    path = save(SAMPLE)
    _, log = run_logged(lambda: opener.create_session(str(path), CPU, RuntimeOptions(), severity=0))
    placed = parse_placement(log)
    assert list(placed) == ["CPUExecutionProvider"]
    assert placed["CPUExecutionProvider"][""] > 0
    with pytest.raises(ProviderError, match=r"all \d+ nodes would run on the CPU"):
        refuse_fallback(log, ROCM, "unet")


def test_the_log_is_kept_off_the_terminal(save: Callable[[str], Path], capfd: pytest.CaptureFixture[str]) -> None:
    path = save(SAMPLE)
    placement.run_logged(lambda: opener.create_session(str(path), CPU, RuntimeOptions(), severity=0))
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_session_that_logged_its_placement_is_quiet_when_it_runs(
    save: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    path = save(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[n] x) => (float[2,m] y) { shape = Constant <value_ints = [2, -1]> ()
          y = Reshape (x, shape) }"""
    )
    ort, _ = run_logged(lambda: opener.create_session(str(path), CPU, RuntimeOptions(), severity=0))
    session = Session(ort, path, "unet", CPU, RuntimeOptions())
    # Three elements do not make two rows: the kernel fails, which ONNX Runtime logs and raises.
    three = np.zeros(3, np.float32)
    for call in (
        lambda: session.run({"x": three}),
        lambda: session.run({"x": session.upload(three)}),
        session.bind({"x": three}).run,
    ):
        with pytest.raises(ProviderError, match="Reshape"):
            call()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


# Sessions


def test_inputs_get_the_dtypes_that_the_model_declares(save: Callable[[str], Path]) -> None:
    session = on_cpu(save(SAMPLE))
    sample = np.arange(1 * 4 * 2 * 3, dtype=np.float64).reshape(1, 4, 2, 3)
    outputs = session.run({"sample": sample, "timestep": np.array(2.0, np.float32), "unused": sample})
    assert outputs["out_sample"].dtype == np.float16
    np.testing.assert_array_equal(outputs["out_sample"], 2 * sample)


def test_uploaded_inputs_and_bound_runs_give_the_same(save: Callable[[str], Path]) -> None:
    session = on_cpu(save(SAMPLE))
    sample = np.linspace(-1, 1, 24, dtype=np.float16).reshape(1, 4, 2, 3)
    timestep = np.array(3)
    plain = session.run({"sample": sample, "timestep": timestep})["out_sample"]
    kept = session.run({"sample": session.upload(sample), "timestep": timestep})["out_sample"]
    binding = session.bind({"sample": sample, "timestep": timestep})
    binding.run()
    np.testing.assert_array_equal(plain, 3 * sample)
    np.testing.assert_array_equal(kept, plain)
    np.testing.assert_array_equal(binding.outputs()["out_sample"], plain)


def test_a_missing_input_is_named(save: Callable[[str], Path]) -> None:
    with pytest.raises(BadModelError, match="timestep"):
        on_cpu(save(SAMPLE)).run({"sample": np.zeros((1, 4, 2, 2))})


def test_a_wrong_shape_is_a_sentence(save: Callable[[str], Path]) -> None:
    with pytest.raises(BadModelError, match="does not take this input"):
        on_cpu(save(SAMPLE)).run({"sample": np.zeros((1, 3, 2, 2)), "timestep": np.array(1)})


def test_a_model_made_for_another_provider_is_a_provider_error(save: Callable[[str], Path]) -> None:
    path = save(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        unet (float16[1,2,2,32] x) => (float16[1,2,2,32] y) <float[32] gamma = {GAMMA}, float[32] beta = {GAMMA}> {
          y = com.microsoft.GroupNorm <activation = 1, groups = 32> (x, gamma, beta)
        }""".replace("GAMMA", ", ".join(["1.0"] * 32))
    )
    with pytest.raises(ProviderError, match="GroupNorm") as caught:
        on_cpu(path)
    assert "sdort optimize ORIGINAL OUT --provider cpu" in str(caught.value)


def test_an_opset_from_the_future_is_not_called_a_broken_model(save: Callable[[str], Path]) -> None:
    error = RuntimeError("ONNX Runtime only *guarantees* support for opset versions ... Opset 99 is under development")
    found = load_error(error, save(SAMPLE), "unet", ROCM)
    assert isinstance(found, ProviderError)
    assert "sdort optimize ORIGINAL OUT --provider rocm" in str(found)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "/ort/core/cuda_execution_provider_info.cc:63 static onnxruntime::Info onnxruntime::Info::From(const "
            "onnxruntime::Options&) [ONNXRuntimeError] : 1 : FAIL : provider_options_utils.h:187 Parse Failed to parse "
            'provider option "device_id": CUDA failure 100: no CUDA-capable device is detected ; GPU=-1 ; hostname=vm',
            "CUDA failure 100: no CUDA-capable device is detected",
        ),
        (
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Failed to find kernel for X(1)\nstack",
            "Failed to find kernel for X(1)",
        ),
        ("a sentence of its own", "a sentence of its own"),
        ("", "no reason given"),
    ],
    ids=["a device", "a class and number", "plain", "empty"],
)
def test_the_reason_is_said_without_files_and_numbers_of_onnxruntime(said: str, reason: str) -> None:
    assert reason_of(RuntimeError(said)) == reason


def test_external_data_outside_the_folder_is_refused_before_onnxruntime_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdort.runtime.session.create_session", None)
    (tmp_path / "secret").write_bytes(b"\0" * 4096)
    folder = tmp_path / "unet"
    folder.mkdir()
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1024] x) => (float[1024] y) { y = Add (x, w) }'
    )
    weight = onnx.TensorProto(name="w", data_type=1, dims=[1024], data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="../secret")
    model.graph.initializer.append(weight)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BadModelError, match="w"):
        on_cpu(folder / "model.onnx")


def test_running_out_of_memory_says_what_to_do() -> None:
    error = run_error(RuntimeError("[ONNXRuntimeError] : Failed to allocate memory for requested buffer"), "unet", ROCM)
    assert isinstance(error, ProviderError)
    assert "ran out of memory" in str(error)
    assert "fewer images" in str(error)


@pytest.mark.parametrize(
    ("timestep", "shape"), [("float", ()), ("float[1]", (1,)), ("float[steps]", (1,)), ("float[batch]", (6,))]
)
def test_timesteps_take_the_shape_that_the_model_declares(
    timestep: str, shape: tuple[int, ...], save: Callable[[str], Path]
) -> None:
    text = SAMPLE.replace("float16", "float").replace("int64", timestep).replace("<to = 10>", "<to = 1>")
    text = text.replace("Mul (sample, as_half)", "Identity (sample)")
    assert timestep_shape(on_cpu(save(text)).inputs, 6) == shape


# Schedulers


@pytest.mark.parametrize(
    ("name", "class_name"),
    [
        ("DDIM", "DDIMScheduler"),
        ("pndm", "PNDMScheduler"),
        ("LMS", "LMSDiscreteScheduler"),
        ("Euler", "EulerDiscreteScheduler"),
        ("Euler a", "EulerAncestralDiscreteScheduler"),
        ("DPM++ 2M", "DPMSolverMultistepScheduler"),
        ("dpm++_2m", "DPMSolverMultistepScheduler"),
        ("DPMSolverMultistepScheduler", "DPMSolverMultistepScheduler"),
        ("UniPC", "UniPCMultistepScheduler"),
        ("lcm", "LCMScheduler"),
    ],
)
def test_schedulers_have_the_names_that_people_use(name: str, class_name: str) -> None:
    assert find_scheduler(name)[0] == class_name


def test_an_unknown_scheduler_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'dppm'") as caught:
        find_scheduler("dppm")
    assert all(name in str(caught.value) for name in SAMPLERS)


def test_every_scheduler_is_one_of_diffusers() -> None:
    import diffusers

    for name in SAMPLERS:
        assert hasattr(diffusers, find_scheduler(name)[0]), name


def test_a_scheduler_config_cannot_name_any_class(tmp_path: Path) -> None:
    (tmp_path / "scheduler_config.json").write_text('{"_class_name": "DiffusionPipeline"}')
    with pytest.raises(BadModelError, match="'DiffusionPipeline'"):
        load_scheduler(tmp_path, None)


def test_karras_is_more_than_a_name(tmp_path: Path) -> None:
    (tmp_path / "scheduler_config.json").write_text('{"_class_name": "PNDMScheduler", "steps_offset": 1}')
    assert load_scheduler(tmp_path, "dpm++-2m-karras").config.use_karras_sigmas
    assert not load_scheduler(tmp_path, "dpm++-2m").config.use_karras_sigmas


def test_a_scheduler_without_its_packages_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import diffusers

    class StandIn:
        @staticmethod
        def from_config(config: Any) -> None:
            raise ImportError(
                "\nLMSDiscreteScheduler requires the scipy library but it was not found in your environment."
            )

    monkeypatch.setattr(diffusers, "LMSDiscreteScheduler", StandIn)
    (tmp_path / "scheduler_config.json").write_text('{"_class_name": "PNDMScheduler"}')
    with pytest.raises(UsageError, match="LMSDiscreteScheduler needs scipy") as caught:
        load_scheduler(tmp_path, "lms")
    assert "pip install scipy" in str(caught.value)


# Folders, devices, images


def test_hashes_tell_models_apart_by_graph_and_by_data(tmp_path: Path) -> None:
    model, data = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    model.write_bytes(b"graph")
    data.write_bytes(bytes(10 << 20))
    first = hash_model(model)
    assert hash_model(model) == first
    data.write_bytes(b"\1" * (10 << 20))
    second = hash_model(model)
    model.write_bytes(b"grape")
    assert len({first, second, hash_model(model)}) == 3


@pytest.mark.parametrize(("low", "high", "problem"), [(0, 0, "black"), (0, 2, "black"), (119, 120, "same value")])
def test_an_image_of_one_colour_is_a_problem(low: int, high: int, problem: str) -> None:
    pixels = np.full((8, 8, 3), low, np.uint8)
    pixels[3, 3, 1] = high
    assert problem in (constant_problem(pixels) or "")
    pixels[3, 3, 1] = high + 40
    assert constant_problem(pixels) is None


def test_one_nan_pixel_is_a_problem() -> None:
    decoded = np.linspace(-1, 1, 3 * 16, dtype=np.float32).reshape(3, 4, 4)
    assert to_image(decoded, 1).problem is None
    decoded[1, 2, 3] = np.nan
    assert "NaN" in (to_image(decoded, 1).problem or "")


def test_pixels_are_rounded_and_clamped() -> None:
    decoded = np.array([-3, -1, 0.0, 0.5, 1, 3], np.float32).reshape(1, 1, 6).repeat(3, axis=0)
    # (x / 2 + 0.5) * 255, to nearest: 127.5 to even, 191.25 down.
    assert to_image(decoded, 0).pixels[0, :, 0].tolist() == [0, 0, 128, 191, 255, 255]


def test_several_images_are_numbered_and_defaults_avoid_what_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [path.name for path in output_paths(tmp_path / "a.png", 1, 3, overwrite=False)]
    assert names == ["a-1.png", "a-2.png", "a-3.png"]
    monkeypatch.chdir(tmp_path)
    assert output_paths(None, 7, 1, overwrite=False) == [Path("sdort-7.png")]
    Path("sdort-7.png").touch()
    assert output_paths(None, 7, 1, overwrite=False) == [Path("sdort-7-run2.png")]
