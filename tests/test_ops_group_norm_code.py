"""GroupNorm's machine code, read from the built objects: no spills; registers and shared memory as geometry says."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import native
import pytest
from group_norm_cases import simulator

REGISTERS = {"gfx90a": 512, "gfx942": 512, "gfx950": 512, "gfx1102": 1024}
"""Vector registers that a SIMD has for each lane; 1536 on the others. LLVM's AMDGPU usage guide."""


def tool(name: str) -> str:
    found = shutil.which(f"{name}-19") or shutil.which(name)
    if not found:
        pytest.fail(f"{name} is needed to read code objects: install llvm-19")
    return found


def objects(pattern: str) -> list[Path]:
    return sorted((native.build_folder() / "code").glob(pattern))


def instances() -> list[tuple[int, ...]]:
    text = simulator("mma_sync").simulated_group_norm_instances().decode()
    return [tuple(map(int, line.split())) for line in text.splitlines()]


@cache
def amd_kernels(path: Path) -> dict[str, dict[str, int]]:
    """The numbers in each kernel's metadata."""
    command = [tool("llvm-readelf"), "--notes", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kernels = {}
    for part in text.split("  - .agpr_count" if ".agpr_count" in text else "  - .args:")[1:]:
        name = re.search(r"\.name: +(\S+)", part)
        assert name
        kernels[name[1]] = {key: int(value) for key, value in re.findall(r"\.(\w+): +(\d+)\n", part)}
    return kernels


@cache
def cuda_kernels(path: Path) -> dict[str, dict[str, int]]:
    """Registers, bytes of stack and of shared memory, from the sections that ptxas writes (CUDA's ELF, 64-bit)."""
    data = path.read_bytes()
    start, count, names_at = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i) for i in range(count)]

    def text(table: int, offset: int) -> str:
        begin = headers[table][4] + offset
        return data[begin : data.index(b"\0", begin)].decode()

    sections = {text(names_at, header[0]): header for header in headers}
    symbols = sections[".symtab"]
    kernels: dict[str, dict[str, int]] = {}
    at, end = sections[".nv.info"][4], sections[".nv.info"][4] + sections[".nv.info"][5]
    while at < end:
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        key = {0x2F: "registers", 0x11: "stack"}.get(attribute)
        if form == 4 and key:
            symbol, value = struct.unpack_from("<II", data, at + 4)
            name = text(symbols[6], struct.unpack_from("<I", data, symbols[4] + 24 * symbol)[0])
            kernels.setdefault(name, {"shared": sections.get(f".nv.shared.{name}", [0] * 6)[5]})[key] = value
        at += 4 + (size if form == 4 else 0)
    return kernels


def kernel_names(instance: tuple[int, ...]) -> list[str]:
    threads, rows, kept = instance[:3]
    return [f"group_norm_{dtype}_{threads}_{rows}_{kept}" for dtype in ("f16", "f32")]


def test_no_spills_and_as_many_blocks_as_wait_for_each_other_on_amd() -> None:
    found = objects("*.hsaco")
    assert found
    for path in found:
        kernels = amd_kernels(path)
        for name in (
            "group_norm_f16_general",
            "group_norm_f32_general",
            *(n for i in instances() for n in kernel_names(i)),
        ):
            numbers = kernels[name]
            spilled = [numbers[key] for key in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")]
            assert spilled == [0, 0, 0], (path.name, name)
        for threads, rows, kept, blocks, shared in instances():
            for name in kernel_names((threads, rows, kept)):
                numbers = kernels[name]
                # A shared-memory limit is the geometry's business; here registers, in eights, of four SIMDs.
                waves = -(-threads * blocks // numbers["wavefront_size"] // 4)
                used = -(-numbers["vgpr_count"] // 24) * 24
                assert used * waves <= REGISTERS.get(path.stem, 1536), (path.name, name)
                assert numbers["group_segment_fixed_size"] == shared, (path.name, name)


def test_no_spills_and_as_many_blocks_as_wait_for_each_other_on_nvidia() -> None:
    for path in objects("*.cubin"):
        kernels = cuda_kernels(path)
        for threads, rows, kept, blocks, shared in instances():
            for name in kernel_names((threads, rows, kept)):
                numbers = kernels[name]
                assert numbers["stack"] == 0, (path.name, name)
                assert -(-numbers["registers"] // 8) * 8 * threads * blocks <= 65536, (path.name, name)
                assert numbers["shared"] <= shared + 1024, (path.name, name)  # what the driver takes for itself


def test_cuda_objects_are_there_with_a_compiler() -> None:
    assert bool(objects("*.cubin")) == bool(shutil.which("nvcc"))


@pytest.mark.parametrize("instance", instances(), ids=lambda i: "-".join(map(str, i[:3])))
def test_memory_is_moved_in_vectors(instance: tuple[int, ...]) -> None:
    """16 bytes at a time, every row of the unrolled loops; nothing narrower but weights and exchanged statistics."""
    rows = instance[1]
    for path in objects("*.hsaco"):
        for name in kernel_names(instance):
            command = [tool("llvm-objdump"), "-d", f"--disassemble-symbols={name}", str(path)]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            moves = Counter(re.findall(r"\b(?:global|flat|scratch|buffer)_(?:load|store)_\w+", text))
            wide = {
                kind: sum(n for m, n in moves.items() if re.match(rf"global_{kind}_(b128|dwordx4)$", m))
                for kind in ("load", "store")
            }
            # Reads: rows, skip, and again rows, S and skip. Writes: S, Y, and S where it is computed again.
            assert wide["load"] >= 5 * rows, (path.name, name, moves)
            assert wide["store"] >= 2 * rows, (path.name, name, moves)
            others = set(moves) - {
                f"global_{kind}_{width}"
                for kind in ("load", "store")
                for width in ("b128", "dwordx4", "b64", "dwordx2")
            }
            assert others <= {"global_load_b32", "global_load_dword"}, (path.name, name, moves)
            assert sum(moves[m] for m in others) <= 4, (path.name, name, moves)
