"""Counts of what kernels do: an observer of the emulator's runs.

A :class:`Counter` given to :meth:`emulator.CodeObject.run` looks at every instruction before it runs, and keeps for
each one of the program how often and with how many lanes it ran, what it touched of memory, and how long LDS takes to
serve it (core/count.h). It changes nothing of the run.

LDS has banks of four bytes, and serves the lanes of a wave in phases of 128 bytes; lanes of a phase that want different
words of one bank wait for each other. Which lanes share a phase is documented for CDNA's accesses of 16 bytes
(Composable Kernel, "Understanding AMD GPU LDS and Bank Conflicts",
https://rocm.docs.amd.com/projects/composable_kernel/en/latest/conceptual/ck_tile/hardware/lds_bank_conflicts.html). For
all others they are taken to be neighbours.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter as Bag
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache

from support.emulator import core, decode

BANKS = 32
MOST_LANES = 64
LINES = {"gfx90a": 64}
"""Bytes of a cache line of a compute unit's vector cache; 128 on all others (ROCm Compute Profiler, "Vector L1 cache";
LLVM's AMDGPU usage guide)."""

_GLOBAL = re.compile(r"(?:GLOBAL|FLAT)_(LOAD|STORE|ATOMIC)_(?:D16_HI_|D16_)?(\w+)")
_SHARED = re.compile(r"DS_(READ|LOAD|WRITE|STORE)(2ST64|2|_2ADDR_STRIDE64|_2ADDR)?_(\w+)")
_BYTES = {
    1: "UBYTE SBYTE BYTE U8 I8 B8",
    2: "USHORT SSHORT SHORT SHORT_D16 SHORT_D16_HI HI_B16 B16 U16 I16",
    4: "DWORD B32",
    8: "DWORDX2 B64",
    12: "DWORDX3 B96",
    16: "DWORDX4 B128",
}
_WIDTHS = {name: width for width, names in _BYTES.items() for name in names.split()}
_TRANSCENDENTAL = re.compile(r"V_(?:S_)?(?:EXP|LOG|RCP|RSQ|SQRT|SIN|COS)_")
_HINTS = {"S_DELAY_ALU", "S_CLAUSE", "S_NOP", "S_SETPRIO", "S_SET_INST_PREFETCH_DISTANCE", "S_SENDMSG", "V_NOP"}

CLASSES = (
    *("vector", "transcendental", "matrix", "LDS", "lanes", "global", "scalar", "scalar memory", "waits", "barriers"),
    "hints",
)
"""Of instructions. "lanes" are moves between lanes by the hardware of LDS; "vector" are all others of the VALU."""


def class_of(name: str) -> str:
    """The one of :data:`CLASSES` that an instruction belongs to.

    Raises:
        ValueError: to none.
    """
    rules = (
        (name in _HINTS, "hints"),
        (name.startswith(("S_WAIT", "BUFFER_", "GLOBAL_INV", "GLOBAL_WB")), "waits"),
        (name.startswith("S_BARRIER"), "barriers"),
        (name.startswith(("S_LOAD", "S_BUFFER")), "scalar memory"),
        (name.startswith(("V_WMMA", "V_MFMA")), "matrix"),
        (_TRANSCENDENTAL.match(name), "transcendental"),
        (name.startswith(("DS_BPERMUTE", "DS_SWIZZLE")), "lanes"),
        (_SHARED.match(name), "LDS"),
        (_GLOBAL.match(name), "global"),
        (name.startswith("V_"), "vector"),
        (name.startswith("S_"), "scalar"),
    )
    for applies, kind in rules:
        if applies:
            return kind
    raise ValueError(f"an instruction of no class: {name}")


def access_of(name: str) -> tuple[int, int, int, int, int]:
    """core/count.h's ``Access`` of an instruction: kind, whether it writes, bytes, addresses a lane, step."""
    if found := _GLOBAL.match(name):
        if found[1] == "ATOMIC":
            return 1, 1, 8 if found[2].endswith(("X2", "64")) else 4, 1, 0
        return 1, found[1] == "STORE", _width(found[2], name), 1, 0
    if found := _SHARED.match(name):
        width, two = _width(found[3], name), found[2] or ""
        return 2, found[1] in {"WRITE", "STORE"}, width, 2 if two else 1, width * (64 if "64" in two else 1)
    return 0, 0, 0, 0, 0


def _width(text: str, name: str) -> int:
    if text not in _WIDTHS:
        raise ValueError(f"an access of unknown width: {name}")
    return _WIDTHS[text]


def phase_of(family: str, bytes_of_lane: int, write: bool, lane: int) -> int:
    """The number of the phase in which LDS serves a lane's words."""
    if family == "cdna" and bytes_of_lane == 16 and not write:
        # Lanes 0 to 3 and 20 to 23, 4 to 7 and 16 to 19, 8 to 11 and 28 to 31, 12 to 15 and 24 to 27; 32 to 63 alike.
        half, four = divmod(lane, 32)[0], lane % 32 // 4
        return half * 4 + (four if four < 4 else (1, 0, 3, 2)[four - 4])
    return lane * bytes_of_lane // (4 * BANKS)


@cache
def _phases(family: str) -> bytes:
    return bytes(
        phase_of(family, width, write, lane)
        for width in (4, 8, 16)
        for write in (False, True)
        for lane in range(MOST_LANES)
    )


@dataclass
class Line:
    """One instruction of a program with its numbers, of all its executions together."""

    offset: int
    name: str
    executed: int
    lanes: int
    bytes: int
    lines: int
    least_lines: int
    cycles: int
    least_cycles: int
    dual: bool
    """Whether another instruction is executed with it."""
    drains: bool
    """Whether it waits until no load or store is under way."""


_NUMBERS = [field.name for field in fields(Line) if field.name in {name for name, *_ in core.Count._fields_}]


@dataclass
class Touched:
    """Of one range of memory, in bytes of whole cache lines, each block's for itself."""

    read: int
    written: int


class Counter:
    """What the runs do that it is given to.

    Attributes:
        program: the last run's kernel with the numbers of that run.
        touched: of each range of the run's memory, and of the arguments.
    """

    def __init__(self, architecture: str) -> None:
        self.line = LINES.get(architecture, 128)
        self.program: list[Line] = []
        self.touched: list[Touched] = []

    def begin(self, family: str, names: Sequence[str], ranges: int) -> core.Counting:
        """What the native part counts into."""
        self._accesses = (core.Access * len(names))(*(core.Access(*access_of(name)) for name in names))
        self._counts = (core.Count * len(names))()
        self._lines = (ctypes.c_uint64 * (2 * ranges))()
        return core.Counting(self._accesses, self._counts, self._lines, _phases(family), self.line, BANKS)

    def end(self, family: str, names: Sequence[str], records: bytes) -> None:
        """Takes what was counted."""
        size, offset = decode.RECORD.size, 0
        instructions = [decode.RECORD.unpack_from(records, size * i) for i in range(len(names))]
        self.program = []
        for name, record, count in zip(names, instructions, self._counts, strict=True):
            numbers = {key: getattr(count, key) for key in _NUMBERS}
            dual, drains = bool(record[21] & decode.DUAL), _drains(family, name, record[9])
            self.program.append(Line(offset, name, **numbers, dual=dual, drains=drains))
            offset += record[1]
        pairs = zip(self._lines[::2], self._lines[1::2], strict=True)
        self.touched = [Touched(read * self.line, written * self.line) for read, written in pairs]


def _drains(family: str, name: str, immediate: int) -> bool:
    if name == "S_WAITCNT":
        loads = immediate >> 10 & 63 if family == "rdna3" else immediate & 15 | immediate >> 10 & 48
        return loads == 0
    return name.startswith(("S_WAIT_LOADCNT", "S_WAITCNT_VMCNT")) and immediate & 63 == 0


@dataclass
class Counts:
    """Numbers of a run: instructions are those of waves, all others as in :class:`Line`."""

    vector: int = 0
    transcendental: int = 0
    matrix: int = 0
    shared: int = 0
    lanes: int = 0
    access: int = 0
    scalar: int = 0
    scalar_memory: int = 0
    waits: int = 0
    drains: int = 0
    barriers: int = 0
    hints: int = 0
    dual: int = 0
    """Vector instructions that were executed with another one, which is counted."""
    conversions: int = 0
    """Vector instructions that only convert between number formats."""
    shared_cycles: int = 0
    shared_least: int = 0
    lines: int = 0
    least_lines: int = 0
    bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


_FIELDS = {"LDS": "shared", "global": "access", "scalar memory": "scalar_memory"}


def counts_of(program: Sequence[Line]) -> Counts:
    """The sums over a program's instructions."""
    bag: Bag[str] = Bag()
    for line in _executed(program):
        kind = class_of(line.name)
        bag[_FIELDS.get(kind, kind)] += line.executed
        bag["dual"] += line.executed * line.dual
        bag["drains"] += line.executed * line.drains
        bag["conversions"] += line.executed * line.name.startswith("V_CVT_")
        bag["shared_cycles"] += line.cycles
        bag["shared_least"] += line.least_cycles
        if kind == "global":
            bag["lines"] += line.lines
            bag["least_lines"] += line.least_lines
            bag["bytes"] += line.bytes
    return Counts(**bag)


def _executed(program: Sequence[Line]) -> Iterator[Line]:
    return (line for line in program if line.executed)
