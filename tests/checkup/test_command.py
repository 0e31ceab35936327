"""``sdort doctor --measure``: really on this processor with small sizes, and on machines made of files."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pytest
from click.testing import CliRunner
from support import machines
from support.json_documents import check_document
from support.nvidia import Card, nvml

from sdort.checkup import command
from sdort.checkup.command import CheckUp, check_up, processor_quota
from sdort.checkup.graphs import DEMO, TRUE_SIZE, UNET, Load
from sdort.checkup.worker import run_component
from sdort.cli import cli
from sdort.doctor.cache_entries import CacheEntry
from sdort.doctor.software import Software
from sdort.errors import ProviderError
from sdort.families.component_names import DECODER
from sdort.machine.gpus import card_state
from sdort.machine.nvml import CardState
from sdort.machine.onnxruntime_copies import Flavour
from sdort.machine.subprocesses import WorkerError
from sdort.machine.system import System

SMALL = [Load(DEMO, UNET, 2, 64, 64), Load(TRUE_SIZE, DECODER, 1, 64, 64)]
ROCM = Software((Flavour("onnxruntime-rocm", "1.22.2.post3"),), None, ("rocm", "cpu"))
CUDA = Software((Flavour("onnxruntime-gpu", "1.31.1"),), None, ("cuda", "cpu"))
RATES = {"bandwidth": 700e9, "peak": 90e12}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "loads", lambda on_gpu, full: SMALL)
    monkeypatch.setattr(command, "_SECONDS", 0.1)


def test_this_processor_is_measured_and_the_file_names_nobody(small: None, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = CliRunner().invoke(cli, ["doctor", "--measure", "--provider", "cpu", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "SD 1.5 decode, 64x64" in done.stdout
    assert "It ends after 10 minutes" in done.stderr
    text = out.read_text()
    found = json.loads(text)
    check_document(found)
    assert [(each["model"], each["component"]) for each in found["figures"]] == [(DEMO, UNET), (TRUE_SIZE, DECODER)]
    for each in found["figures"]:
        assert 0 < each["least_ms"] <= each["median_ms"]
        assert 0 < each["roofline_ms"] < each["expected_ms"]
    private = {os.getcwd(), str(Path.home()), str(tmp_path), sys.prefix, socket.gethostname(), f"/{getpass.getuser()}"}
    assert [word for word in private if len(word) > 3 and word in text] == []
    assert "/" not in text
    assert "\\\\" not in text


def answers(**changes: Any) -> Callable[..., Any]:
    """Workers of a machine without its GPU: what they answer, by function."""
    component = {"opened_s": 1.0, "first_s": 2.0, "times_ms": [30.0, 31.0, 29.0], "processors": 1.0, "fallen": {}}

    def run(function: str, task: Mapping[str, Any], *, timeout: float) -> Any:
        assert timeout > 0
        name = function.rpartition(":")[2]
        answer = changes.get(name, RATES if name == "measure_rates" else {**component, "wrong": ""})
        answer = answer(task) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    return run


Pretend = Callable[..., CheckUp]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pretend:
    """A measurement of a machine made of files, whose processes answer as a test says."""

    def measure(system: System, software: Software, provider: str = "auto", **changes: Any) -> CheckUp:
        monkeypatch.setattr(command, "installed_software", lambda device_id: software)
        monkeypatch.setattr(command, "run_worker", answers(**changes))
        monkeypatch.setattr(command, "_written", lambda *_: tmp_path / "model.onnx")
        monkeypatch.setattr(command, "loads", lambda on_gpu, full: [SMALL[0], Load(TRUE_SIZE, UNET, 2, 64, 64)])
        monkeypatch.setattr(command, "_PERIOD", 0.001)
        monkeypatch.setattr("sdort.runtime.recommendation.System", lambda: system)
        return check_up(system, provider=provider)

    return measure


def codes(found: CheckUp) -> set[str]:
    return {reason.code for reason in found.figures.reasons} - {"operators-not-built", "disturbed", "not-tuned"}


def test_a_radeon(pretend: Pretend, tmp_path: Path) -> None:
    found = pretend(machines.rocm_7(tmp_path), ROCM)
    figures = found.figures
    assert (figures.provider, figures.card, figures.architecture) == ("rocm", "Radeon RX 7900 XTX", "gfx1100")
    assert (figures.memory_gib, figures.driver, figures.toolkit) == (24, "amdgpu 6.14.14", "7.0.2-56")
    assert figures.published_gbs == pytest.approx(960)
    assert figures.published_tflops == pytest.approx(122.88)
    assert (figures.recommended, found.install, found.works) == ("rocm", "", True)
    assert all(each.again_s == 2.0 for each in figures.figures)  # in two processes each
    assert codes(found) == set()


def test_a_slow_radeon_and_why(pretend: Pretend, tmp_path: Path) -> None:
    """Half its power, another ROCm's variables, nodes on the CPU, and kernels that are searched for each time."""
    system = machines.rocm_7(tmp_path)
    hwmon = "sys/class/drm/renderD128/device/hwmon/hwmon3"
    limits = {"power1_cap": "150000000", "power1_cap_default": "355000000", "freq1_input": "600000000"}
    machines.write(tmp_path, {f"{hwmon}/{name}": text for name, text in limits.items()})
    machines.write(tmp_path, {"sys/class/drm/renderD128/device/pp_dpm_sclk": "0: 500Mhz\n1: 2500Mhz *\n"})
    slow = {
        "opened_s": 1,
        "first_s": 90.0,
        "times_ms": [2100.0] * 3,
        "processors": 1,
        "fallen": {"Conv": 9},
        "wrong": "",
    }
    found = pretend(replace(system, environ={**system.environ, "HIP_LAUNCH_BLOCKING": "1"}), ROCM, run_component=slow)
    assert codes(found) == {"nodes-on-cpu", "kernels-not-kept", "power-limit", "low-clock", "slow-setting"}
    assert found.slow
    assert (found.figures.clock_mhz, found.figures.power_limit_w) == (600.0, 150.0)


def test_an_h200(pretend: Pretend, tmp_path: Path) -> None:
    system = machines.nvidia(tmp_path)
    card = Card("NVIDIA H200", (9, 0), total=141 << 30)
    system = System(system.root, system.environ, system.packages, management=nvml(card))
    wrong = {"opened_s": 1, "first_s": 1, "times_ms": [5.0] * 3, "processors": 1, "fallen": {}, "wrong": "is constant"}
    found = pretend(system, CUDA, run_component=wrong)
    assert (found.figures.card, found.figures.driver, found.figures.memory_gib) == ("NVIDIA H200", "580.95.05", 141)
    assert found.figures.published_tflops == pytest.approx(989.4)
    assert (codes(found), found.works) == ({"wrong-output", "slow-products"}, False)


def test_a_gpu_that_nothing_installed_uses(pretend: Pretend, tmp_path: Path) -> None:
    here = Software((Flavour("onnxruntime", "1.31.1"),), None, ("cpu",))
    found = pretend(machines.rocm_7(tmp_path), here)
    assert codes(found) >= {"gpu-idle"}
    assert found.figures.recommended == "migraphx"
    assert "onnxruntime-migraphx" in found.install


def test_another_rocm_than_the_package_needs(pretend: Pretend, tmp_path: Path) -> None:
    refused = replace(ROCM, refusals={"rocm": "libamdhip64.so.7: cannot open shared object file. Install ROCm 7"})
    found = pretend(machines.rocm_6(tmp_path), refused)
    assert (found.figures.provider, codes(found) >= {"gpu-idle", "provider-libraries"}) == ("cpu", True)
    (why,) = (reason.message for reason in found.figures.reasons if reason.code == "provider-libraries")
    assert "ROCm 6.4.1-83" in why
    with pytest.raises(ProviderError, match=r"rocm cannot be measured: libamdhip64"):
        pretend(machines.rocm_6(tmp_path), refused, "rocm")
    with pytest.raises(ProviderError, match="built without CUDAExecutionProvider"):
        pretend(machines.rocm_6(tmp_path), refused, "cuda")


def test_what_is_on_request_alone_is_not_taken_by_auto(pretend: Pretend, tmp_path: Path) -> None:
    here = Software((Flavour("onnxruntime", "1.32.0"),), None, ("openvino", "cpu"))
    assert pretend(machines.processor(tmp_path), here).figures.provider == "cpu"
    assert pretend(machines.processor(tmp_path), here, "openvino").figures.provider == "openvino"


def test_kernels_that_take_all_the_time(pretend: Pretend, tmp_path: Path) -> None:
    def late(task: Mapping[str, Any]) -> Any:
        return TimeoutExpired("python", 1200) if task["load"]["model"] == TRUE_SIZE else ORDINARY

    found = pretend(machines.rocm_7(tmp_path), ROCM, run_component=late)
    assert codes(found) == {"not-ready"}
    assert (found.works, [each.model for each in found.figures.figures]) == (False, [DEMO])


ORDINARY = {"opened_s": 1, "first_s": 1, "times_ms": [5.0] * 3, "processors": 1, "fallen": {}, "wrong": ""}


def test_nothing_ready_in_time_is_told(pretend: Pretend, tmp_path: Path) -> None:
    late = TimeoutExpired("python", 1200)
    with pytest.raises(ProviderError, match=r"measured on rocm: demo's unet was not ready after 0 s; a matrix product"):
        pretend(machines.rocm_7(tmp_path), ROCM, run_component=late, measure_rates=late)


def test_a_provider_on_which_nothing_runs(pretend: Pretend, tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match=r"nothing could be measured on rocm: demo's unet: HSA exception"):
        pretend(machines.rocm_7(tmp_path), ROCM, run_component=WorkerError(-11, "HSA exception"))


def test_what_fits_not_together_is_refused(tmp_path: Path) -> None:
    for words, code in (
        (["--full"], 2),
        (["-o", str(tmp_path / "x.json")], 2),
        (["--measure", "-o", str(tmp_path)], 7),
        (["--measure", "-o", str(tmp_path / "none" / "x.json")], 7),
        (["--measure", "--provider", "rocm"], 6),
    ):
        assert CliRunner().invoke(cli, ["doctor", *words]).exit_code == code, words
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "quota"), [("max 100000", None), ("150000 100000", 1.5), ("", None), ("1 0", None)])
def test_a_containers_limit_of_time(text: str, quota: float | None, tmp_path: Path) -> None:
    system = machines.processor(tmp_path)
    machines.write(tmp_path, {"sys/fs/cgroup/cpu.max": f"{text}\n"})
    assert processor_quota(system) == quota


def test_a_wrong_result_is_seen_by_the_worker(tmp_path: Path) -> None:
    """The demo's decoder against another model's: the same check that an image on a GPU goes through."""
    from sdort.checkup.graphs import optimized
    from sdort.onnx_io.save import save_model

    right = save_model(optimized(DEMO, DECODER, "cpu", half=False, own=False), tmp_path / "right.onnx").path
    other = optimized(DEMO, DECODER, "cpu", half=False, own=False)
    for node in other.graph.nodes:
        if node.op == "Mul":  # one product taken for a sum
            node.op = "Add"
            break
    wrong = save_model(other, tmp_path / "wrong.onnx").path
    load = vars(Load(DEMO, DECODER, 1, 64, 64))
    good = run_component(load, "cpu", 0, str(right), str(right), 0.0)
    bad = run_component(load, "cpu", 0, str(wrong), str(right), 0.0)
    assert (good["wrong"], len(good["times_ms"]), bad["wrong"] != "") == ("", 3, True)


def test_a_cards_state_is_what_its_driver_tells(tmp_path: Path) -> None:
    plain = machines.rocm_7(tmp_path / "amd")
    assert card_state("amd", 0, plain) == CardState()
    assert card_state("amd", 1, plain) is None
    assert card_state("", 0, plain) is None
    assert card_state("nvidia", 0, plain) is None
    told = Card(clock=1200, top_clock=1980, watts=(400.0, 500.0, 700.0), reasons=0x40)
    card = System(tmp_path, {}, tmp_path, management=nvml(told))
    assert card_state("nvidia", 0, card) == CardState(1200, 1980, 400.0, 500.0, 700.0, True)
    silent = System(tmp_path, {}, tmp_path, management=nvml(Card(watts=(None, None, None))))
    assert card_state("nvidia", 0, silent) == CardState()
    assert card_state("nvidia", 3, silent) is None


def test_kept_models_with_a_decoder_in_fp32_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sdort.checkup.graphs import optimized
    from sdort.onnx_io.save import save_model

    kept = []
    for name, provider, half in (("wide", "rocm", False), ("narrow", "rocm", True), ("cpu's", "cpu", False)):
        (tmp_path / name / DECODER).mkdir(parents=True)
        model = optimized(DEMO, DECODER, "cpu", half=half, own=False)
        save_model(model, tmp_path / name / DECODER / "model.onnx")
        kept.append(CacheEntry("models", name, tmp_path / name, 1, 1, checkpoint=name, provider=provider))
    monkeypatch.setattr(command, "models", lambda: kept)
    assert command.wide_decoders() == ["wide"]
