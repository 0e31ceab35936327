"""``sdort doctor``: on machines made of files (machines.py), and on this one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support import machines, runtime_copies

import sdort
from sdort.cli import cli
from sdort.doctor.diagnosis import Diagnosis, diagnosis_of
from sdort.doctor.finding import OK, PROBLEM, WARNING, Finding
from sdort.doctor.software import Software, installed_software, refusal
from sdort.machine import distributions as flavours
from sdort.machine.onnxruntime_copies import Flavour, find_copies
from sdort.machine.system import System
from sdort.operator_library.library import CodeObject, Description, built_library

ROCM_WHEEL = (Flavour("onnxruntime-rocm", "1.22.2.post3"),)
CUDA_WHEEL = (Flavour("onnxruntime-gpu", "1.31.1"),)
CPU_WHEEL = (Flavour("onnxruntime", "1.31.1"),)
NO_LIBRARY = "libamdhip64.so.7: cannot open shared object file. Install ROCm 7"


def bad(found: Diagnosis) -> dict[str, Finding]:
    """What is not well, by check, but for the custom operators, which no machine here has."""
    return {each.check: each for each in found.findings if each.status != OK and each.check != "custom operators"}


def fact(found: Diagnosis, check: str) -> str:
    (message,) = (each.message for each in found.findings if each.check == check)
    return message


def rocm(refused: str | None = None) -> Software:
    return Software(ROCM_WHEEL, None, ("rocm", "cpu"), {"rocm": refused} if refused else {})


# Machines


def test_a_healthy_rx_7900_on_rocm_7(tmp_path: Path) -> None:
    system = machines.rocm_7(tmp_path)
    folder = tmp_path / "opt/rocm-7.0.2/lib"
    (folder / "libMIOpen.so.1").rename(folder / "libMIOpen.so.1.0.70002")
    (folder / "libMIOpen.so.1").symlink_to("libMIOpen.so.1.0.70002")
    found = diagnosis_of(system, rocm(), "rocm")
    assert (found.works, bad(found)) == (True, {})
    assert fact(found, "GPU 0") == "Radeon RX 7900 XTX (gfx1100, 24 GiB)"
    assert fact(found, "ROCm") == "7.0.2-56"
    assert fact(found, "MIOpen") == "1.0.70002, /opt/rocm-7.0.2/lib/libMIOpen.so.1"
    assert fact(found, "HIP") == "7, /opt/rocm-7.0.2/lib/libamdhip64.so.7"
    assert fact(found, "driver") == "amdgpu 6.14.14"
    assert fact(found, "ONNX Runtime") == "onnxruntime-rocm 1.22.2.post3"
    assert fact(found, "RAM") == "67.1 GB, 49.2 GB of it free"
    found = diagnosis_of(system, rocm())
    assert (found.works, bad(found)) == (True, {})


def test_rocm_6_only(tmp_path: Path) -> None:
    found = diagnosis_of(machines.rocm_6(tmp_path), rocm(NO_LIBRARY), "rocm")
    assert not found.works
    assert bad(found).keys() == {"rocm", "libraries"}
    assert bad(found)["rocm"].message.endswith("does not load: libamdhip64.so.7: cannot open shared object file")
    assert bad(found)["rocm"].next_step == "Install ROCm 7"
    assert "ROCm 6.4.1-83" in bad(found)["libraries"].message
    # The CPU would be used instead, which is not what was asked for.
    assert diagnosis_of(machines.rocm_6(tmp_path), rocm(NO_LIBRARY)).works


def test_no_render_group(tmp_path: Path) -> None:
    found = diagnosis_of(machines.closed(machines.rocm_7(tmp_path)), rocm("HIP failure 100: no device. x"), "rocm")
    assert bad(found).keys() == {"rocm", "permission"}
    assert "usermod -aG render" in bad(found)["permission"].next_step


def test_no_device(tmp_path: Path) -> None:
    system = machines.processor(tmp_path)
    machines.link(tmp_path, "opt/rocm/lib", machines.ROCM_7)
    found = diagnosis_of(system, rocm("HIP failure 100: no device. x"), "rocm")
    assert bad(found).keys() == {"rocm", "device"}
    assert found.gpus == []


def test_a_gpu_without_code_objects(tmp_path: Path) -> None:
    found = diagnosis_of(machines.rocm_7(tmp_path, 110002, "Radeon RX 7600"), rocm("no machine code. x"), "rocm")
    assert bad(found).keys() == {"rocm", "architecture"}
    assert "gfx1102, Radeon RX 7600" in bad(found)["architecture"].message
    assert "HSA_OVERRIDE_GFX_VERSION=11.0.0" in bad(found)["architecture"].next_step


def test_nvidia(tmp_path: Path) -> None:
    software = Software(CUDA_WHEEL, None, ("cuda", "cpu"))
    found = diagnosis_of(machines.nvidia(tmp_path), software, "cuda")
    assert (found.works, bad(found)) == (True, {})
    assert fact(found, "GPU 0") == "NVIDIA H100 80GB HBM3"
    assert fact(found, "driver") == "580.95.05"
    assert fact(found, "CUDA") == "13, /site-packages/nvidia/cu13/lib/libcudart.so.13"
    refused = replace(software, refusals={"cuda": "CUDA failure 35. x"})
    found = diagnosis_of(machines.nvidia(tmp_path, "550.54.14"), refused, "cuda")
    assert bad(found).keys() == {"cuda", "driver"}


def test_cpu_only(tmp_path: Path) -> None:
    software = Software(CPU_WHEEL, None, ("cpu",))
    found = diagnosis_of(machines.processor(tmp_path), software)
    assert (found.works, bad(found)) == (True, {})
    assert not {"AMD", "NVIDIA"} & {each.section for each in found.findings}
    assert diagnosis_of(machines.processor(tmp_path), software, "cpu").works
    assert not diagnosis_of(machines.processor(tmp_path), software, "migraphx").works


@pytest.mark.parametrize(("machine", "extra"), [(machines.rocm_7, "rocm"), (machines.nvidia, "cuda")])
def test_a_gpu_that_the_installed_onnxruntime_ignores(
    machine: Callable[[Path], System], extra: str, tmp_path: Path
) -> None:
    found = diagnosis_of(machine(tmp_path), Software(CPU_WHEEL, None, ("cpu",)))
    assert bad(found).keys() == {"provider"}
    assert bad(found)["provider"].status == WARNING
    _, *commands = bad(found)["provider"].next_step.split("\n")
    assert commands == flavours.install_commands(flavours.REQUIREMENTS[extra]).split("\n")


def test_what_other_vendors_need_is_not_asked_for(tmp_path: Path) -> None:
    """A processor with graphics of AMD beside a GPU of NVIDIA."""
    system = machines.nvidia(tmp_path)
    machines.amd(tmp_path, 100306, "Raphael")
    (tmp_path / "opt/rocm/.info/version").unlink()
    found = diagnosis_of(system, Software(CUDA_WHEEL, None, ("cuda", "cpu")), "cuda")
    assert bad(found) == {}
    assert [gpu.name for gpu in found.gpus] == ["Raphael", "NVIDIA H100 80GB HBM3"]


# ONNX Runtime's distributions


@pytest.mark.parametrize(
    ("installed", "message", "step"),
    [
        ({}, "ONNX Runtime is not installed", "pip install onnxruntime-rocm=="),
        (
            {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"},
            "2 distributions of ONNX Runtime are installed over each other: onnxruntime, onnxruntime-gpu",
            "pip uninstall -y onnxruntime onnxruntime-gpu",
        ),
    ],
    ids=["none", "two"],
)
def test_exactly_one_distribution_is_wanted(
    installed: dict[str, str], message: str, step: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime_copies.pretend(monkeypatch, installed)
    software = installed_software()
    found = diagnosis_of(machines.rocm_7(tmp_path), software)
    assert not found.works
    assert bad(found).keys() == {"ONNX Runtime"}
    assert bad(found)["ONNX Runtime"].message == message
    assert step in bad(found)["ONNX Runtime"].next_step
    assert fact(found, "GPU 0")


def test_a_copy_that_another_one_hides_is_told_and_in_nobodys_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime_copies.install(tmp_path / "user", "acme-ort", "1.27")
    hidden = find_copies([str(tmp_path / "user")])
    runtime_copies.pretend(monkeypatch, {"onnxruntime": "1.31.1"}, *hidden)
    found = diagnosis_of(machines.processor(tmp_path), installed_software())
    assert (found.works, bad(found)) == (True, {})
    assert fact(found, "ONNX Runtime") == "onnxruntime 1.31.1"
    assert fact(found, "other copy").startswith(f"acme-ort 1.27 in {tmp_path / 'user'}, ")


def test_this_environments_providers_are_loaded_for_real() -> None:
    software = installed_software()
    assert "cpu" in software.listed
    assert software.works("cpu")
    assert not software.works("rocm")
    assert "built without ROCMExecutionProvider" in (refusal("rocm") or "")


def test_what_lies_in_the_current_folder_is_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert "built without MIGraphXExecutionProvider" in (refusal("migraphx") or "")


def test_a_provider_that_ends_its_process_is_survived(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho HSA exception >&2\nkill -SEGV $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    reason = refusal("rocm") or ""
    assert "ended the process with code -11" in reason
    assert "HSA exception" in reason


# Operators, caches, memory


def description(*architectures: str) -> Description:
    vendors = {"gfx": "amd", "sm_": "nvidia"}
    return Description((), tuple(CodeObject(vendors[name[:3]], name, 1000) for name in architectures))


@pytest.mark.parametrize(
    ("built", "status", "text"),
    [
        (None, WARNING, "not built"),
        (("gfx1030", "sm_90"), WARNING, "no machine code for gfx1100"),
        (("gfx1030", "gfx1100"), OK, "for the CPU and gfx1030, gfx1100"),
    ],
)
def test_custom_operators_have_code_for_the_gpu(
    built: tuple[str, ...] | None, status: str, text: str, tmp_path: Path
) -> None:
    has = None if built is None else description(*built)
    found = diagnosis_of(machines.rocm_7(tmp_path), rocm(), "rocm", tmp_path / "libsdort_ops.so", has)
    (about,) = (each for each in found.findings if each.check == "custom operators")
    assert about.status == status
    assert text in about.message
    assert ("sdort ops build" in about.next_step) == (status == WARNING)


def test_caches_and_their_sizes(tmp_path: Path) -> None:
    system = machines.processor(tmp_path)
    machines.write(
        tmp_path, {"home/.cache/sdort/traces/a/b": "x" * (3 << 20), "home/.config/miopen/db": "x" * (1 << 20)}
    )
    found = diagnosis_of(system, Software(CPU_WHEEL, None, ("cpu",)))
    assert fact(found, "traces") == f"3.1 MB in {tmp_path}/home/.cache/sdort/traces"
    assert fact(found, "MIOpen") == f"1.0 MB in {tmp_path}/home/.config/miopen"
    moved = replace(system, environ={"XDG_CACHE_HOME": str(tmp_path / "elsewhere")})
    assert "traces" not in {each.check for each in diagnosis_of(moved, rocm()).findings}


def test_a_home_that_nobody_can_look_into_is_survived(tmp_path: Path) -> None:
    system = machines.processor(tmp_path)
    odd = replace(system, environ={"HOME": str(tmp_path / ("x" * 300))})  # longer than a file name may be
    found = diagnosis_of(odd, rocm())
    assert fact(found, "disk").endswith(f"free at {tmp_path}")


def test_a_cache_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    system = machines.processor(tmp_path)
    sealed = replace(system, access=lambda path, mode: False)
    (found,) = (each for each in diagnosis_of(sealed, rocm()).findings if each.check == "permission")
    assert found.status == PROBLEM
    assert "XDG_CACHE_HOME" in found.next_step


def test_a_cache_that_others_can_write_is_told(tmp_path: Path) -> None:
    system = machines.processor(tmp_path)
    folder = tmp_path / "shared"
    (folder / "sdort").mkdir(parents=True)
    folder.chmod(0o777)
    shared = replace(system, environ={**system.environ, "XDG_CACHE_HOME": str(folder)})
    (found,) = (each for each in diagnosis_of(shared, rocm()).findings if each.check == "permission")
    assert found.status == WARNING
    assert f"other accounts can write {folder}" in found.message


def test_a_library_that_is_not_loaded_is_told() -> None:
    library = built_library()
    library.parent.mkdir(parents=True)
    library.write_bytes(b"changed")
    (found,) = (each for each in sdort.diagnose(provider="cpu").findings if each.check == "custom operators")
    assert found.status == WARNING
    assert "without a record of its build" in found.message


@pytest.mark.parametrize(("limit", "text", "status"), [("max", "67.1 GB", OK), (str(4 * 10**9), "4.0 GB", WARNING)])
def test_a_containers_memory_is_its_limit(limit: str, text: str, status: str, tmp_path: Path) -> None:
    system = machines.processor(tmp_path)
    machines.write(tmp_path, {"sys/fs/cgroup/memory.max": f"{limit}\n"})
    (found,) = (each for each in diagnosis_of(system, rocm()).findings if each.check == "RAM")
    assert found.message.startswith(text)
    assert found.status == status


def test_every_problem_has_a_next_step(tmp_path: Path) -> None:
    system = replace(machines.rocm_6(tmp_path), access=lambda path, mode: False)
    found = diagnosis_of(system, rocm(NO_LIBRARY))
    assert len(bad(found)) >= 3
    assert all(each.next_step for each in bad(found).values())
    assert not any(each.message.endswith(".") for each in found.findings)


# The command


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["doctor", *arguments])


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--provider", "cpu"), 0), (("--provider", "rocm"), 6)])
def test_the_exit_code_tells_whether_it_would_work(arguments: tuple[str, ...], code: int) -> None:
    done = run(*arguments)
    assert done.exit_code == code
    assert ("does not work here" in done.stdout) == (code == 6)
    machine = run(*arguments, "--json")
    assert machine.exit_code == code
    assert json.loads(machine.stdout)["works"] is (code == 0)


def test_json_has_all_that_the_table_has() -> None:
    shown, data = run("--provider", "rocm").stdout, json.loads(run("--provider", "rocm", "--json").stdout)
    words = "".join(shown.split())
    for each in data["findings"]:
        if each["section"] != "memory":  # changes between the two
            assert each["check"].replace(" ", "") in words
            assert each["message"].split()[0] in shown
    assert "pip install onnxruntime-rocm==" in shown
    assert data["providers"]["rocm"]["options"]["tunable_op_enable"] == "0"
    assert "enable_hip_graph" not in data["providers"]["rocm"]["options"]
    assert "tunable_op_max_tuning_duration_ms" in shown


def test_the_script_exits_with_the_code_too() -> None:
    command = [sys.executable, "-m", "sdort", "doctor", "--provider", "migraphx", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (6, "")
    assert json.loads(done.stdout)["provider"] == "migraphx"
