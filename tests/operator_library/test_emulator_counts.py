"""The emulator's counts: programs whose instructions, bank conflicts and cache lines are known."""

from __future__ import annotations

import sys

import numpy as np
import pytest

if sys.version_info < (3, 11):
    pytest.skip("tinygrad's tables need Python 3.11", allow_module_level=True)

from support import emulated, machine_code_cases
from support.assembled import ALL, CDNA, assemble, launch, wave_of
from support.emulator.counts import Counter, Counts, class_of, counts_of

ARGUMENTS = "s_waitcnt lgkmcnt(0)", "s_wait_kmcnt 0x0"
LOADS = "s_waitcnt vmcnt(0)", "s_wait_loadcnt 0x0"
"""Waits until there are none under way: before gfx12, and since."""

ON_ALL = pytest.mark.parametrize("arch", ALL)
ON_BOTH = pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])


def counted(arch: str, body: str, waves: int = 1, blocks: int = 1, chosen: range | None = None) -> Counter:
    """What a program does; its source lies at a multiple of 256."""
    room = np.zeros(1 << 14, np.uint8)
    start = -room.ctypes.data % 256
    counter, result = Counter(arch), np.zeros(blocks, np.uint32)
    program = assemble(arch, body, lds=1 << 15)
    threads = waves * wave_of(arch)
    source = room[start : start + (1 << 13)]
    launch(program, source, result, threads=threads, blocks=blocks, chosen=chosen, counter=counter)
    return counter


@ON_ALL
def test_instructions_by_class(arch: str) -> None:
    """A loop of five turns, in two waves; s_load, its wait and s_endpgm stand around it."""
    last = {"gfx90a": "f16 v[8:11], v[2:3], v[4:5], 0", "gfx942": "_f16 v[8:11], v[2:3], v[4:5], 0"}
    last |= {"gfx1100": "_f16 v[32:39], v[8:15], v[8:15], 0", "gfx1200": "_f16 v[32:39], v[8:11], v[8:11], 0"}
    barrier = "s_barrier_signal -1\ns_barrier_wait -1" if arch == "gfx1200" else "s_barrier"
    zeros = "\n".join(f"v_mov_b32 v{n}, 0" for n in range(8, 16))  # of which gfx11 wants two copies
    body = f"""
    {ARGUMENTS[arch == "gfx1200"]}
    {zeros}
    v_lshlrev_b32 v1, 2, v0
    s_mov_b32 s20, 5
    .Lturn:
    v_exp_f32 v6, v7
    v_rcp_f32 v6, v7
    v_cvt_f16_f32 v7, v6
    v_{"mfma" if arch in CDNA else "wmma"}_f32_16x16x16{last[arch]}
    ds_write_b32 v1, v6
    ds_swizzle_b32 v6, v6 offset:0x401f
    global_load_dword v12, v1, s[4:5]
    {LOADS[arch == "gfx1200"]}
    s_sub_u32 s20, s20, 1
    s_cmp_lg_u32 s20, 0
    s_cbranch_scc1 .Lturn
    {barrier}
    s_nop 0
    """
    found = counts_of(counted(arch, body, waves=2).program)
    turns = 2 * 5
    lines = -(-wave_of(arch) * 4 // (64 if arch == "gfx90a" else 128))
    expected = Counts(
        vector=2 * (1 + 8) + turns,
        transcendental=2 * turns,
        matrix=turns,
        shared=turns,
        lanes=turns,
        access=turns,
        scalar=2 * (1 + 3 * 5 + 1),
        scalar_memory=2,
        waits=2 + turns,
        drains=turns,
        barriers=2 * (2 if arch == "gfx1200" else 1),
        hints=2,
        conversions=turns,
        shared_cycles=turns * wave_of(arch) // 32,
        shared_least=turns * wave_of(arch) // 32,
        lines=turns * lines,
        least_lines=turns * lines,
        bytes=turns * 4 * wave_of(arch),
    )
    assert found == expected


@pytest.mark.parametrize("arch", ["gfx1100"])
def test_two_instructions_at_once(arch: str) -> None:
    body = "v_dual_add_f32 v1, v2, v3 :: v_dual_mov_b32 v4, v5\nv_add_f32 v1, v2, v3"
    found = counts_of(counted(arch, body).program)
    assert (found.vector, found.dual) == (2, 1)


READS = {4: "ds_read_b32 v10, v1", 8: "ds_read_b64 v[10:11], v1", 16: "ds_read_b128 v[12:15], v1"}
WRITES = {4: "ds_write_b32 v1, v10", 8: "ds_write_b64 v1, v[10:11]", 16: "ds_write_b128 v1, v[12:15]"}


def clocks(arch: str, address: str, access: str) -> tuple[int, int]:
    """That LDS takes for an access of a wave, and the least; ``address`` leaves a lane's in v1."""
    found = counts_of(counted(arch, f"{address}\n{access}").program)
    return found.shared_cycles, found.shared_least


@ON_BOTH
@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("accesses", [READS, WRITES], ids=["read", "write"])
def test_neighbours_take_every_bank_once(arch: str, width: int, accesses: dict[int, str]) -> None:
    least = wave_of(arch) * width // 128
    assert clocks(arch, f"v_mul_u32_u24 v1, {width}, v0", accesses[width]) == (least, least)


@ON_BOTH
@pytest.mark.parametrize(("words", "times"), [(2, 2), (4, 4), (3, 1), (32, 32), (33, 1), (0, 1)])
def test_words_of_one_bank_wait(arch: str, words: int, times: int) -> None:
    """Lanes a stride of words apart; of no stride, all want the same word."""
    least = wave_of(arch) // 32
    assert clocks(arch, f"v_mul_u32_u24 v1, {4 * words}, v0", READS[4]) == (least * times, least)


@ON_ALL
def test_both_addresses_of_an_access_are_served(arch: str) -> None:
    """The second one a row of 64 words further; both are eight bytes wide."""
    least = 2 * wave_of(arch) * 8 // 128
    access = "ds_read2st64_b64 v[10:13], v1 offset0:0 offset1:1"
    assert clocks(arch, "v_mul_u32_u24 v1, 8, v0", access) == (least, least)
    assert clocks(arch, "v_mul_u32_u24 v1, 16, v0", access) == (2 * least, least)


@pytest.mark.parametrize(("pitch", "times"), [(96, 1), (80, 2), (128, 4)])
def test_phases_of_wide_reads_on_cdna(pitch: int, times: int) -> None:
    """Lane l reads unit l / 16 of row l % 16: rows 0 to 3 of one unit together with rows 4 to 7 of the next."""
    row, unit = f"v_and_b32 v2, 15, v0\nv_mul_u32_u24 v1, {pitch}, v2", "v_lshrrev_b32 v2, 4, v0"
    address = f"{row}\n{unit}\nv_lshl_add_u32 v1, v2, 4, v1"
    assert clocks("gfx942", address, READS[16]) == (8 * times, 8)


@ON_ALL
@pytest.mark.parametrize(
    ("stride", "offset", "more"), [(16, 0, 0), (16, 8, 1), (128, 0, None)], ids=["together", "across", "apart"]
)
def test_cache_lines(arch: str, stride: int, offset: int, more: int | None) -> None:
    """Of a load of 16 bytes a lane: ``more`` than the least, or one for each lane."""
    line = 64 if arch == "gfx90a" else 128
    load = f"global_load_dwordx4 v[12:15], v1, s[4:5] offset:{offset}"
    counter = counted(arch, f"{ARGUMENTS[arch == 'gfx1200']}\nv_mul_u32_u24 v1, {stride}, v0\n{load}")
    found, touched = counts_of(counter.program), counter.touched
    wave = wave_of(arch)
    least = 16 * wave // line
    lines = wave if more is None else least + more
    assert (found.lines, found.least_lines, found.bytes) == (lines, least, 16 * wave)
    assert (touched[0].read, touched[0].written, touched[1].read) == (found.lines * line, 0, 0)


@ON_ALL
def test_only_the_chosen_blocks_run_and_each_counts_its_lines(arch: str) -> None:
    body = f"{ARGUMENTS[arch == 'gfx1200']}\nv_mov_b32 v1, 0\n" + "global_load_dword v12, v1, s[4:5]\n" * 2
    counter = counted(arch, body, blocks=5, chosen=range(1, 3))
    assert counts_of(counter.program).access == 4
    assert counter.touched[0].read == 2 * counter.line


def test_an_instruction_of_no_class_is_refused() -> None:
    with pytest.raises(ValueError, match="TBUFFER_LOAD"):
        class_of("TBUFFER_LOAD_FORMAT_X")


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("size", [40, 64, 80])
def test_attention_meets_no_bank_twice(arch: str, size: int) -> None:
    """While keys and values are staged and read; of rows of ten units, some wait when they are written."""
    kernel = f"attention_f16_{size}_q1_k64_s64"
    [target] = [each for each in emulated.targets() if each.architecture == arch]
    [case] = [each for each in machine_code_cases.attention_matrix_cases(target) if each.kernel == kernel]
    bound, counter = case.problem.bind(target), Counter(arch)
    for launch_ in case.launches(bound):
        target.object.run(*launch_, memory=bound.ranges(), seed=1, blocks=range(1), counter=counter)
    waits = {line.name for line in counter.program if line.cycles > line.least_cycles}
    assert sum(line.cycles for line in counter.program) > 0
    assert not waits if size != 80 else all("WRITE" in name or "STORE" in name for name in waits)
