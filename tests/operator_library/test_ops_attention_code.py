"""Attention's machine code: matrix instructions, memory accesses and shared memory as the tiling computes them.

All numbers follow from a kernel's template parameters, which its name tells, by the rules of operators/attention/*.h
and device/matrix_*.h: ``attention_f16_<d>_q<tiles>_k<keys>_s<step>``, or ``_whole``, with 80 keys at once. Loops over
tiles and steps are unrolled, so an instruction for each of them stands in the code. The loop over keys is not, but a
compiler may take its first step out of it, or the way back for a larger maximum: then the products of the scores, or
those of the sums, stand there twice.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from support.machine_code import all_objects, instructions, kernels, machine_of, moves

WHOLE = 80
WAVES = 4
MATRIX = {
    "mfma": "v_mfma_f32_16x16x16_f16",
    "wmma_gfx11": "v_wmma_f32_16x16x16_f16",
    "wmma_gfx12": "v_wmma_f32_16x16x16_f16",
}
"""Machine -> its instruction."""

PRODUCT = re.compile("HMMA|v_mfma|v_wmma|v_smfmac|v_swmmac")


@dataclass(frozen=True)
class Tiling:
    """A kernel's template parameters, on one of the machines."""

    machine: str
    size: int
    tiles: int  # of 16 queries a wave
    keys: int  # in shared memory
    step: int  # of the keys: so many are computed with at a time
    whole: bool

    @property
    def steps(self) -> int:
        """Of 16 columns; of the last one, half may be there."""
        return -(-self.size // 16)

    @property
    def half_step(self) -> bool:
        return self.size % 16 == 8

    @property
    def key_tiles(self) -> int:
        return self.step // 16

    @property
    def threads(self) -> int:
        return WAVES * (64 if self.machine == "mfma" else 32)

    @cached_property
    def products(self) -> tuple[Counter[str], Counter[str]]:
        """Matrix instructions of a step's scores, and of its sums."""
        tiles = self.key_tiles * self.tiles
        if self.machine == "mma_sync":  # two of 16 x 8 for a tile; half a step has half the depth, or one of the two
            full, part = self.steps - self.half_step, int(self.half_step)
            scores = Counter({"HMMA.16": 2 * full * tiles, "HMMA.8": 2 * part * tiles})
            return +scores, Counter({"HMMA.16": (2 * full + part) * tiles})
        each = Counter({MATRIX[self.machine]: self.steps * tiles})
        return each, each

    @property
    def fragments(self) -> tuple[int, int]:
        """LDS reads of AMD's lanes for a step's scores and sums: 16 bytes, on mfma 8; on gfx11 two for a fragment."""
        if self.machine == "wmma_gfx11":
            return self.key_tiles * (2 * self.steps - self.half_step), self.key_tiles * 2 * self.steps
        return self.key_tiles * self.steps, self.key_tiles * self.steps

    @property
    def key_share(self) -> int:
        """Units of 16 bytes that a thread has of a tile of K, or of V as it is: always of the same column."""
        return -(-self.keys // (self.threads // (self.size // 8)))

    @property
    def value_share(self) -> int:
        """And of V on its way to be transposed: two keys' of each of its eighths of sixteen keys' columns."""
        return 2 * -(-(self.keys // 16 * (self.size // 8)) // (self.threads // 8))

    @property
    def copies(self) -> int:
        """Of K and V, 16 bytes each, in the code: the first tile's and the next one's; once where nothing is ahead."""
        transposes = self.machine == "mma_sync"
        each = self.key_share + (self.key_share if transposes else self.value_share)
        ahead = not self.whole and (transposes or self.size < 160)
        return each * (1 + ahead)

    @property
    def ends(self) -> tuple[int, int]:
        """Loads of Q, and stores of Y, at the width of :meth:`end_width`."""
        if self.machine == "wmma_gfx11":
            return self.tiles * (2 * self.steps - self.half_step), self.tiles * self.steps
        if self.machine == "mma_sync":
            each = self.tiles * (4 * self.steps - 2 * self.half_step)
            return each, each
        return self.tiles * self.steps, self.tiles * self.steps

    @property
    def end_width(self) -> int:
        """Bits: a lane's neighbouring values in the machine's layout."""
        return {"mfma": 64, "mma_sync": 32}.get(self.machine, 128)

    @property
    def shared(self) -> int:
        """Bytes: K's rows of an odd number of 16-byte units; V's as K's, or transposed, two more every eight rows."""
        units = self.size // 8
        keys = self.keys * (units if units % 2 else units + 1) * 16
        pitch = self.keys // 8 if self.keys // 8 % 2 else self.keys // 8 + 1
        values = keys if self.machine == "mma_sync" else 2 * self.steps * (8 * pitch + 2) * 16
        buffers = 2 if self.machine == "mma_sync" and not self.whole else 1
        return buffers * (keys + values)


def tiling(architecture: str, name: str) -> Tiling | None:
    """None of a kernel that is none of the matrix kernels."""
    found = re.fullmatch(r"attention_f16_(\d+)_q(\d)_(?:k(\d+)_s(\d+)|whole)", name)
    if not found:
        return None
    size, tiles, keys, step = (int(part) if part else WHOLE for part in found.groups())
    return Tiling(machine_of(architecture), size, tiles, keys, step, not found[3])


def matrix_kernels(path: Path) -> list[tuple[str, Tiling]]:
    found = [(name, tiling(path.stem, name)) for name in kernels(path)]
    return [(name, each) for name, each in found if each]


OBJECTS = all_objects()


@pytest.fixture(params=OBJECTS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    """Of one architecture."""
    assert isinstance(request.param, Path)
    return request.param


def test_head_size_40_takes_three_steps_of_16() -> None:
    for architecture in ("gfx942", "gfx1100", "gfx1201"):
        each = tiling(architecture, "attention_f16_40_q1_k64_s64")
        assert each
        assert [half.total() for half in each.products] == [4 * 3, 4 * 3]
    on_nvidia = tiling("sm_90", "attention_f16_40_q1_k64_s64")
    assert on_nvidia
    # As 2.5 steps: 2.5 x 2 x 4 = 20 of 16 in depth, those of the scores' last half step 8 deep.
    assert on_nvidia.products == (Counter({"HMMA.16": 16, "HMMA.8": 8}), Counter({"HMMA.16": 20}))


def copies_of(counts: Counter[str], each: Tiling) -> tuple[int, int]:
    """How often the products of the scores and of the sums stand in the code."""
    scores, sums = each.products
    # gfx90a's assembler calls it ...16x16x16f16.
    named = {re.sub(r"(?<=x16)f16", "_f16", name): n for name, n in counts.items() if PRODUCT.match(name)}
    found = Counter(named)
    for copies in ((1, 1), (2, 1), (1, 2), (2, 2)):
        wanted: Counter[str] = Counter()
        for half, times in zip((scores, sums), copies, strict=True):
            wanted.update({name: n * times for name, n in half.items()})
        if found == wanted:
            return copies
    raise AssertionError(f"{dict(found)} are not the products {dict(scores)} and {dict(sums)}, once or twice each")


def test_matrix_instructions_are_those_of_the_tiling(path: Path) -> None:
    assert len(matrix_kernels(path)) >= 12
    for name, each in matrix_kernels(path):
        copies = copies_of(instructions(path)[name], each)
        # Nothing is taken out of a loop over queries that has all keys at hand; ptxas may take out its first round.
        assert copies == (1, 1) or not each.whole or path.suffix == ".cubin", name


def test_fragments_are_read_from_shared_memory_in_one_access(path: Path) -> None:
    if path.suffix == ".cubin":
        return  # ldmatrix: its widths are in the source
    for name, each in matrix_kernels(path):
        counts = instructions(path)[name]
        scores, sums = (n * k for n, k in zip(each.fragments, copies_of(counts, each), strict=True))
        if each.machine == "mfma":  # two of 8 bytes may be one instruction; 2 x 4 bytes where rows are 8-byte aligned
            found = 2 * counts["ds_read2_b64"] + 2 * counts["ds_read2st64_b64"] + counts["ds_read_b64"]
            found += counts["ds_read2_b32"]
        else:
            found = counts["ds_load_b128"]
        assert found == scores + sums, (name, counts)
        assert not {n for n in counts if re.match(r"ds_(read|load)_(u8|i8|u16|i16|b32)", n)}, (name, counts)


def test_global_memory_is_moved_as_wide_as_lanes_have_neighbours(path: Path) -> None:
    """K and V by 16 bytes; Q and Y by what the machine's layout leaves side by side in a lane. Nothing else."""
    for name, each in matrix_kernels(path):
        loads, stores = each.ends
        bits = each.end_width
        if path.suffix == ".cubin":
            wanted = Counter({"LDGSTS.128": each.copies, f"LDG.{bits}": loads, f"STG.{bits}": stores})
        else:
            amd = {64: "dwordx2", 128: "dwordx4"} if each.machine == "mfma" else {128: "b128"}
            wanted = Counter({f"global_load_{amd[128]}": each.copies})
            wanted.update({f"global_load_{amd[bits]}": loads, f"global_store_{amd[bits]}": stores})
        found = Counter({n: k for n, k in moves(instructions(path)[name]).items() if not n.startswith(("STL", "LDL"))})
        assert found == wanted, (path.name, name)


def test_shared_memory_is_that_of_the_layout(path: Path) -> None:
    for name, each in matrix_kernels(path):
        assert kernels(path)[name].shared == each.shared, name
        assert each.shared < 48 << 10, name
