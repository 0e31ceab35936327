"""Exchanges between lanes: with every lane on in the kernels' machine code, and in one file of their source."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from kernel_report import llvm
from support import native
from support.exec_gate import EXCHANGE, exchanges, parse
from support.machine_code import disassembly, instructions, objects

BUILTIN = re.compile(
    r"__builtin_amdgcn_\w*?(permlane|permute|swizzle|dpp|readlane|writelane|readfirstlane|ballot|wmma|mfma|smfmac|bpermute)"
)
"""Of what lanes read of each other; ``__builtin_amdgcn_perm`` permutes a lane's own bytes."""


def wave_of(architecture: str) -> int:
    return 64 if architecture.startswith("gfx9") else 32


def test_every_lane_takes_part_in_every_exchange() -> None:
    """And each is seen as often as it stands in the code: what cannot be reached is not proven."""
    for path in objects("*.hsaco"):
        seen = 0
        for name, body in disassembly(path).items():
            for instruction, proven in exchanges(parse(body), wave_of(path.stem)):
                assert proven, (path.stem, name, str(instruction))
                seen += 1
        counts = sum(instructions(path).values(), Counter[str]())
        assert seen == sum(count for each, count in counts.items() if EXCHANGE.match(each)) > 0, path.stem


def test_no_exchange_has_another_name() -> None:
    """What moves between lanes by the modifiers of an instruction (LLVM's syntax of DPP) is called so by its name."""
    modifiers = re.compile(r"^\t(\w+) .*\b(?:quad_perm|dpp8|row_\w+|wave_\w+|bank_mask|bound_ctrl)\b", re.MULTILINE)
    for path in objects("*.hsaco"):
        for name, body in disassembly(path).items():
            assert all(EXCHANGE.match(each) for each in modifiers.findall(body)), (path.stem, name)


def test_exchanges_are_written_in_one_file() -> None:
    """device/amd_lanes.h, which says how a compiler is kept from moving them."""
    sources = [path for path in native.SOURCE.rglob("*") if path.suffix in {".h", ".cpp"}]
    assert [path.name for path in sources if BUILTIN.search(path.read_text())] == ["amd_lanes.h"]


def refused(tmp_path: Path, architecture: str, source: str) -> list[str]:
    """Names of the exchanges of an assembled kernel for which it is not proven that every lane takes part."""
    path = tmp_path / f"{hash(source)}.o"
    command = [llvm("llvm-mc"), "-triple=amdgcn-amd-amdhsa", f"-mcpu={architecture}", "-filetype=obj", "-o", str(path)]
    subprocess.run(command, input=f"kernel:\n{source}\ns_endpgm\n", text=True, check=True)
    found = exchanges(parse(disassembly(path)["kernel"]), wave_of(architecture))
    assert found
    return [instruction.name for instruction, proven in found if not proven]


PERMUTE = "v_permlanex16_b32 v1, v1, s0, s1"
NARROW = "s_and_saveexec_b32 s2, vcc_lo"
AGAIN = "s_or_b32 exec_lo, exec_lo, s2"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ([PERMUTE], 0),
        ([NARROW, PERMUTE], 1),
        ([NARROW, AGAIN, PERMUTE], 0),
        ([NARROW, "s_cbranch_execz .Lafter", "v_mov_b32 v1, 0", ".Lafter:", AGAIN, PERMUTE], 0),
        ([NARROW, "s_cbranch_execz .Lafter", PERMUTE, ".Lafter:", AGAIN], 1),
        # What was saved is overwritten, or the wrong register.
        ([NARROW, "s_mov_b32 s2, s9", AGAIN, PERMUTE], 1),
        ([NARROW, "s_load_b64 s[2:3], s[4:5], 0x0", AGAIN, PERMUTE], 1),
        ([NARROW, "v_readfirstlane_b32 s2, v0", AGAIN, PERMUTE], 1),
        ([NARROW, "s_or_b32 exec_lo, exec_lo, s3", PERMUTE], 1),
        ([NARROW, "s_mov_b32 exec_lo, s2", PERMUTE], 0),
        ([NARROW, "s_mov_b32 exec_lo, -1", PERMUTE], 0),
        ([NARROW, "s_mov_b32 exec_lo, 0xffff", PERMUTE], 1),
        # A comparison that writes EXEC.
        (["s_mov_b32 s2, exec_lo", "v_cmpx_gt_u32_e32 16, v0", PERMUTE, AGAIN], 1),
        (["s_mov_b32 s2, exec_lo", "v_cmpx_gt_u32_e32 16, v0", AGAIN, PERMUTE], 0),
        # One branch in another: the inner one's end is not the outer one's.
        ([NARROW, "s_and_saveexec_b32 s3, s4", "s_or_b32 exec_lo, exec_lo, s3", PERMUTE, AGAIN, PERMUTE], 1),
        # The two sides of a branch; then as compilers swap the masks.
        ([NARROW, "s_xor_b32 exec_lo, exec_lo, s2", PERMUTE, AGAIN, PERMUTE], 1),
        ([NARROW, "s_xor_b32 s2, exec_lo, s2", "s_and_not1_saveexec_b32 s2, s2", PERMUTE, AGAIN, PERMUTE], 1),
        ([NARROW, "s_xor_b32 s2, exec_lo, s2", "s_or_saveexec_b32 s2, s2", PERMUTE], 0),
        # A branch that the whole wave takes.
        (["s_cbranch_scc1 .Lover", PERMUTE, ".Lover:", PERMUTE], 0),
        # EXEC is narrow by one of the two ways.
        (["s_cbranch_scc1 .Lover", NARROW, ".Lover:", PERMUTE], 1),
        (["s_cbranch_scc1 .Lover", NARROW, AGAIN, ".Lover:", PERMUTE], 0),
        # Two ways that do not meet again.
        (["s_cbranch_scc1 .Lover", NARROW, "s_endpgm", ".Lover:", PERMUTE], 0),
        ([NARROW, "s_cbranch_scc1 .Lover", AGAIN, "s_endpgm", ".Lover:", PERMUTE], 1),
    ],
)
def test_branches(tmp_path: Path, source: list[str], count: int) -> None:
    assert refused(tmp_path, "gfx1100", "\n".join(source)) == count * ["v_permlanex16_b32"]


LOOP = """
s_mov_b32 s2, 0
.Lagain:
v_add_nc_u32 v0, 1, v0
{inside}
v_cmp_gt_u32 vcc_lo, v0, v2
s_or_b32 s2, vcc_lo, s2
s_and_not1_b32 exec_lo, exec_lo, s2
s_cbranch_execnz .Lagain
{after}
s_or_b32 exec_lo, exec_lo, s2
{end}
"""


@pytest.mark.parametrize(("place", "count"), [("inside", 1), ("after", 1), ("end", 0)])
def test_a_loop_that_lanes_leave(tmp_path: Path, place: str, count: int) -> None:
    lines = {"inside": "", "after": "", "end": ""} | {place: PERMUTE}
    assert refused(tmp_path, "gfx1100", LOOP.format(**lines)) == count * ["v_permlanex16_b32"]


@pytest.mark.parametrize(("step", "count"), [("s_mov_b32 s2, 0", 0), ("", 1)])
def test_a_loop_in_a_loop(tmp_path: Path, step: str, count: int) -> None:
    """The inner one's mask has to be empty whenever it begins."""
    inner = LOOP.replace(".Lagain", ".Linner").replace("s_mov_b32 s2, 0", step).format(inside="", after="", end="")
    source = LOOP.replace("s2", "s3").format(inside=inner, after="", end=PERMUTE)
    assert refused(tmp_path, "gfx1100", source) == count * ["v_permlanex16_b32"]


def test_a_loop_that_the_whole_wave_leaves(tmp_path: Path) -> None:
    source = f"s_nop 0\n.Lagain:\n{NARROW}\n{AGAIN}\n{PERMUTE}\ns_sub_i32 s9, s9, 1\ns_cbranch_scc1 .Lagain"
    assert not refused(tmp_path, "gfx1100", source)
    assert refused(tmp_path, "gfx1100", source.replace(AGAIN, ""))


@pytest.mark.parametrize(
    ("architecture", "exchange"),
    [
        ("gfx90a", "v_add_f32_dpp v1, v1, v1 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf bound_ctrl:1"),
        ("gfx90a", "ds_swizzle_b32 v1, v1 offset:swizzle(SWAP,16)"),
        ("gfx90a", "ds_bpermute_b32 v1, v2, v1"),
        ("gfx90a", "v_mfma_f32_16x16x16f16 v[0:3], v[4:5], v[6:7], v[0:3]"),
        ("gfx90a", "v_readlane_b32 s9, v1, 3"),
        ("gfx1100", "v_mov_b32_dpp v1, v1 row_xmask:1 row_mask:0xf bank_mask:0xf bound_ctrl:1"),
        ("gfx1100", "v_mov_b32_dpp v1, v1 dpp8:[1,0,3,2,5,4,7,6]"),
        ("gfx1100", "v_permlane64_b32 v1, v1"),
        ("gfx1100", "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]"),
        ("gfx1200", "v_permlane16_var_b32 v1, v1, v2"),
        ("gfx1200", "v_wmma_f32_16x16x16_f16 v[0:7], v[8:11], v[16:19], v[0:7]"),
    ],
)
def test_instructions(tmp_path: Path, architecture: str, exchange: str) -> None:
    """All lanes take part; lanes 0 to 15 do, as in the attention of clang 19 for RDNA 3; all do again."""
    half = {"gfx9": "v_cmp_gt_u32 vcc, 16, v0\ns_and_saveexec_b64 s[2:3], vcc"}.get(
        architecture[:4], "s_mov_b32 s2, exec_lo\nv_cmpx_gt_u32_e32 16, v0"
    )
    whole = {"gfx9": "s_or_b64 exec, exec, s[2:3]"}.get(architecture[:4], AGAIN)
    name = exchange.split()[0]
    assert refused(tmp_path, architecture, "\n".join([exchange, half, exchange, whole, exchange])) == [name]


@pytest.mark.parametrize("flow", ["s_setpc_b64 s[4:5]", "s_swappc_b64 s[4:5], s[6:7]"])
def test_code_that_cannot_be_followed_is_told(tmp_path: Path, flow: str) -> None:
    with pytest.raises(ValueError, match="calls or returns"):
        refused(tmp_path, "gfx90a", f"ds_bpermute_b32 v1, v2, v1\n{flow}")
