"""Faults planted in built machine code: instructions that are replaced by others of the same length."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import kernel_report
from support.emulated import Target, symbols_of

Words = tuple[int, ...]

NOP = 0xBF800000
"""s_nop 0, on every target."""


@dataclass(frozen=True)
class Instruction:
    at: int
    """Position in the file."""
    words: Words
    text: str


@cache
def instructions(target: Target, kernel: str) -> tuple[Instruction, ...]:
    """Of a kernel, as llvm-objdump reads them."""
    with tempfile.NamedTemporaryFile(suffix=".hsaco") as file:
        file.write(target.data)
        file.flush()
        command = [kernel_report.llvm("llvm-objdump"), "-d", f"--disassemble-symbols={kernel}", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^\t(.*?)\s*// ([0-9A-F]+): ([0-9A-F ]+?)(?: <.*>)?$", text, re.M)
    first = int(lines[0][1], 16)
    [start] = [at for name, at, _ in symbols_of(target.data) if name == kernel]
    return tuple(
        Instruction(start + int(address, 16) - first, tuple(int(word, 16) for word in words.split()), text)
        for text, address, words in lines
    )


def found(target: Target, kernel: str, pattern: str) -> list[Instruction]:
    """Those whose text begins so."""
    return [each for each in instructions(target, kernel) if re.match(pattern, each.text)]


def planted(target: Target, replaced: Sequence[Instruction], change: Callable[[Words], Words]) -> Target:
    """The target with other words for those instructions."""
    data = bytearray(target.data)
    for instruction in replaced:
        words = change(instruction.words)
        assert len(words) == len(instruction.words)
        assert words != instruction.words
        packed = struct.pack(f"<{len(words)}I", *instruction.words)
        assert data[instruction.at : instruction.at + len(packed)] == packed
        struct.pack_into(f"<{len(words)}I", data, instruction.at, *words)
    return Target(target.architecture, bytes(data), kept=False)


def nothing(words: Words) -> Words:
    return (NOP,) * len(words)


def field(word: int, low: int, bits: int, value: int) -> Callable[[Words], Words]:
    """Another value for bits of a word of the instruction."""

    def change(words: Words) -> Words:
        mask = ((1 << bits) - 1) << low
        return (*words[:word], words[word] & ~mask | value << low, *words[word + 1 :])

    return change
