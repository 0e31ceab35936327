"""The machine code of every kernel, read from the built objects of every architecture."""

from __future__ import annotations

import ctypes

import native
from test_ops_group_norm_code import amd_kernels, cuda_kernels, objects

ARCHITECTURES = {"gfx90a", "gfx942", "gfx1100", "gfx1101", "gfx1102", "gfx1151", "gfx1200", "gfx1201"}
"""What clang 19 knows; gfx950 needs a later one."""

LDS = 65536
"""Bytes that a block may have on every AMD GPU."""

MACHINES = {"gfx9": "mfma", "gfx11": "wmma_gfx11", "gfx12": "wmma_gfx12", "sm": "mma_sync"}
"""How an architecture's name begins -> the simulated machine of its kind."""


def kernel_names(architecture: str) -> set[str]:
    """Of the source for that kind of machine, as its CPU code registers them."""
    [machine] = [machine for start, machine in MACHINES.items() if architecture.startswith(start)]
    library = native.simulated(machine)
    library.sdort_body_names.restype = ctypes.c_char_p
    names: bytes = library.sdort_body_names()
    return set(names.decode().split())


def test_every_architecture_has_every_kernel() -> None:
    found = {path.stem: set(amd_kernels(path)) for path in objects("*.hsaco")}
    assert set(found) >= ARCHITECTURES
    # ptxas keeps a few functions of its own, under names that begin with a dollar sign.
    cuda = {path.stem: {name for name in cuda_kernels(path) if name[0] != "$"} for path in objects("*.cubin")}
    found |= cuda
    for architecture, names in found.items():
        assert names == kernel_names(architecture), architecture


def test_no_kernel_spills_on_amd() -> None:
    for path in objects("*.hsaco"):
        for name, numbers in amd_kernels(path).items():
            spilled = [numbers[key] for key in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")]
            assert spilled == [0, 0, 0], (path.name, name)


def test_waves_shared_memory_and_arguments_are_what_amd_has() -> None:
    for path in objects("*.hsaco"):
        wave = 64 if path.stem.startswith("gfx9") else 32
        for name, numbers in amd_kernels(path).items():
            assert numbers["wavefront_size"] == wave, (path.name, name)
            assert numbers["group_segment_fixed_size"] <= LDS, (path.name, name)
            assert numbers["kernarg_segment_size"] <= 512, (path.name, name)
