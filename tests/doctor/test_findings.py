"""Each finding of a diagnosis alone: limits of disk and memory, machine code, and whose GPUs are looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pytest
from support import machines
from support.nvidia import Card, nvml

from sdort.doctor import software as softwares
from sdort.doctor import storage
from sdort.doctor.devices import device_findings, gpu_architectures
from sdort.doctor.diagnosis import diagnosis_of
from sdort.doctor.finding import OK, PROBLEM, WARNING, Finding
from sdort.doctor.software import Software, software_findings
from sdort.doctor.storage import cache_findings, memory_finding, operator_findings
from sdort.errors import ProviderError
from sdort.machine.onnxruntime_copies import Flavour
from sdort.machine.subprocesses import WorkerError
from sdort.machine.system import System
from sdort.operator_library.library import CodeObject, Description
from sdort.providers import PROVIDERS

GIB = 1 << 30
LIBRARY = Path("/cache/libsdort_ops.so")


def test_variables_that_take_the_place_of_options_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    software = Software((Flavour("onnxruntime-migraphx", "1.27.1"),), None, ("migraphx", "cpu"))
    assert [each for each in software_findings(software, None) if each.status == WARNING] == []
    monkeypatch.setenv("ORT_MIGRAPHX_FP16_ENABLE", "1")
    monkeypatch.setenv("ORT_MIGRAPHX_DUMP_MODEL_OPS", "1")
    found = [each for each in software_findings(software, None) if each.status == WARNING]
    assert [each.message.partition(",")[0] for each in found] == [
        "ORT_MIGRAPHX_FP16_ENABLE=1 is set and takes the place of the option migraphx_fp16_enable",
        "ORT_MIGRAPHX_DUMP_MODEL_OPS=1 is set and changes what migraphx does",
    ]
    assert found[0].next_step.startswith("unset ORT_MIGRAPHX_FP16_ENABLE")


@pytest.mark.parametrize(
    ("free", "status"),
    [(10 * GIB, OK), (10 * GIB - 1, WARNING), (GIB // 4, WARNING), (GIB // 4 - 1, PROBLEM), (0, PROBLEM)],
)
def test_a_disk_is_small_or_full(free: int, status: str) -> None:
    found = storage._disk(Path("/here"), free)
    assert (found.section, found.check, found.status) == ("caches", "disk", status)
    assert found.message.endswith(" free at /here")
    assert bool(found.next_step) == (status != OK)


@pytest.mark.parametrize(
    ("total", "available", "limit", "message", "status"),
    [
        (8 * GIB, GIB, None, "8.6 GB, 1.1 GB of it free", OK),
        (8 * GIB - 1024, GIB, None, "8.6 GB, 1.1 GB of it free", WARNING),
        (64 * GIB, 32 * GIB, "max", "68.7 GB, 34.4 GB of it free", OK),
        (64 * GIB, 32 * GIB, str(16 * GIB), "17.2 GB, 17.2 GB of it free", OK),
        (64 * GIB, 4 * GIB, str(16 * GIB), "17.2 GB, 4.3 GB of it free", OK),
        (64 * GIB, 32 * GIB, str(100 * GIB), "68.7 GB, 34.4 GB of it free", OK),
        (0, 0, None, "/proc/meminfo does not tell", WARNING),
    ],
)
def test_memory_is_the_containers_where_that_is_less(
    total: int, available: int, limit: str | None, message: str, status: str, tmp_path: Path
) -> None:
    machines.write(
        tmp_path,
        {"proc/meminfo": f"MemTotal: {total // 1024} kB\nMemFree: 1 kB\nMemAvailable: {available // 1024} kB\n"},
    )
    if limit:
        machines.write(tmp_path, {"sys/fs/cgroup/memory.max": limit})
    found = memory_finding(System(tmp_path, {}))
    assert (found.message, found.status, bool(found.next_step)) == (message, status, status != OK)


def described(*codes: tuple[str, str]) -> Description:
    return Description((), tuple(CodeObject(vendor, name, 1) for vendor, name in codes))


@pytest.mark.parametrize(
    ("codes", "gpus", "missing", "option"),
    [
        ([("amd", "gfx1100")], {"amd": ["gfx1100", "gfx1100"]}, "", ""),
        ([("amd", "gfx942:sramecc+")], {"amd": ["gfx942"]}, "", ""),
        ([("amd", "gfx1100")], {"amd": ["gfx1100", "gfx942"]}, "gfx942", " --arch gfx942"),
        ([("amd", "gfx942")], {"amd": ["gfx1100", "gfx1030"]}, "gfx1030", " --arch gfx1030"),
        ([("amd", "gfx1100")], {"amd": [], "nvidia": ["sm_90"]}, "sm_90", ""),
        ([("nvidia", "sm_90")], {"nvidia": ["sm_90"]}, "", ""),
        ([("nvidia", "gfx1100")], {"amd": ["gfx1100"]}, "gfx1100", " --arch gfx1100"),
        ([], {"amd": [], "nvidia": []}, "", ""),
    ],
)
def test_machine_code_is_that_of_the_gpus_vendor(
    codes: list[tuple[str, str]], gpus: dict[str, list[str]], missing: str, option: str
) -> None:
    (found,) = operator_findings(LIBRARY, described(*codes), gpus)
    if missing:
        assert (found.status, found.message) == (WARNING, f"{LIBRARY} has no machine code for {missing}")
        assert found.next_step == f"Build them:\n    sdort ops build --force{option}"
    else:
        assert found.status == OK
        assert found.message.endswith(", ".join(name for _, name in codes) or "no GPU")


def test_a_library_that_is_not_there_or_not_loaded() -> None:
    for library, has in ((None, None), (LIBRARY, None), (None, described())):
        (found,) = operator_findings(library, has, {})
        assert (found.status, found.next_step) == (WARNING, "Build them:\n    sdort ops build")
    (found,) = operator_findings(LIBRARY, ProviderError("changed", hint="Look."), {})
    assert (found.status, found.message, found.next_step) == (WARNING, "changed", "Look.")
    (found,) = operator_findings(LIBRARY, ProviderError("changed"), {})
    assert found.next_step == "Build them:\n    sdort ops build --force"
    (found,) = operator_findings(LIBRARY, described(("nvidia", "sm_90"), ("amd", "gfx1"), ("amd", "gfx0")), {})
    assert found.message == f"{LIBRARY}, for the CPU and gfx0, gfx1, sm_90"


def test_caches_of_sdort_and_of_miopen(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name, size in (("sdort/b", 2000), ("sdort/a", 1000), ("miopen/x", 3000), ("other/y", 4000)):
        machines.write(tmp_path, {f"home/.cache/{name}/file": "x" * size})
    machines.write(tmp_path, {"home/.config/miopen/db/file": "x" * 5000, "home/.config/other/z": "x"})
    found = list(cache_findings(System(tmp_path, {"HOME": str(home)})))
    assert [(each.check, each.message) for each in found[:4]] == [
        ("a", f"1.0 kB in {home}/.cache/sdort/a"),
        ("b", f"2.0 kB in {home}/.cache/sdort/b"),
        ("MIOpen", f"3.0 kB in {home}/.cache/miopen"),
        ("MIOpen", f"5.0 kB in {home}/.config/miopen"),
    ]
    assert [each.check for each in found[4:]] == ["disk"]


SOFTWARE = Software((Flavour("onnxruntime-rocm", "1.22.2"),), None, ("rocm", "cpu"))


def sections(found: list[Finding]) -> set[str]:
    return {each.section for each in found}


@pytest.mark.parametrize(
    ("machine", "listed", "requested", "expected", "warned"),
    [
        (machines.processor, ("cpu",), None, set(), False),
        (machines.processor, ("rocm", "cpu"), None, {"AMD"}, False),
        (machines.processor, ("rocm", "cpu"), "cpu", set(), False),
        (machines.processor, ("cpu",), "cuda", {"NVIDIA"}, False),
        (machines.rocm_7, ("cpu",), None, {"AMD"}, True),
        (machines.rocm_7, ("cpu",), "cpu", {"AMD"}, False),
        (machines.rocm_7, ("migraphx", "cpu"), None, {"AMD"}, False),
        (machines.rocm_7, ("cuda", "cpu"), None, {"AMD", "NVIDIA"}, True),
        (machines.nvidia, ("cpu",), None, {"NVIDIA"}, True),
        (machines.nvidia, ("cpu",), "rocm", {"AMD", "NVIDIA"}, False),
    ],
)
def test_a_vendor_is_looked_at_for_its_gpus_its_driver_or_a_provider(
    machine: Callable[[Path], System], listed: tuple[str, ...], requested: str | None, expected: set[str], warned: bool,
    tmp_path: Path,
) -> None:  # fmt: skip
    found = list(device_findings(machine(tmp_path), replace(SOFTWARE, listed=listed), requested))
    assert sections(found) == expected
    assert any(each.check == "provider" for each in found) is warned


def test_a_broken_onnx_runtime_is_not_said_to_lack_a_provider(tmp_path: Path) -> None:
    broken = Software((), ProviderError("is not installed"))
    found = list(device_findings(machines.rocm_7(tmp_path), broken, None))
    assert "provider" not in {each.check for each in found}
    assert "GPU 0" in {each.check for each in found}


def test_a_driver_alone_is_told(tmp_path: Path) -> None:
    system = machines.processor(tmp_path)
    machines.write(tmp_path, {"sys/module/nvidia/version": "580.1"})
    found = list(device_findings(system, replace(SOFTWARE, listed=("cpu",)), None))
    assert [(each.section, each.check, each.message) for each in found] == [("NVIDIA", "driver", "580.1")]


def test_gpus_are_numbered_and_told_by_vendor(tmp_path: Path) -> None:
    system = machines.rocm_7(tmp_path)
    second = {"sys/class/kfd/kfd/topology/nodes/2/properties": "gfx_target_version 90402\n"}
    machines.write(tmp_path, second)
    system = replace(system, management=nvml(Card("A", (9, 0)), Card("B", (8, 9))))
    assert gpu_architectures(system) == {"amd": ["gfx1100", "gfx942"], "nvidia": ["sm_90", "sm_89"]}
    found = diagnosis_of(system, SOFTWARE, None)
    assert [(each.section, each.check) for each in found.findings if each.check.startswith("GPU")] == [
        ("AMD", "GPU 0"), ("AMD", "GPU 1"), ("NVIDIA", "GPU 0"), ("NVIDIA", "GPU 1"),
    ]  # fmt: skip
    assert [gpu.vendor for gpu in found.gpus] == ["amd", "amd", "nvidia", "nvidia"]
    system = replace(system, management=None)
    machines.write(tmp_path, {"proc/driver/nvidia/gpus/0/information": "Model: A\n"})
    assert gpu_architectures(system)["nvidia"] == []


@pytest.mark.parametrize(
    ("listed", "refused", "works"),
    [
        (("rocm", "cpu"), (), {None: True, "rocm": True, "cpu": True, "cuda": False}),
        (("rocm", "cpu"), ("rocm",), {None: True, "rocm": False, "cpu": True, "cuda": False}),
        (("rocm",), ("rocm",), {None: False, "rocm": False}),
        ((), (), {None: False, "cpu": False}),
    ],
)
def test_a_provider_works_that_is_listed_and_not_refused(
    listed: tuple[str, ...], refused: tuple[str, ...], works: dict[str | None, bool]
) -> None:
    software = replace(SOFTWARE, listed=listed, refusals=dict.fromkeys(refused, "x"))
    assert {name: software.works(name) for name in works} == works
    told = diagnosis_of(System(Path("/none"), {"HOME": "/none"}), software).providers
    assert {name for name, each in told.items() if each.listed} == set(listed)
    assert {name: each.reason for name, each in told.items() if each.reason} == dict.fromkeys(refused, "x")
    assert list(told) == list(PROVIDERS)


def test_software_is_told_in_the_order_of_the_providers() -> None:
    software = replace(SOFTWARE, listed=("cpu", "rocm"), refusals={"rocm": "no device. Join the group"})
    found = {each.check: each for each in software_findings(software, "cuda")}
    assert list(found) == ["Python", "sdort", "ONNX Runtime", "rocm", "cuda", "cpu"]
    assert (found["rocm"].status, found["rocm"].next_step) == (PROBLEM, "Join the group")
    assert found["rocm"].message == "ROCMExecutionProvider is listed and does not load: no device"
    assert found["cuda"].message == "onnxruntime-rocm was built without CUDAExecutionProvider"
    assert found["cuda"].next_step == f"Install the distribution that has it:\n{PROVIDERS['cuda'].install}"
    assert (found["cpu"].status, found["cpu"].message) == (OK, "CPUExecutionProvider is listed and loads")
    assert "cuda" not in {each.check for each in software_findings(software, None)}


def test_every_listed_provider_is_loaded_on_the_gpu_that_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def worker(function: str, task: dict[str, Any], *, timeout: float) -> Any:
        asked.append((function, task, timeout))
        if task["name"] == "migraphx":
            raise TimeoutExpired("x", timeout)
        if task["name"] == "cuda":
            raise WorkerError(-11, "a crash")
        return "no device" if task["device_id"] == 2 else None

    monkeypatch.setattr(softwares, "run_worker", worker)
    monkeypatch.setattr(softwares, "flavour", lambda: None)
    monkeypatch.setattr(softwares, "installed_flavours", lambda: [Flavour("onnxruntime", "1.31")])
    monkeypatch.setattr(softwares, "is_there", lambda provider, libraries: True)
    monkeypatch.setattr(
        softwares, "installed_library", lambda provider: tmp_path / provider.name if provider.library else None
    )
    found = softwares.installed_software(2)
    assert found.listed == tuple(PROVIDERS)
    assert found.refusals == {
        **dict.fromkeys(set(PROVIDERS) - {"cpu"}, "no device"),
        "rocm": "no device",
        "migraphx": "it did not load within 300 s. Look for messages of the GPU's driver in dmesg",
        "cuda": "loading it ended the process with code -11, which said: a crash",
        "dml": "no device",
    }
    assert found.libraries == {name: tmp_path / name for name in ("rocm", "migraphx", "cuda")}
    assert {task["device_id"] for _, task, _ in asked} == {2}
    assert [task["name"] for _, task, _ in asked] == [name for name in PROVIDERS if name != "cpu"]
    assert softwares.installed_software(0).refusals.keys() == {"migraphx", "cuda"}


@pytest.mark.parametrize(
    ("imported", "status"),
    [("1.22.2", "ok"), ("1.22.2.post3", "ok"), ("", "ok"), ("1.27.0", "problem"), ("1.22.20", "problem")],
)
def test_code_of_another_distribution_over_the_installed_one_is_a_problem(imported: str, status: str) -> None:
    software = softwares.Software((Flavour("onnxruntime-rocm", "1.22.2.post3"),), imported=imported)
    [finding] = [each for each in softwares.software_findings(software, None) if each.check == "ONNX Runtime"]
    assert finding.status == status
    assert (f"what Python imports is {imported}" in finding.message) is (status == "problem")
    assert ("--force-reinstall --no-deps onnxruntime-rocm==1.22.2.post3" in finding.next_step) is (status == "problem")


@pytest.mark.parametrize(("wrong", "status"), [(False, OK), (True, WARNING)])
def test_kernels_that_were_tried_are_told(wrong: bool, status: str) -> None:
    software = replace(SOFTWARE, kernels={"rocm": softwares.TriedKernels("10 of 12 operators are right", wrong)})
    found = {each.check: each for each in software_findings(software, None)}["rocm kernels"]
    assert (found.status, found.message) == (status, "10 of 12 operators are right")
    assert found.next_step == ("sdort optimize leaves what is wrong in standard operators." if wrong else "")


def test_kernels_are_tried_in_a_process_that_they_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def worker(function: str, task: dict[str, Any], *, timeout: float) -> Any:
        assert function == "sdort.doctor.software:try_kernels"
        if task["name"] == "cuda":
            raise WorkerError(-11, "a crash")
        return None if task["name"] == "dml" else {"told": "all are right", "wrong": False}

    monkeypatch.setattr(softwares, "run_worker", worker)
    assert softwares.tried_kernels("rocm") == softwares.TriedKernels("all are right", False)
    assert [softwares.tried_kernels(name) for name in ("cpu", "cuda", "dml")] == [None, None, None]
