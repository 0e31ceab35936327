#!/usr/bin/env python3
"""Resources of the kernels' machine code on each GPU, as a Markdown table: registers, shared memory, spills, occupancy.

    python scripts/kernel_report.py LIBRARY_OR_FOLDER [--kernel SUBSTRING] [--update custom_ops/REGISTERS.md]

LIBRARY_OR_FOLDER is a built libsdort_ops.so, or a folder of .hsaco and .cubin files (a build's folder ``code``). Needs
llvm-readelf. *Blocks* are those that registers, shared memory and slots allow on a compute unit (AMD CDNA), a
work-group processor of two compute units (RDNA) or a multiprocessor (NVIDIA) at a time.

With --update the table of that file is written anew: kernels as they are built now, but for architectures that are not
built here, of which it keeps what it had, and says "not measured" of kernels that are new. So a new kernel needs no
other compiler than the one at hand.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from measuring import Arguments

AMD, NVIDIA = 224, 190
"""ELF machines."""

NARROW_FILES = ("gfx1102", "gfx1103", "gfx1150", "gfx1152", "gfx1153")
"""RDNA 3 with two thirds of the vector registers (LLVM, AMDGPU.td: those without FeatureGFX11FullVGPRs)."""


@dataclass(frozen=True)
class Unit:
    """The resources that blocks share; sources: LLVM's AMDGPU usage guide and CUDA's programming guide."""

    simds: int
    registers: int  # of one lane of a SIMD
    granule: int  # registers are given in multiples of it
    waves: int  # of a SIMD
    shared: int
    block_shared: int = 0  # that the driver takes of each block


@dataclass(frozen=True)
class Kernel:
    """One kernel's numbers. Registers are those of a lane; NVIDIA has no scalar ones that a kernel would take."""

    architecture: str
    name: str
    threads: int
    wave: int
    registers: int
    scalars: int
    shared: int
    spills: int  # registers on AMD, bytes of stack on NVIDIA

    @property
    def blocks(self) -> int:
        """Blocks on a compute unit, work-group processor or multiprocessor at a time."""
        unit = unit_of(self.architecture)
        taken = max(-(-self.registers // unit.granule), 1) * unit.granule
        waves = min(unit.waves, unit.registers // taken)
        if self.architecture.startswith("gfx9"):
            waves = min(waves, 800 // (-(-max(self.scalars, 1) // 16) * 16))
        by_waves = waves * unit.simds // -(-self.threads // self.wave)
        held = self.shared + unit.block_shared
        return min(by_waves, unit.shared // held if held else by_waves)


def unit_of(architecture: str) -> Unit:
    if architecture.startswith("sm_"):
        least = {"sm_80": 164, "sm_87": 164, "sm_90": 228, "sm_100": 228, "sm_103": 228}
        waves = 16 if architecture in least else 12
        return Unit(4, 512, 8, waves, least.get(architecture, 100) << 10, 1024)
    if architecture.startswith("gfx9"):
        return Unit(4, 512, 8, 8, (160 if architecture == "gfx950" else 64) << 10)
    if architecture in NARROW_FILES:
        return Unit(4, 1024, 16, 16, 128 << 10)
    return Unit(4, 1536, 24, 16, 128 << 10)


def main() -> int:
    parser = Arguments(__doc__)
    parser.add_argument("source", type=Path, metavar="LIBRARY_OR_FOLDER")
    parser.add_argument("--kernel", default="", metavar="SUBSTRING", help="only kernels whose names contain it")
    parser.add_argument(
        "--update", type=Path, metavar="FILE", help="write the table into this file in place of its own"
    )
    args = parser.parse_args()
    if not args.source.exists():
        parser.error(f"{args.source} is not there")
    objects = list(objects_of(args.source))
    if not objects:
        parser.error(f"{args.source} has no machine code of ours: build it with sdort ops build")
    kernels = [[k for k in read(code) if args.kernel in k.name] for code in objects]
    compilers: dict[str, set[str]] = {}
    for code, found in zip(objects, kernels, strict=True):
        compilers.setdefault(compiler_of(code), set()).update(k.architecture for k in found)
    for compiler, architectures in sorted(compilers.items()):
        print(f"- {', '.join(sorted(architectures, key=natural))}: {compiler}")
    numbers: Numbers = {}
    for kernel in (k for found in kernels for k in found):
        numbers.setdefault(kernel.name, {})[kernel.architecture] = cells_of(kernel)
    if args.update:
        text = args.update.read_text()
        start = text.index(HEADING)
        args.update.write_text(text[:start] + table(merged(read_table(text[start:]), numbers, args.kernel)))
    else:
        print("\n" + table(numbers), end="")
    return 0


COLUMNS = ("kernel", "architecture", "threads", "VGPRs", "SGPRs", "LDS, bytes", "spills", "blocks")
HEADING = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"
NOT_MEASURED = ("not measured", *[""] * (len(COLUMNS) - 3))

Numbers = dict[str, dict[str, tuple[str, ...]]]
"""Kernel -> architecture -> the cells behind it."""


def cells_of(kernel: Kernel) -> tuple[str, ...]:
    scalars = "" if kernel.architecture.startswith("sm_") else kernel.scalars
    numbers = (kernel.threads, kernel.registers, scalars, kernel.shared, kernel.spills, kernel.blocks)
    return tuple(f"{number}" for number in numbers)


def table(numbers: Numbers) -> str:
    """The table in Markdown; architectures of a kernel with the same numbers share a row."""
    lines = []
    for name in sorted(numbers, key=natural):
        rows: dict[tuple[str, ...], list[str]] = {}
        for architecture in sorted(numbers[name], key=natural):
            rows.setdefault(numbers[name][architecture], []).append(architecture)
        for i, (cells, architectures) in enumerate(rows.items()):
            first = "" if i else f"`{name}`"
            lines.append(f"| {first} | {', '.join(architectures)} | {' | '.join(cells)} |\n")
    return HEADING + "".join(lines)


def read_table(text: str) -> Numbers:
    """The rows that :func:`table` has written."""
    numbers: Numbers = {}
    name = ""
    for line in text.removeprefix(HEADING).splitlines():
        first, architectures, *cells = (cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|"))
        name = first.strip("`") or name
        numbers.setdefault(name, {}).update(dict.fromkeys(architectures.split(", "), tuple(cells)))
    return numbers


def merged(before: Numbers, built: Numbers, named: str = "") -> Numbers:
    """The rows of what is built, and the former ones of the architectures that are not.

    Kernels whose names do not contain ``named`` stay as they were.
    """
    here = {architecture for rows in built.values() for architecture in rows}
    others = {architecture for rows in before.values() for architecture in rows} - here
    result: Numbers = {name: rows for name, rows in before.items() if named not in name}
    for name, rows in built.items():
        kept = {a: before[name][a] for a in others if a in before.get(name, {})}
        new = {} if name in before else dict.fromkeys(others, NOT_MEASURED)
        result[name] = rows | kept | new
    return result


def natural(text: str) -> list[tuple[int, str]]:
    """Sorts numbers in names by their value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def objects_of(source: Path) -> Iterator[bytes]:
    """The ELF files for GPUs in a folder, or embedded in a library, where each begins at a multiple of 4096."""
    if source.is_dir():
        for path in sorted(p for p in source.iterdir() if p.suffix in {".hsaco", ".cubin"}):
            yield path.read_bytes()
        return
    data = source.read_bytes()
    for start in (match.start() for match in re.finditer(rb"\x7fELF\x02\x01", data)):
        if struct.unpack_from("<H", data, start + 18)[0] in (AMD, NVIDIA):
            table, (count,) = struct.unpack_from("<Q", data, start + 40)[0], struct.unpack_from("<H", data, start + 60)
            yield data[start : start + table + 64 * count]


def compiler_of(code: bytes) -> str:
    if found := re.search(rb"clang version [\d.]+|Cuda compilation tools, release [\d.]+", code):
        return found[0].decode().replace("Cuda compilation tools, release", "CUDA").replace(" version", "")
    return "an unknown compiler"


def read(code: bytes) -> list[Kernel]:
    """The kernels of one object."""
    return read_amd(code) if struct.unpack_from("<H", code, 18)[0] == AMD else read_cuda(code)


def llvm(name: str) -> str:
    """The tool's path; the newest of the versions that are installed beside each other.

    Raises:
        SystemExit: there is none.
    """
    for candidate in (*(f"{name}-{version}" for version in (22, 21, 20, 19)), name):
        if found := shutil.which(candidate):
            return found
    sys.exit(f"{name} is needed to read code objects: install llvm-19 or later")


def read_amd(code: bytes) -> list[Kernel]:
    """The numbers in the code object's metadata."""
    kernels = []
    for name, number in amd_metadata(code).items():
        threads, wave = number["max_flat_workgroup_size"], number["wavefront_size"]
        spills = number["vgpr_spill_count"] + number["sgpr_spill_count"] + number["private_segment_fixed_size"]
        registers = number["vgpr_count"], number["sgpr_count"]
        shared = number["group_segment_fixed_size"]
        kernels.append(Kernel(amd_target(code), name, threads, wave, *registers, shared, spills))
    return kernels


def amd_target(code: bytes) -> str:
    found = re.search(rb"amdgcn-amd-amdhsa--(gfx\w+)", code)
    assert found
    return found[1].decode()


def amd_metadata(code: bytes) -> dict[str, dict[str, int]]:
    """Kernel -> the numbers in its metadata (LLVM's AMDGPU usage guide, "Code Object V5 Metadata")."""
    with tempfile.NamedTemporaryFile(suffix=".hsaco") as file:
        file.write(code)
        file.flush()
        command = [llvm("llvm-readelf"), "--notes", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kernels = {}
    for part in re.split(r"^  - (?=\.a)", text, flags=re.MULTILINE)[1:]:
        name = re.search(r"^ +\.name: +(\S+)", part, re.MULTILINE)
        assert name
        kernels[name[1]] = {key: int(value) for key, value in re.findall(r"^ +\.(\w+): +(\d+)$", part, re.MULTILINE)}
    return kernels


def read_cuda(code: bytes) -> list[Kernel]:
    """The numbers in the sections that ptxas writes: 64-bit ELF, attributes named EIATTR_* by CUDA's tools."""
    sections = sections_of(code)
    target = re.search(rb"-arch (sm_\d+)", code)
    assert target
    numbers: dict[str, dict[str, int]] = {}
    symbols, names = sections[".symtab"], sections[".strtab"]
    for attribute, value in attributes(sections[".nv.info"]):
        if key := {0x2F: "registers", 0x11: "stack"}.get(attribute):  # REGCOUNT, FRAME_SIZE: of a symbol
            at = struct.unpack_from("<I", symbols, 24 * struct.unpack_from("<I", value)[0])[0]
            name = names[at : names.index(b"\0", at)].decode()
            numbers.setdefault(name, {})[key] = struct.unpack_from("<I", value, 4)[0]
    kernels = []
    for name, found in numbers.items():
        if name.startswith("$"):  # functions of ptxas's own
            continue
        threads = [struct.unpack_from("<I", v)[0] for a, v in attributes(sections[f".nv.info.{name}"]) if a == 0x05]
        shared = len(sections.get(f".nv.shared.{name}", b""))
        if shared and int(target[1][3:]) >= 90:  # what the driver takes of each block is counted there
            shared -= 1024
        kernels.append(
            Kernel(target[1].decode(), name, threads[0], 32, found["registers"], 0, shared, found.get("stack", 0))
        )
    return kernels


def sections_of(code: bytes) -> dict[str, bytes]:
    """Name -> contents; zeros for a section that has a size only."""
    start, count, names_at = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HH", code, 60)
    headers = [struct.unpack_from("<IIQQQQ", code, start + 64 * i) for i in range(count)]
    names = code[headers[names_at][4] :][: headers[names_at][5]]
    return {
        names[name : names.index(b"\0", name)].decode(): code[at : at + size] if kind != 8 else bytes(size)
        for name, kind, _, _, at, size in headers
    }


def attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """Attributes of a section .nv.info* with a value of stated size (format 4); others have it in their header."""
    at = 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == 4:
            yield attribute, info[at + 4 : at + 4 + size]
        at += 4 + (size if form == 4 else 0)


if __name__ == "__main__":
    sys.exit(main())
