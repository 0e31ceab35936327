"""GroupNorm's machine code, read from the built objects: no spills; registers and shared memory as geometry says."""

from __future__ import annotations

import shutil
from dataclasses import replace
from math import ceil

import pytest
from support.group_norm_cases import simulator
from support.machine_code import all_objects, instructions, kernels, moves, objects, wide


def instances() -> list[tuple[int, ...]]:
    text = simulator("mma_sync").simulated_group_norm_instances().decode()
    return [tuple(map(int, line.split())) for line in text.splitlines()]


def kernel_names(instance: tuple[int, ...], architecture: str) -> list[str]:
    """A block with a slab alone, with rows in registers only; blocks with a slab together where GPUs launch such."""
    threads, rows, kept = instance[:3]
    forms = [f"alone_{threads}_{rows}"] if kept == 0 else []
    if architecture.startswith("sm_"):
        forms.append(f"together_{threads}_{rows}_{kept}")
    return [f"group_norm_{dtype}_{form}" for form in forms for dtype in ("f16", "f32")]


def test_as_many_blocks_as_headers_count_on() -> None:
    """Registers for them all; shared memory to the byte, as the geometry divides it."""
    assert objects("*.hsaco")
    for path in all_objects():
        for threads, rows, kept, blocks, shared in instances():
            for name in kernel_names((threads, rows, kept), path.stem):
                kernel = kernels(path)[name]
                assert kernel.spills == 0, kernel
                assert replace(kernel, shared=0).blocks >= blocks, kernel
                taken = shared - (4 if "alone" in name else 0)  # no mark of the launch
                # What is compiled for sm_90a takes whole 16 bytes.
                assert kernel.shared == (ceil(taken / 16) * 16 if path.stem == "sm_90" else taken), kernel


def test_cuda_objects_are_there_with_a_compiler() -> None:
    assert bool(objects("*.cubin")) == bool(shutil.which("nvcc"))


@pytest.mark.parametrize("instance", instances(), ids=lambda i: "-".join(map(str, i[:3])))
def test_memory_is_moved_in_vectors(instance: tuple[int, ...]) -> None:
    """16 bytes at a time, every row of the unrolled loops; nothing narrower but weights and exchanged statistics."""
    rows = instance[1]
    for path in objects("*.hsaco"):
        for name in kernel_names(instance, path.stem):
            found = moves(instructions(path)[name])
            # Reads: rows, skip, and again rows, S and skip. Writes: S, Y, and S where it is computed again.
            assert wide(found, "load") >= 5 * rows, (path.name, name, found)
            assert wide(found, "store") >= 2 * rows, (path.name, name, found)
            others = set(found) - {
                f"global_{kind}_{width}"
                for kind in ("load", "store")
                for width in ("b128", "dwordx4", "b64", "dwordx2")
            }
            # Weights are in fp32 or in fp16.
            assert others <= {f"global_load_{width}" for width in ("b32", "dword", "u16", "ushort")}, (
                path.name,
                name,
                found,
            )
            assert sum(found[m] for m in others) <= 4, (path.name, name, found)
