"""Why a provider is refused: each question at a machine of files, and what a probe hands on to whom."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import machines

from sdort.errors import ProviderError
from sdort.machine.system import System
from sdort.providers import CPU, PROVIDERS
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.provider import Provider
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import availability, environment, placement, probe
from sdort.runtime.availability import (
    Problem,
    amd_device,
    amd_permission,
    architecture_problem,
    find_problems,
    libraries,
    nvidia_device,
    nvidia_driver_age,
    wanted_libraries,
)
from sdort.runtime.opener import NotLoadedError

LIBRARY = Path("/site/lib.so")

# Devices


@pytest.mark.parametrize(
    ("gone", "there", "message"),
    [
        ((), (), None),
        (("dev/kfd",), (), "the amdgpu driver is loaded but there is no /dev/kfd"),
        (("dev/kfd", "sys/module/amdgpu/version", "sys/module/amdgpu"), (), "there is no /dev/kfd: no AMD GPU"),
        (("dev/kfd",), ("dev/dxg",), None),
        (("dev/dri/renderD128",), (), "there is no /dev/dri/renderD*"),
        (("dev/dri/renderD128",), ("dev/dri/renderD129",), None),
        (("dev/dri/renderD128",), ("dev/dri/card0",), "there is no /dev/dri/renderD*"),
        (("sys/class/kfd/kfd/topology/nodes/1/properties",), (), "the amdgpu driver knows no GPU that can compute"),
    ],
)  # fmt: skip
def test_what_amds_devices_lack(
    gone: tuple[str, ...], there: tuple[str, ...], message: str | None, tmp_path: Path
) -> None:
    system = machines.rocm_7(tmp_path)
    for name in gone:
        (tmp_path / name).rmdir() if (tmp_path / name).is_dir() else (tmp_path / name).unlink()
    machines.write(tmp_path, dict.fromkeys(there, ""))
    found = amd_device(system)
    assert (found and found.check, found and found.message.startswith(str(message))) == (
        ("device", True) if message else (None, None)
    )


def test_each_file_that_is_closed_is_named_and_what_is_absent_is_not(tmp_path: Path) -> None:
    system = machines.rocm_7(tmp_path)
    machines.write(tmp_path, {"dev/dri/renderD129": ""})
    for closed, named in (
        ((), None), (("kfd",), "/dev/kfd"), (("renderD129",), "/dev/dri/renderD129"),
        (("kfd", "renderD128", "renderD129"), "/dev/kfd, /dev/dri/renderD128, /dev/dri/renderD129"),
    ):  # fmt: skip
        asked: list[int] = []

        def access(path: Path, mode: int, closed: Any = closed, asked: Any = asked) -> bool:
            asked.append(mode)
            return path.name not in closed

        found = amd_permission(replace(system, access=access))
        assert (found.message if found else None) == (f"this user may not open {named}" if named else None)
        assert set(asked) == {os.R_OK | os.W_OK}
    (tmp_path / "dev/kfd").unlink()
    assert "/dev/kfd" not in str(amd_permission(replace(system, access=lambda *_: False)))


@pytest.mark.parametrize(
    ("gone", "there", "message"),
    [
        ((), (), None), (("dev/nvidia0",), (), "the NVIDIA driver is loaded but there is no /dev/nvidia0"),
        (("dev/nvidia0", "proc/driver/nvidia/version"), (), "there is no /dev/nvidia0: no NVIDIA GPU"),
        (("dev/nvidia0",), ("dev/dxg",), None), (("dev/nvidia0",), ("dev/nvidia3",), None),
        (("dev/nvidia0",), ("dev/nvidia-uvm",), "the NVIDIA driver is loaded"),
    ],
)  # fmt: skip
def test_what_nvidias_devices_lack(
    gone: tuple[str, ...], there: tuple[str, ...], message: str | None, tmp_path: Path
) -> None:
    system = machines.nvidia(tmp_path)
    for name in gone:
        (tmp_path / name).unlink()
    machines.write(tmp_path, dict.fromkeys(there, ""))
    found = nvidia_device(system)
    assert (found.message.startswith(message) if found and message else found) == (True if message else None)
    assert found is None or "--gpus all" in found.next_step


@pytest.mark.parametrize(
    ("runtime", "driver", "oldest"),
    [
        ("libcudart.so.12", "524.99", 525), ("libcudart.so.12", "525.0", None), ("libcudart.so.13", "579.1", 580),
        ("libcudart.so.13", "580", None), ("libcudart.so.11.0", "400.1", None), ("libcublas.so.12", "400.1", None),
        ("libcudart.so.13", "", None),
    ],
)  # fmt: skip
def test_a_driver_is_as_old_as_the_cuda_that_the_library_needs_allows(
    runtime: str, driver: str, oldest: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "needed", lambda path: ["libc.so.6", runtime])
    monkeypatch.setattr(availability, "nvidia_driver", lambda system: driver or None)
    found = nvidia_driver_age(CUDA, System(tmp_path, {}), LIBRARY)
    if oldest is None:
        assert found is None
    else:
        assert found is not None
        major = runtime.rpartition(".")[2]
        assert found.message == f"the NVIDIA driver {driver} is too old for CUDA {major}"
        assert f"Install driver {oldest} or newer" in found.next_step


# Libraries


def test_libraries_are_those_that_the_installed_provider_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the vendor's alone, in the versions that it names, and what it opens later."""
    monkeypatch.setattr(availability, "needed", lambda path: ["libc.so.6", "libcudart.so.12", "libcublas.so.12"])
    assert wanted_libraries(CUDA, LIBRARY) == ["libcudart.so.12", "libcublas.so.12", "libcudnn.so.9"]
    monkeypatch.setattr(availability, "needed", lambda path: ["libcudnn.so.9", "libcudart.so.12"])
    assert wanted_libraries(CUDA, LIBRARY) == ["libcudnn.so.9", "libcudart.so.12"]
    assert wanted_libraries(CUDA, None) == list(CUDA.libraries)
    for error in (OSError, ValueError):

        def fail(path: Path, error: Any = error) -> list[str]:
            raise error

        monkeypatch.setattr(availability, "needed", fail)
        assert wanted_libraries(CUDA, LIBRARY) == list(CUDA.libraries)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (("libamdhip64.so.7",), None), (("libcudart.so.13",), None),  # packages of Python's count
        (("libmine.so.1",), "a shared library is not found: libmine.so.1 (?)"),
        (("libamdhip64.so.9", "libMIOpen.so.1"), "this machine has ROCm 7.0.2-56 (libamdhip64.so.7), and ROCm 9 is "
         "needed; a shared library is not found: libamdhip64.so.9 (hip-runtime-amd)"),
        (("libhipblas.so.9", "libroctracer64.so.5"),
         "shared libraries are not found: libhipblas.so.9 (hipblas), libroctracer64.so.5 (roctracer)"),
        (("libcudart.so.11",), "this machine has CUDA 13 (libcudart.so.13), and CUDA 11 is needed; a shared library is "
         "not found: libcudart.so.11 (?)"),
        (("libcudnn.so.8", "libcudart.so.13"), "this machine has cuDNN 9 (libcudnn.so.9), and cuDNN 8 is needed; a "
         "shared library is not found: libcudnn.so.8 (?)"),
    ],
)  # fmt: skip
def test_libraries_that_are_not_found_are_told_with_what_is_there_instead(
    wanted: tuple[str, ...], told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.nvidia(tmp_path)
    system = machines.rocm_7(tmp_path)
    monkeypatch.setattr(availability, "wanted_libraries", lambda provider, library: [*wanted])
    found = libraries(ROCM, system, LIBRARY)
    assert (found.message if found else None) == told
    assert found is None or (found.check, found.next_step) == ("libraries", ROCM.needs)


def test_a_library_where_the_linker_does_not_look_is_pointed_at_among_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = machines.amd(tmp_path)
    machines.write(tmp_path, {"usr/local/cuda-13/lib64/libsecond.so.1": ""})
    monkeypatch.setattr(availability, "wanted_libraries", lambda *_: ["libfirst.so.1", "libsecond.so.1"])
    found = libraries(ROCM, system, None)
    assert found is not None
    assert "LD_LIBRARY_PATH=/usr/local/cuda-13/lib64" in found.next_step
    assert "libfirst.so.1 (?), libsecond.so.1 (?)" in found.message


# Machine code


def architecture(system: System, device: int = 0, library: Path | None = None) -> str | None:
    found = architecture_problem(ROCM, system, library, device)
    return found.message.split(" for ")[1].partition(",")[0] if found else None


def test_machine_code_is_looked_for_of_the_gpu_that_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = machines.rocm_7(tmp_path, 90006)
    node = "sys/class/kfd/kfd/topology/nodes"
    machines.write(tmp_path, {f"{node}/2/properties": "gfx_target_version 110000\n"})
    machines.write(tmp_path, {f"{node}/3/properties": "gfx_target_version 100301\n"})
    assert [architecture(system, device) for device in range(4)] == ["gfx906", None, "gfx1031", None]
    assert architecture_problem(MIGRAPHX, system, None) is None
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
        # Which one is used is not known then: any of them.
        assert architecture(replace(system, environ={name: "1"})) is None
        assert architecture(replace(system, environ={name: ""})) == "gfx906"
    assert architecture(replace(system, environ={"OTHER_VISIBLE_DEVICES": "1"})) == "gfx906"
    assert architecture(replace(system, environ={"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}), 2) is None
    codes: list[set[str]] = [{"gfx906", "gfx90a"}]
    monkeypatch.setattr(availability, "code_objects", lambda path: codes[0])
    assert [architecture(system, device, LIBRARY) for device in (0, 2)] == [None, "gfx1031"]
    found = architecture_problem(ROCM, system, LIBRARY, 2)
    assert found is not None
    assert found.message.endswith("it has it for gfx906, gfx90a")
    assert "HSA_OVERRIDE" not in found.next_step  # this build has not the code of its relative either
    codes[0] = set()
    assert architecture(system, 0, LIBRARY) == "gfx906"

    def fail(path: Path) -> set[str]:
        raise OSError

    monkeypatch.setattr(availability, "code_objects", fail)
    assert [architecture(system, device, LIBRARY) for device in (0, 1)] == ["gfx906", None]


@pytest.mark.parametrize(
    ("gfx", "relative", "value"),
    [
        *((name, "gfx1030", "10.3.0") for name in ("gfx1031", "gfx1032", "gfx1034", "gfx1035", "gfx1036")),
        *((name, "gfx1100", "11.0.0") for name in ("gfx1101", "gfx1102", "gfx1103")), ("gfx1033", "", ""),
        ("gfx1150", "", ""), ("gfx900", "", ""),
    ],
)  # fmt: skip
def test_each_gpu_that_runs_the_code_of_a_relative_is_told_how(
    gfx: str, relative: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "amd_gpus", lambda system: [SimpleNamespace(architecture=gfx, name="A card")])
    monkeypatch.setattr(availability, "_compiling", lambda provider: "Compile.")
    provider: Any = SimpleNamespace(architectures=frozenset({"gfx90a", "gfx1030", "gfx1100"}), name="rocm")
    found = architecture_problem(provider, System(Path("/none"), {}), None)
    assert found is not None
    assert found.message == f"rocm has no machine code for {gfx}, A card; it has it for gfx90a, gfx1030, gfx1100"
    hint = f"export HSA_OVERRIDE_GFX_VERSION={value} lets the GPU run the code for {relative}, which often works"
    assert found.next_step == (f"{hint} and which AMD does not support. Else: Compile." if relative else "Compile.")


@pytest.mark.parametrize("vendor", ["amd", "nvidia", ""])
def test_problems_of_a_vendor_are_the_most_basic_first(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    names = ("amd_device", "amd_permission", "nvidia_device", "nvidia_driver_age", "libraries", "architecture_problem")
    for name in names:

        def ask(*given: Any, name: str = name) -> Problem | None:
            asked[name] = given
            return None if name.endswith("permission") else Problem(name, "", "")

        monkeypatch.setattr(availability, name, ask)
    provider: Any = SimpleNamespace(vendor=vendor)
    system: Any = "system"
    found = [problem.check for problem in find_problems(provider, system, LIBRARY, 3)]
    own = {"amd": ["amd_device"], "nvidia": ["nvidia_device", "nvidia_driver_age"], "": []}[vendor]
    assert found == [*own, "libraries", "architecture_problem"]
    assert asked["libraries"] == (provider, "system", LIBRARY)
    assert asked["architecture_problem"] == (provider, "system", LIBRARY, 3)
    assert vendor != "nvidia" or asked["nvidia_driver_age"] == (provider, "system", LIBRARY)


# Probes


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Probes a GPU's provider; what it does comes in order."""
    probe._why_not.cache_clear()
    order: Any = []

    def install(
        name: str = "rocm", *, listed: bool = True, foreign: Problem | None = None, error: str | None = None
    ) -> Any:
        runtime = SimpleNamespace(get_available_providers=lambda: [PROVIDERS[name].ep] if listed else [])
        monkeypatch.setattr(probe, "import_onnxruntime", lambda: runtime)
        monkeypatch.setattr(probe, "flavour", lambda: SimpleNamespace(distribution="ort", version="9.9"))
        monkeypatch.setattr(probe, "System", lambda: "system")
        monkeypatch.setattr(probe, "installed_library", lambda provider: Path("/lib"))
        monkeypatch.setattr(
            probe, "architecture_problem", lambda *given: order.append(("architecture", *given[1:])) or foreign
        )
        monkeypatch.setattr(probe, "_preload", lambda module, provider: order.append("preload"))
        monkeypatch.setattr(
            probe, "_session_error", lambda provider, device: order.append(("session", provider.name, device)) or error
        )
        monkeypatch.setattr(probe, "find_problems", lambda *given: order.append(("problems", *given[1:])) or ["p"])
        monkeypatch.setattr(probe, "explain_refusal", lambda provider, reason, problems: f"{reason} {problems}")
        return order

    yield install
    probe._why_not.cache_clear()  # what was found here is true of no other test


def test_a_probe_is_of_the_gpu_that_is_asked_for_and_done_once(probed: Callable[..., Any]) -> None:
    order = probed(error="it fails")
    options = RuntimeOptions("rocm", device_id=2)
    assert [probe.why_not(ROCM, options) for _ in range(2)] == ["it fails ['p']"] * 2
    looked: list[Any] = [("architecture", "system", Path("/lib"), 2), "preload", ("session", "rocm", 2)]
    assert order == [*looked, ("problems", "system", Path("/lib"), 2)]
    del order[:]
    assert probe.why_not(ROCM, replace(options, device_id=1)) == "it fails ['p']"
    assert order[0] == ("architecture", "system", Path("/lib"), 1)
    del order[:]
    assert probe.why_not(CPU, options) is None
    assert order == []
    probed("cuda")
    assert probe.why_not(CUDA, options) is None
    assert order[1:] == ["preload", ("session", "cuda", 2)]


def test_nothing_is_loaded_that_could_not_work(probed: Callable[..., Any]) -> None:
    order = probed(foreign=Problem("architecture", "no code", "Build it."))
    assert probe.why_not(ROCM, RuntimeOptions()) == "no code. Build it."
    assert [step[0] for step in order] == ["architecture"]
    del order[:]
    probed("cuda", listed=False)
    reason = probe.why_not(CUDA, RuntimeOptions())
    assert reason == (
        "ort 9.9 was built without CUDAExecutionProvider. Install the distribution that has it:\n" + CUDA.install
    )
    assert order == []


@pytest.mark.parametrize("provider", [ROCM, MIGRAPHX, CPU], ids=lambda each: each.name)
@pytest.mark.parametrize("linker", [None, "the linker's words"])
def test_a_session_is_run_where_a_kernel_would_tell(
    provider: Provider, linker: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Exception] = []
    runs: list[Any] = []
    made: list[Any] = []

    def create(model: bytes, given: Provider, options: RuntimeOptions) -> Any:
        made.append((given, options.provider, options.device_id))
        return SimpleNamespace(run=run)

    def run(outputs: Any, feeds: Any) -> None:
        runs.append((outputs, {name: (value.tolist(), value.dtype.name) for name, value in feeds.items()}))
        if raised:
            raise raised[0]

    monkeypatch.setattr(probe, "create_session", create)
    monkeypatch.setattr(probe, "library_error", lambda given: linker if given is provider else "another")
    assert probe._session_error(provider, 3) is None
    assert made == [(provider, provider.name, 3)]
    assert runs == ([(None, {"x": ([1.0], "float32")})] if provider.device else [])
    for error, reason in (
        (NotLoadedError(provider, "it says"), "it says"),
        (RuntimeError("HIP error 7"), "HIP error 7"),
    ):

        def fail(*_: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(probe, "create_session", fail)
        assert probe._session_error(provider, 0) == (linker or reason)
    monkeypatch.setattr(probe, "create_session", create)
    raised.append(ImportError("numpy is broken"))
    if provider.device:
        with pytest.raises(ImportError):
            probe._session_error(provider, 0)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("broken", [None, "libonnxruntime_providers_shared.so", "libonnxruntime_providers_rocm.so"])
def test_the_linker_is_asked_for_the_providers_library(
    shared: bool, broken: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[str, int]] = []

    def load(path: str, mode: int = ctypes.DEFAULT_MODE) -> None:
        loaded.append((Path(path).name, mode))
        if Path(path).name == broken:
            raise OSError(f"{broken}: libhip.so.7 is missing")

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(probe, "_library_folder", lambda: tmp_path)
    if shared:
        (tmp_path / "libonnxruntime_providers_shared.so").touch()
    reason = probe.library_error(ROCM)
    fails = broken is not None and (shared or "shared" not in broken)
    assert reason == (f"{broken}: libhip.so.7 is missing" if fails else None)
    steps = [("libonnxruntime_providers_shared.so", ctypes.RTLD_GLOBAL)] * shared
    rest = [("libonnxruntime_providers_rocm.so", ctypes.DEFAULT_MODE)]
    assert loaded == steps + ([] if fails and "shared" in str(broken) else rest)
    del loaded[:]
    assert probe.library_error(CPU) is None
    assert loaded == []
    assert probe.installed_library(ROCM) is None
    (tmp_path / "libonnxruntime_providers_rocm.so").touch()
    assert probe.installed_library(ROCM) == tmp_path / "libonnxruntime_providers_rocm.so"
    assert probe.installed_library(CPU) is None


def test_packages_of_cuda_are_loaded_in_silence_where_there_are_such(capsys: pytest.CaptureFixture[str]) -> None:
    calls: Any = []

    def preload_dlls(directory: str = "packages") -> None:
        calls.append(directory)
        print("noise")  # noqa: T201
        # Another thread's line, such as the JSON of an error: it loads while sdort run goes on.
        sys.stdout.write("a result\n")

    for provider in (ROCM, CUDA, CPU):
        probe._preload(SimpleNamespace(preload_dlls=preload_dlls), provider)
    assert calls == ["packages"]
    probe._preload(SimpleNamespace(), CUDA)
    assert capsys.readouterr().out == "a result\n"


@pytest.mark.parametrize("fallback", [None, True, False])
@pytest.mark.parametrize("asked", [{}, {"graph": True}, {"provider_options": {"a": "1"}}])
def test_the_cpu_stands_in_only_where_it_may_and_can(
    fallback: bool | None, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(probe, "check_options", lambda provider, options: checked.append(provider.name))
    monkeypatch.setattr(probe, "why_not", lambda provider, options: "it does not load")
    options = RuntimeOptions("cuda", fallback=fallback, **asked)
    if fallback and not asked:
        assert probe.choose_provider(options) == (CPU, "cuda cannot be used: it does not load")
        assert checked == ["cuda", "cpu"]
        return
    with pytest.raises(ProviderError, match=r"^cuda cannot be used: it does not load") as caught:
        probe.choose_provider(options, hint="our hint")
    told = "Without --graph and --provider-option it would run on the CPU." if fallback else "our hint"
    assert caught.value.hint == told
    monkeypatch.setattr(probe, "why_not", lambda provider, options: None)
    assert probe.choose_provider(options) == (CUDA, None)


# What tools and files tell


@pytest.mark.parametrize(
    ("vendor", "driver", "number", "name"),
    [
        ("nvidia", "580", 1, "b, driver 580"), ("nvidia", None, 1, "b"), ("nvidia", "580", 2, None),
        ("amd", "580", 0, "a"), ("amd", "580", 2, None),
    ],
)  # fmt: skip
def test_a_gpu_is_named_with_nvidias_driver(
    vendor: str, driver: str | None, number: int, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "gpus_of", lambda asked, system: ["a", "b"] if asked == vendor else [])
    monkeypatch.setattr(environment, "nvidia_driver", lambda system: driver)
    provider: Any = SimpleNamespace(vendor=vendor)
    assert environment._gpu_name(provider, number) == name


@pytest.mark.parametrize("fails", [False, True])
def test_a_log_is_what_was_written_to_the_descriptor_meanwhile(fails: bool, capfd: pytest.CaptureFixture[str]) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))

    def call() -> int:
        os.write(2, b"of C++ \xff\n")
        sys.stderr.write("of Python\n")
        if fails:
            raise KeyError
        return 7

    sys.stderr.write("before\n")
    if fails:
        with pytest.raises(KeyError):
            placement.run_logged(call)
    else:
        result, log = placement.run_logged(call)
        assert result == 7
        assert "of C++ \N{REPLACEMENT CHARACTER}\n" in log
        assert "before" not in log
    os.write(2, b"after\n")
    assert "after" in capfd.readouterr().err
    assert len(os.listdir("/proc/self/fd")) == descriptors
