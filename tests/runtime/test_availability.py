"""Why a provider cannot work, on machines made of files (machines.py)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import machines, rocm_stub
from support.nvidia import Card, nvml

from sdort.machine.elf import code_objects, needed
from sdort.machine.gpus import amd_driver, amd_gpus, gfx_name, nvidia_driver, nvidia_gpus, rocm_version
from sdort.machine.system import System
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.provider import Provider
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.runtime import environment
from sdort.runtime.availability import Problem, find_problems

Machine = Callable[[Path], System]


def only(provider: Provider, system: System) -> Problem:
    """The one thing that is wrong."""
    (found,) = find_problems(provider, system, None)
    return found


@pytest.mark.parametrize(
    ("provider", "machine"),
    [(ROCM, machines.rocm_7), (MIGRAPHX, machines.rocm_7), (CUDA, machines.nvidia), (CPU, machines.processor)],
    ids=lambda each: getattr(each, "name", ""),
)
def test_nothing_is_wrong_with_a_healthy_machine(provider: Provider, machine: Machine, tmp_path: Path) -> None:
    assert find_problems(provider, machine(tmp_path), None) == []


def test_another_rocm_is_told_by_its_version_and_the_library_that_has_it(tmp_path: Path) -> None:
    found = only(ROCM, machines.rocm_6(tmp_path))
    assert "this machine has ROCm 6.4.1-83 (libamdhip64.so.6), and ROCm 7 is needed" in found.message
    assert "libamdhip64.so.7 (hip-runtime-amd)" in found.message
    assert "libhipblas.so.3 (hipblas)" in found.message
    assert "libMIOpen" not in found.message  # that one is the same in both
    assert "Install ROCm 7" in found.next_step


def test_one_missing_library_is_named_with_its_package(tmp_path: Path) -> None:
    system = machines.rocm_7(tmp_path)
    (tmp_path / "opt/rocm-7.0.2/lib/libroctracer64.so.4").unlink()
    found = only(ROCM, system)
    assert found.message == "a shared library is not found: libroctracer64.so.4 (roctracer)"


def test_libraries_where_the_linker_does_not_look_are_pointed_at(tmp_path: Path) -> None:
    system = machines.rocm_7(tmp_path)
    (tmp_path / "etc/ld.so.conf.d/10-gpu.conf").write_text("# nothing\n")
    found = only(ROCM, system)
    assert "export LD_LIBRARY_PATH=/opt/rocm-7.0.2/lib" in found.next_step
    told = replace(system, environ={"LD_LIBRARY_PATH": "/usr/games:/opt/rocm-7.0.2/lib"})
    assert find_problems(ROCM, told, None) == []


def test_what_a_provider_needs_is_read_from_its_library(tmp_path: Path) -> None:
    """CUDA 12 builds need other names than the newest release."""
    system = machines.nvidia(tmp_path)
    library = next(rocm_stub.runtime().libraries.parent.rglob("libonnxruntime_providers_rocm.so"))
    assert set(ROCM.libraries) <= set(needed(library))
    found = find_problems(ROCM, system, library)
    assert all(name in found[-1].message for name in ROCM.libraries)


@pytest.mark.parametrize("gone", ["dev/kfd", "dev/dri/renderD128"])
def test_a_container_without_the_device_is_told_how_to_get_it(gone: str, tmp_path: Path) -> None:
    system = machines.rocm_7(tmp_path)
    (tmp_path / gone).unlink()
    found = only(ROCM, system)
    assert found.check == "device"
    assert gone.split("/")[1] in found.message
    assert "--device=/dev/kfd --device=/dev/dri" in found.next_step


def test_no_gpu_at_all(tmp_path: Path) -> None:
    system = machines.processor(tmp_path)
    assert [each.check for each in find_problems(ROCM, system, None)] == ["device", "libraries"]
    assert [each.check for each in find_problems(CUDA, system, None)] == ["device", "libraries"]
    assert "no AMD GPU" in find_problems(ROCM, system, None)[0].message
    assert "no NVIDIA GPU" in find_problems(CUDA, system, None)[0].message


def test_a_user_outside_the_render_group_is_told_to_join(tmp_path: Path) -> None:
    found = only(ROCM, machines.closed(machines.rocm_7(tmp_path)))
    assert found.message == "this user may not open /dev/kfd, /dev/dri/renderD128"
    assert "usermod -aG render,video" in found.next_step


@pytest.mark.parametrize(
    ("gfx", "name", "override"),
    [(110002, "gfx1102", "11.0.0"), (100301, "gfx1031", "10.3.0"), (110501, "gfx1151", None), (90006, "gfx906", None)],
)
def test_a_gpu_without_machine_code_is_named(gfx: int, name: str, override: str | None, tmp_path: Path) -> None:
    found = only(ROCM, machines.rocm_7(tmp_path, gfx))
    assert f"rocm has no machine code for {name}" in found.message
    assert "gfx1100" in found.message
    assert ("HSA_OVERRIDE_GFX_VERSION" in found.next_step) == (override is not None)
    if override:
        assert f"HSA_OVERRIDE_GFX_VERSION={override}" in found.next_step
        assert "does not support" in found.next_step
    assert "migraphx" in found.next_step
    # MIGraphX compiles for the GPU that is there.
    assert find_problems(MIGRAPHX, machines.rocm_7(tmp_path, gfx), None) == []


def test_an_override_or_a_second_gpu_is_believed(tmp_path: Path) -> None:
    system = machines.rocm_7(tmp_path, 110002)
    assert find_problems(ROCM, replace(system, environ={"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}), None) == []
    second = {"sys/class/kfd/kfd/topology/nodes/2/properties": "gfx_target_version 110000\n"}
    machines.write(tmp_path, second)
    assert only(ROCM, system).check == "architecture"
    assert find_problems(ROCM, system, None, device_id=1) == []
    assert find_problems(ROCM, replace(system, environ={"HIP_VISIBLE_DEVICES": "1"}), None) == []


@pytest.mark.parametrize(("driver", "old"), [("550.54.14", True), ("579.99", True), ("580.65.06", False)])
def test_a_driver_older_than_the_cuda_that_is_needed(driver: str, old: bool, tmp_path: Path) -> None:
    found = find_problems(CUDA, machines.nvidia(tmp_path, driver), None)
    assert [each.check for each in found] == (["driver"] if old else [])
    if old:
        assert f"the NVIDIA driver {driver} is too old for CUDA 13" in found[0].message
        assert "580" in found[0].next_step


def test_a_missing_cudnn(tmp_path: Path) -> None:
    found = only(CUDA, machines.nvidia(tmp_path, cudnn=False))
    assert "libcudnn.so.9 (nvidia-cudnn-cu13)" in found.message


def test_another_cuda_is_told(tmp_path: Path) -> None:
    system = machines.nvidia(tmp_path)
    folder = tmp_path / "site-packages/nvidia/cu13/lib"
    (folder / "libcudart.so.13").rename(folder / "libcudart.so.12")
    assert "this machine has CUDA 12 (libcudart.so.12), and CUDA 13 is needed" in only(CUDA, system).message


# GPUs and versions


def test_gpus_have_the_names_and_memory_that_files_tell(tmp_path: Path) -> None:
    system = machines.rocm_7(tmp_path)
    (gpu,) = amd_gpus(system)
    assert str(gpu) == "Radeon RX 7900 XTX (gfx1100, 24 GiB)"
    assert (rocm_version(system), amd_driver(system)) == ("7.0.2-56", "amdgpu 6.14.14")
    (tmp_path / "sys/module/amdgpu/version").unlink()
    assert amd_driver(system) == "amdgpu of Linux 6.12.1"


def test_rocminfo_has_the_better_names(tmp_path: Path) -> None:
    system = machines.rocm_7(tmp_path, name="")
    assert amd_gpus(system)[0].name == "AMD GPU"
    machines.write(tmp_path, {"sys/class/kfd/kfd/topology/nodes/2/properties": "gfx_target_version 100306\n"})
    machines.rocminfo(tmp_path, gfx1100="AMD Radeon RX 7900 XT", gfx1036="AMD Radeon Graphics")
    assert [gpu.name for gpu in amd_gpus(system)] == ["AMD Radeon RX 7900 XT", "AMD Radeon Graphics"]


def test_memory_is_that_of_the_drivers_banks_where_the_card_does_not_tell(tmp_path: Path) -> None:
    system = machines.rocm_7(tmp_path)
    (tmp_path / "sys/class/drm/renderD128/device/mem_info_vram_total").unlink()
    banks = "sys/class/kfd/kfd/topology/nodes/1/mem_banks"
    machines.write(tmp_path, {f"{banks}/0/properties": f"heap_type 1\nsize_in_bytes {16 << 30}\n"})
    machines.write(tmp_path, {f"{banks}/1/properties": f"heap_type 0\nsize_in_bytes {64 << 30}\n"})
    assert amd_gpus(system)[0].memory == 16 << 30


@pytest.mark.parametrize(
    ("version", "name"), [(90010, "gfx90a"), (90402, "gfx942"), (100300, "gfx1030"), (120001, "gfx1201"), (0, None)]
)
def test_gfx_names_are_hexadecimal_at_their_end(version: int, name: str | None) -> None:
    assert gfx_name(version) == name


def test_nvidia_gpus_by_their_library_or_their_driver(tmp_path: Path) -> None:
    system = machines.nvidia(tmp_path)
    assert nvidia_driver(system) == "580.95.05"
    assert str(nvidia_gpus(system)[0]) == "NVIDIA H100 80GB HBM3"
    managed = replace(system, management=nvml(Card("NVIDIA H100 80GB HBM3", (9, 0), 81559 << 20)))
    assert str(nvidia_gpus(managed)[0]) == "NVIDIA H100 80GB HBM3 (sm_90, 80 GiB)"
    assert str(nvidia_gpus(replace(system, management=nvml()))[0]) == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("provider", "machine", "name"),
    [
        (ROCM, machines.rocm_7, "Radeon RX 7900 XTX (gfx1100, 24 GiB)"),
        (CUDA, machines.nvidia, "NVIDIA H100 80GB HBM3, driver 580.95.05"),
        (CUDA, machines.rocm_7, "unknown GPU"),
    ],
)
def test_a_result_says_which_device_it_was_made_on(
    provider: Provider, machine: Machine, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = machine(tmp_path)
    monkeypatch.setattr(environment, "System", lambda: system)
    assert environment.device_name.__wrapped__(provider) == name


@pytest.mark.parametrize("device_id", range(4))
def test_a_device_is_named_by_its_number(device_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gpus_of", lambda *_: ["first", "second", "third"])
    named = environment.device_name.__wrapped__(ROCM, device_id)
    assert named == ("first", "second", "third", "unknown GPU")[device_id]


# The provider libraries themselves


def test_what_the_real_provider_needs_and_has_code_for_is_what_we_say() -> None:
    library = next(rocm_stub.runtime().libraries.parent.rglob("libonnxruntime_providers_rocm.so"))
    assert code_objects(library) == ROCM.architectures
    vendors = {name for name in needed(library) if re.match("lib(amd|hip|MIO|roc)", name)}
    assert vendors == set(ROCM.libraries)


def test_a_file_that_is_no_library_is_a_value_error(tmp_path: Path) -> None:
    for content in (b"", b"#!/bin/sh", b"\x7fELF\x02\x01" + bytes(20)):
        (tmp_path / "lib.so").write_bytes(content)
        with pytest.raises(ValueError, match=r"lib\.so|empty"):
            needed(tmp_path / "lib.so")


def test_an_extension_module_needs_the_c_library() -> None:
    module = Path(np.__file__).parent.glob("_core/_multiarray_umath*.so")
    assert "libc.so.6" in needed(next(module))
