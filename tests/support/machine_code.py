"""The built machine code of the kernels: what each one takes of a GPU, and the instructions that it is made of."""

from __future__ import annotations

import re
import struct
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import kernel_report
from kernel_report import Kernel
from support import native

MACHINES = {"gfx9": "mfma", "gfx11": "wmma_gfx11", "gfx12": "wmma_gfx12", "sm": "mma_sync"}
"""How an architecture's name begins -> the simulated machine of its kind."""


def objects(pattern: str) -> list[Path]:
    """Built files by name: ``*.hsaco`` for AMD GPUs, ``*.cubin`` for NVIDIA's."""
    return sorted((native.build_folder() / "code").glob(pattern))


def all_objects() -> list[Path]:
    return objects("*.hsaco") + objects("*.cubin")


def machine_of(architecture: str) -> str:
    [machine] = [machine for start, machine in MACHINES.items() if architecture.startswith(start)]
    return machine


@cache
def kernels(path: Path) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in kernel_report.read(path.read_bytes())}


@cache
def instructions(path: Path) -> dict[str, Counter[str]]:
    """Kernel -> how often each instruction stands in its code; NVIDIA's are named as in :data:`_OPCODES`."""
    return _amd_instructions(path) if path.suffix == ".hsaco" else _cuda_instructions(path)


@cache
def disassembly(path: Path) -> dict[str, str]:
    """Kernel -> its lines, of an object for AMD GPUs."""
    command = [kernel_report.llvm("llvm-objdump"), "-d", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    parts = [part.partition(">:") for part in re.split(r"^[0-9a-f]+ <", text, flags=re.MULTILINE)[1:]]
    return {name: body for name, _, body in parts}


def _amd_instructions(path: Path) -> dict[str, Counter[str]]:
    return {
        name: Counter(re.findall(r"^\s+([a-z]\w+)", body, re.MULTILINE)) for name, body in disassembly(path).items()
    }


# Bits 0 to 11 of an instruction of 128 (Volta and later): what nvdisasm prints for them.
_OPCODES = {0x981: "LDG", 0x986: "STG", 0xFAE: "LDGSTS", 0x23C: "HMMA", 0x387: "STL", 0x983: "LDL"}
_WIDTHS = {0: "U8", 1: "S8", 2: "U16", 3: "S16", 4: "32", 5: "64", 6: "128"}


def _cuda_instructions(path: Path) -> dict[str, Counter[str]]:
    """Memory accesses with their bits (``LDG.128``), matrix products with their depth (``HMMA.16``)."""
    found: dict[str, Counter[str]] = {}
    for section, code in kernel_report.sections_of(path.read_bytes()).items():
        if section.startswith(".text."):
            counts = found[section.removeprefix(".text.")] = Counter()
            for low, high in struct.iter_unpack("<QQ", code):
                name = _OPCODES.get(low & 0xFFF)
                if name:
                    form = ("16" if high >> 11 & 1 else "8") if name == "HMMA" else _WIDTHS[high >> 9 & 7]
                    counts[f"{name}.{form}"] += 1
    return found


WIDE = {
    "load": ("global_load_b128", "global_load_dwordx4", "LDG.128"),
    "store": ("global_store_b128", "global_store_dwordx4", "STG.128"),
}
"""Accesses of 16 bytes to global memory."""


def moves(counts: Counter[str]) -> Counter[str]:
    """Loads from and stores to memory beyond the block's own."""
    memory = re.compile(r"(?:global|flat|scratch|buffer)_(?:load|store)_|LDG\.|STG\.|LDGSTS\.|LDL\.|STL\.")
    return Counter({name: count for name, count in counts.items() if memory.match(name)})


def wide(counts: Counter[str], kind: str) -> int:
    return sum(counts[name] for name in WIDE[kind])
