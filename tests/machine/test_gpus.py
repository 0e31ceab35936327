"""GPUs, drivers and memory as their files and tools tell them; several of a kind, and what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import machines
from support.machines import write
from support.nvidia import Card, nvml

from sdort.machine import nvml as nvidia_library
from sdort.machine.gpus import (
    Gpu,
    amd_driver,
    amd_gpus,
    driver_of,
    free_memory,
    gpus_of,
    memory_reader,
    nvidia_driver,
    nvidia_gpus,
    rocm_version,
)
from sdort.machine.nvml import Memory
from sdort.machine.system import System

NODES, DRM = "sys/class/kfd/kfd/topology/nodes", "sys/class/drm"


def node(root: Path, number: int | str, gfx: int, minor: int) -> None:
    write(root, {f"{NODES}/{number}/properties": f"gfx_target_version {gfx}\ndrm_render_minor {minor}\nodd\na b c\n"})


def card(root: Path, minor: int, **counters: object) -> None:
    write(root, {f"{DRM}/renderD{minor}/device/{name}": f"{value}\n" for name, value in counters.items()})


@pytest.fixture
def system(tmp_path: Path) -> System:
    return machines.processor(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "memory", "text"),
    [
        ("gfx1100", 24 << 30, "A card (gfx1100, 24 GiB)"),
        ("gfx1100", 0, "A card (gfx1100)"),
        ("", 24 << 30, "A card (24 GiB)"),
        ("", 0, "A card"),
    ],
)
def test_a_gpu_in_words_says_what_is_known(architecture: str, memory: int, text: str) -> None:
    assert str(Gpu("amd", "A card", architecture, memory)) == text


def test_amd_gpus_stand_in_the_order_of_their_nodes_numbers(system: System, tmp_path: Path) -> None:
    node(tmp_path, 0, 0, 0)  # a processor
    node(tmp_path, 2, 110000, 129)
    node(tmp_path, 10, 90010, 130)
    node(tmp_path, 1, 90402, 128)
    for minor, name, total, used in ((128, "A", 500, 100), (129, "B", 600, 50), (130, "C", 700, 0)):
        card(tmp_path, minor, product_name=name, mem_info_vram_total=total, mem_info_vram_used=used)
    found = [Gpu("amd", "A", "gfx942", 500), Gpu("amd", "B", "gfx1100", 600), Gpu("amd", "C", "gfx90a", 700)]
    assert amd_gpus(system) == gpus_of("amd", system) == found
    assert [free_memory("amd", device, system) for device in range(4)] == [400, 550, 700, None]


def test_amd_names_are_rocminfos_as_far_as_they_go(system: System, tmp_path: Path) -> None:
    for number, gfx in ((1, 110000), (2, 90402), (3, 90010)):
        node(tmp_path, number, gfx, 127 + number)
    card(tmp_path, 128, product_name="of the card")
    card(tmp_path, 130, product_name="third")
    machines.rocminfo(tmp_path, gfx1100="of rocminfo", gfx942="second")
    assert [gpu.name for gpu in amd_gpus(system)] == ["of rocminfo", "second", "third"]


@pytest.mark.parametrize(("kind", "value"), [("total", "?"), ("used", ""), ("total", None), ("used", None)])
def test_free_memory_of_an_amd_gpu_is_unknown_where_it_does_not_tell(
    kind: str, value: str | None, system: System, tmp_path: Path
) -> None:
    for number in (1, 2):
        node(tmp_path, number, 110000, 127 + number)
        card(tmp_path, 127 + number, mem_info_vram_total=900, mem_info_vram_used=100)
    assert [free_memory("amd", device, system) for device in range(2)] == [800, 800]
    counter = tmp_path / f"{DRM}/renderD129/device/mem_info_vram_{kind}"
    if value is None:
        counter.unlink()
    else:
        counter.write_text(value)
    assert [free_memory("amd", device, system) for device in range(2)] == [800, None]


def test_memory_is_the_sum_of_the_banks_on_the_device(system: System, tmp_path: Path) -> None:
    """Heaps of the system, public and private memory: HsaHeapType of ROCm's kernel interface."""
    node(tmp_path, 1, 110000, 128)
    card(tmp_path, 128, mem_info_vram_total="unknown")
    banks = ((0, 1), (1, 20), (2, 300), (3, 4000))
    for number, (heap, size) in enumerate(banks):
        properties = f"heap_type {heap}\nsize_in_bytes {size}\n"
        write(tmp_path, {f"{NODES}/1/mem_banks/{number}/properties": properties})
    assert amd_gpus(system)[0].memory == 320


def test_nvidia_gpus_are_as_their_library_tells_them(system: System) -> None:
    cards = Card("One", (8, 9), 24564 << 20), Card("Two", (12, 0), None), Card("Three", None, 5)
    assert gpus_of("nvidia", replace(system, management=nvml(*cards))) == [
        Gpu("nvidia", "One", "sm_89", 24564 << 20),
        Gpu("nvidia", "Two", "sm_120", 0),
        Gpu("nvidia", "Three", "", 0),
    ]


def test_nvidia_gpus_without_a_library_are_the_drivers_several_of_them(system: System, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/driver/nvidia/gpus/0000:02:00.0/information": "IRQ: 3\nModel:  Second\n",
            "proc/driver/nvidia/gpus/0000:01:00.0/information": "Video Model: no\nModel: \t First one \n",
            "proc/driver/nvidia/gpus/0000:03:00.0/information": "IRQ: 3\n",
        },
    )
    assert [gpu.name for gpu in nvidia_gpus(system)] == ["First one", "Second", "NVIDIA GPU"]
    assert {(gpu.vendor, gpu.architecture, gpu.memory) for gpu in nvidia_gpus(system)} == {("nvidia", "", 0)}


@pytest.mark.parametrize(
    ("numbered", "free"),
    [
        ({}, {0: 100, 1: None, 2: 300, 3: None}),  # no CUDA driver: the bus's numbers
        ({0: "c", 1: "m", 2: "none"}, {0: 300, 1: 7, 2: None}),  # CUDA's own, and part of a GPU
    ],
)
def test_nvidia_memory_is_of_the_device_that_cuda_numbers(
    numbered: dict[int, str], free: dict[int, int | None], system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared by UUID: CUDA_VISIBLE_DEVICES and the order of speed renumber what CUDA shows."""
    monkeypatch.setattr(nvidia_library, "cuda_uuid", numbered.get)
    cards = [Card(free=100, identity="GPU-a"), Card(total=None, identity="GPU-b"), Card(free=300, identity="GPU-c")]
    system = replace(system, management=nvml(*cards, Card(free=7, identity="MIG-m")) if numbered else nvml(*cards))
    assert {device: free_memory("nvidia", device, system) for device in free} == free


def test_nvidia_memory_is_read_anew_each_time(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_library, "cuda_uuid", {}.get)
    card = Card(free=10, used=3)
    read = memory_reader("nvidia", 0, replace(system, management=nvml(card)))
    assert read is not None
    assert read() == Memory(10, 3)
    card.free, card.used = 4, 9
    assert read() == Memory(4, 9)
    card.free = card.total = None  # a GPU that fell off the bus
    assert read() is None


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "", "unknown"])
def test_nothing_reads_the_memory_of_no_gpu(vendor: str, system: System) -> None:
    assert memory_reader(vendor, 0, system) is None


@pytest.mark.parametrize(
    ("variables", "used"),
    [
        ({}, [0, 1, 2, None]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [2, 0, None]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1, None]),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "2"}, [2, None]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [2, None]),
        ({"ROCR_VISIBLE_DEVICES": "2,1,0", "GPU_DEVICE_ORDINAL": "0, 2", "HIP_VISIBLE_DEVICES": "1,0"}, [0, 2, None]),
        ({"HIP_VISIBLE_DEVICES": "1,7,0"}, [1, None]),  # what there is not ends the list
        ({"HIP_VISIBLE_DEVICES": ""}, [None]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-4f1c"}, [None]),  # nothing tells which
    ],
)
def test_amd_memory_is_of_the_device_that_hip_numbers(
    variables: dict[str, str], used: list[int | None], system: System, tmp_path: Path
) -> None:
    """https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html"""
    for number in range(3):
        node(tmp_path, number, 110000, 128 + number)
        card(tmp_path, 128 + number, mem_info_vram_total=500, mem_info_vram_used=number)
    numbered = replace(system, environ=variables)
    readers = [memory_reader("amd", device, numbered) for device in range(len(used))]
    found = [read() if read else None for read in readers]
    assert [memory and memory.used for memory in found] == used


@pytest.mark.parametrize(
    ("available", "limit", "used", "cached", "free"),
    [
        (4000, "max", "1000", 0, 4000),  # no container
        (4000, "3000000", None, 0, 4000),  # one that does not say what it uses
        (4000, "3000000", "1000000", 0, 2000000),
        (4000, "3000000", "2000000", 500000, 1500000),
        (4000, "9000000", "1000000", 0, 4000 << 10),
        (4000, "1000", "5000", 0, 0),
        (None, "3000000", "1000000", 0, 2000000),
        (None, "max", "1000", 0, None),
    ],
)
def test_free_main_memory_is_the_machines_or_the_containers_if_that_is_less(
    available: int | None, limit: str, used: str | None, cached: int, free: int | None, tmp_path: Path
) -> None:
    known = "" if available is None else f"MemAvailable: {available} kB\n"
    write(tmp_path, {"proc/meminfo": f"MemTotal: 90000 kB\nMemFree: 7 kB\n{known}", "sys/fs/cgroup/memory.max": limit})
    write(tmp_path, {"sys/fs/cgroup/memory.stat": f"anon 77\ninactive_file {cached}\nactive_file 55\n"})
    if used is not None:
        write(tmp_path, {"sys/fs/cgroup/memory.current": used})
    expected = available << 10 if free == available and available is not None else free
    assert free_memory("", 0, System(tmp_path, {})) == expected


def test_memory_of_a_vendor_that_is_not_known_is_none(system: System) -> None:
    assert free_memory("made up", 0, system) is None


def test_a_driver_is_told_only_where_it_is_loaded(system: System, tmp_path: Path) -> None:
    assert (amd_driver(system), nvidia_driver(system), driver_of("amd", system)) == (None, None, None)
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    assert amd_driver(system) == driver_of("amd", system) == "amdgpu of Linux 6.12.1"
    (tmp_path / "proc/sys/kernel/osrelease").unlink()
    assert amd_driver(system) == "amdgpu of Linux ?"
    write(tmp_path, {"sys/module/amdgpu/version": "6.10.5\n"})
    assert amd_driver(system) == "amdgpu 6.10.5"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22", "550.54.14"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "580.95.05"),
        ("NVRM version: nothing", None),
    ],
)
def test_nvidias_driver_by_its_module_or_its_own_words(
    text: str, version: str | None, system: System, tmp_path: Path
) -> None:
    write(tmp_path, {"proc/driver/nvidia/version": text})
    assert nvidia_driver(system) == driver_of("nvidia", system) == version
    write(tmp_path, {"sys/module/nvidia/version": "999.1\n"})
    assert nvidia_driver(system) == "999.1"


def test_rocms_version_is_that_of_the_link_or_else_the_first_there_is(system: System, tmp_path: Path) -> None:
    assert rocm_version(system) is None
    write(tmp_path, {"opt/rocm-7.1.0/.info/version": "7.1.0-20\n", "opt/rocm-6.4.1/.info/version": "6.4.1-83\n"})
    assert rocm_version(system) == "6.4.1-83"
    write(tmp_path, {"opt/rocm/.info/version": "7.1.0-20\n"})
    assert rocm_version(system) == "7.1.0-20"
