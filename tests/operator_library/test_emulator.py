"""The emulator of AMD machine code: single instructions, assembled here, against independent computations."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from support import machine_code, native

if sys.version_info < (3, 11):
    pytest.skip("tinygrad's tables need Python 3.11", allow_module_level=True)

from support.assembled import ALL, CDNA, RDNA, SOURCE, assemble, build, launch, wave_of
from support.emulator import CodeObject, EmulationError, code_object, core, decode, translate

Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]

ON_ALL = pytest.mark.parametrize("arch", ALL)
ON_CDNA = pytest.mark.parametrize("arch", CDNA)
ON_RDNA = pytest.mark.parametrize("arch", RDNA)


def lanes(
    arch: str, code: str, inputs: Sequence[npt.ArrayLike], outputs: int = 1, seed: int = 1, blocks: int = 1
) -> Words:
    """What ``code`` leaves in v[20], v[21], ... of each lane, which finds its words of ``inputs`` in v[10], v[11], ...

    v[0] is the lane; s[20:27] are free. Returns (outputs, lanes of all blocks).
    """
    rows = np.stack([np.ascontiguousarray(row).view(np.uint32) for row in inputs])
    count = wave_of(arch) * blocks
    assert rows.shape[1] == count
    source, result = np.ascontiguousarray(rows.T), np.zeros((count, outputs), np.uint32)
    block = "ttmp9" if arch == "gfx1200" else "s2"
    body = [f"v_mov_b32 v1, {block}", f"v_mul_u32_u24 v1, {wave_of(arch)}, v1", f"{_add(arch)} v1, v1, v0"]
    body += [f"v_mul_u32_u24 v2, {4 * len(rows)}, v1", f"v_mul_u32_u24 v3, {4 * outputs}, v1"]
    body += [f"global_load_dword v{10 + i}, v2, s[4:5] offset:{4 * i}" for i in range(len(rows))]
    everybody = "exec" if arch in CDNA else "exec_lo"
    body += [code, f"s_mov_b{wave_of(arch)} {everybody}, -1"]
    body += [f"global_store_dword v3, v{20 + i}, s[6:7] offset:{4 * i}" for i in range(outputs)]
    launch(assemble(arch, "\n".join(body)), source, result, blocks=blocks, seed=seed)
    return np.ascontiguousarray(result.T)


def _add(arch: str) -> str:
    return "v_add_u32" if arch in CDNA else "v_add_nc_u32"


def only(arch: str, mask: int) -> str:
    """Narrows EXEC."""
    if arch in CDNA:
        return f"s_mov_b32 exec_lo, {mask & 0xFFFFFFFF:#x}\ns_mov_b32 exec_hi, {mask >> 32:#x}"
    return f"s_mov_b32 exec_lo, {mask & 0xFFFFFFFF:#x}"


def numbered(arch: str, start: int = 1000) -> Words:
    return np.arange(start, start + wave_of(arch), dtype=np.uint32)


def bits_of(arch: str, mask: int) -> npt.NDArray[np.bool_]:
    return np.array([mask >> lane & 1 for lane in range(wave_of(arch))], dtype=bool)


# Moves between lanes -------------------------------------------------------------------------------------------------


@ON_RDNA
@pytest.mark.parametrize("mask", [1, 5, 8, 15])
def test_dpp_row_xmask(arch: str, mask: int) -> None:
    code = f"v_mov_b32 v20, v11\nv_mov_b32_dpp v20, v10 row_xmask:{mask} row_mask:0xf bank_mask:0xf"
    values, old = numbered(arch), numbered(arch, 7)
    assert np.array_equal(lanes(arch, code, [values, old])[0], values[np.arange(32) ^ mask])


@ON_ALL
@pytest.mark.parametrize("bound_control", [False, True])
def test_dpp_reads_no_inactive_lane(arch: str, bound_control: bool) -> None:
    """Quads' lanes 0 and 1 change places; of each quad lanes 1 to 3 are active."""
    active = int("1110" * (wave_of(arch) // 4), 2)
    suffix = " bound_ctrl:1" if bound_control else ""
    code = f"v_mov_b32 v20, v11\n{only(arch, active)}\n"
    code += f"v_mov_b32_dpp v20, v10 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf{suffix}"
    values, old = numbered(arch), numbered(arch, 7)
    expected = values.copy().reshape(-1, 4)[:, [1, 0, 3, 2]].ravel()
    lane = np.arange(wave_of(arch)) % 4
    expected[lane == 0] = old[lane == 0]  # not active
    expected[lane == 1] = 0 if bound_control else old[lane == 1]  # its source is not
    assert np.array_equal(lanes(arch, code, [values, old])[0], expected)


@ON_ALL
def test_dpp_row_shift_and_masks(arch: str) -> None:
    """Rows are shifted by three; only row 1 and banks 0, 1 and 3 of it are written."""
    code = "v_mov_b32 v20, v11\nv_mov_b32_dpp v20, v10 row_shr:3 row_mask:0x2 bank_mask:0xb"
    values, old = numbered(arch), numbered(arch, 7)
    expected = old.copy()
    for lane in range(16, 32):
        if (lane // 4) % 4 != 2 and lane % 16 >= 3:
            expected[lane] = values[lane - 3]
    assert np.array_equal(lanes(arch, code, [values, old])[0], expected)


@ON_ALL
def test_ds_swizzle(arch: str) -> None:
    values = numbered(arch)
    lane = np.arange(wave_of(arch))
    code = "ds_swizzle_b32 v20, v10 offset:0x401f\nds_swizzle_b32 v21, v10 offset:swizzle(QUAD_PERM,3,2,1,0)\n"
    code += "ds_swizzle_b32 v22, v10 offset:swizzle(BROADCAST,8,2)"
    found = lanes(arch, code, [values], outputs=3)
    assert np.array_equal(found[0], values[lane ^ 16])
    assert np.array_equal(found[1], values[lane ^ 3])
    assert np.array_equal(found[2], values[(lane & ~7) + 2])


@ON_ALL
def test_ds_swizzle_of_an_inactive_lane_is_zero(arch: str) -> None:
    active = int("01" * (wave_of(arch) // 2), 2)
    code = f"v_mov_b32 v20, v11\n{only(arch, active)}\nds_swizzle_b32 v20, v10 offset:swizzle(SWAP,1)"
    values, old = numbered(arch), numbered(arch, 7)
    expected = np.where(bits_of(arch, active), 0, old)
    assert np.array_equal(lanes(arch, code, [values, old])[0], expected)


@ON_ALL
def test_ds_bpermute(arch: str) -> None:
    wave = wave_of(arch)
    values, old = numbered(arch), numbered(arch, 7)
    source = np.random.default_rng(1).permutation(wave).astype(np.uint32)
    active = 0x5F3A_99C5_0FF0_31E7 & (1 << wave) - 1
    code = f"v_mov_b32 v20, v12\n{only(arch, active)}\nds_bpermute_b32 v20, v11, v10"
    expected = np.where(bits_of(arch, active)[source], values[source], 0)
    expected = np.where(bits_of(arch, active), expected, old)
    assert np.array_equal(lanes(arch, code, [values, source * 4, old])[0], expected)


@pytest.mark.parametrize(("modifier", "inactive"), [("", "old"), (" op_sel:[1,0]", "value"), (" op_sel:[0,1]", "zero")])
@ON_RDNA
def test_permlanex16_under_a_narrow_exec(arch: str, modifier: str, inactive: str) -> None:
    """Lanes 0 to 15 are active and read lanes 16 to 31 in reverse, which are not: what MachineSink makes of it."""
    code = f"v_mov_b32 v20, v11\ns_mov_b32 s20, 0x89abcdef\ns_mov_b32 s21, 0x01234567\n{only(arch, 0xFFFF)}\n"
    code += f"v_permlanex16_b32 v20, v10, s20, s21{modifier}"
    values, old = numbered(arch), numbered(arch, 7)
    read = {"old": old[:16], "value": values[31:15:-1], "zero": np.zeros(16, np.uint32)}[inactive]
    assert np.array_equal(lanes(arch, code, [values, old])[0], np.concatenate([read, old[16:]]))


@ON_RDNA
def test_permlane16_and_permlanex16(arch: str) -> None:
    pick = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
    words = [sum(lane << 4 * i for i, lane in enumerate(pick[half : half + 8])) for half in (0, 8)]
    code = f"s_mov_b32 s20, {words[0]:#x}\ns_mov_b32 s21, {words[1]:#x}\n"
    code += "v_permlane16_b32 v20, v10, s20, s21\nv_permlanex16_b32 v21, v10, s20, s21"
    values = numbered(arch)
    own = np.array([lane // 16 * 16 + pick[lane % 16] for lane in range(32)])
    found = lanes(arch, code, [values], outputs=2)
    assert np.array_equal(found[0], values[own])
    assert np.array_equal(found[1], values[own ^ 16])


@ON_ALL
def test_readfirstlane(arch: str) -> None:
    code = (
        f"{only(arch, 0xF0)}\nv_readfirstlane_b32 s20, v10\n{only(arch, (1 << wave_of(arch)) - 1)}\nv_mov_b32 v20, s20"
    )
    values = numbered(arch)
    assert (lanes(arch, code, [values])[0] == values[4]).all()


# Arithmetic ----------------------------------------------------------------------------------------------------------


def hard_floats(count: int) -> Floats:
    """Random bit patterns (no NaN), small and common values, and those around a half's limits."""
    r = np.random.default_rng(3)
    values = r.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)
    values[::3] = r.standard_normal(len(values[::3])).astype(np.float32) * np.float32(2.0) ** r.integers(
        -28, 18, len(values[::3])
    ).astype(np.float32)
    halves = r.integers(0, 0x7C00, len(values[1::3]), dtype=np.uint16).view(np.float16).astype(np.float32)
    step = np.spacing(halves.astype(np.float16)).astype(np.float32)
    values[1::3] = halves + step * r.choice(np.array([0, 0.5, 0.25], np.float32), len(halves))  # ties
    return np.where(np.isnan(values), np.float32(0), values)


@ON_ALL
def test_conversions_of_halves(arch: str) -> None:
    """All halves that are numbers, and floats that must be rounded to halves, subnormal ones and ties among them."""
    blocks = 64
    count = wave_of(arch) * blocks
    floats = hard_floats(count)
    halves = np.resize(np.arange(0, 0x7C01, 1 if arch in CDNA else 7, dtype=np.uint32), count)
    code = "v_mov_b32 v20, 0\nv_cvt_f16_f32 v20, v10\nv_cvt_f32_f16 v21, v11"
    found = lanes(arch, code, [floats, halves], outputs=2, blocks=blocks)
    with np.errstate(over="ignore"):
        expected = floats.astype(np.float16)
    assert np.array_equal(found[0], expected.view(np.uint16))
    assert np.array_equal(found[1].view(np.float32), halves.astype(np.uint16).view(np.float16).astype(np.float32))


@ON_ALL
def test_what_a_half_leaves_of_its_register(arch: str) -> None:
    """The other half is cleared on CDNA and kept on RDNA; fma_mix keeps it everywhere."""
    ones = np.full(wave_of(arch), 1.0, np.float32)
    old = np.full(wave_of(arch), 0xABCDEF12, np.uint32)
    code = "v_mov_b32 v20, v11\nv_cvt_f16_f32 v20, v10\nv_mov_b32 v21, v11\nv_fma_mixlo_f16 v21, v10, v10, v10\n"
    code += "v_mov_b32 v22, v11\nv_fma_mixhi_f16 v22, v10, v10, v10"
    found = lanes(arch, code, [ones, old], outputs=3)
    assert (found[0] == (0x3C00 if arch in CDNA else 0xABCD3C00)).all()
    assert (found[1] == 0xABCD4000).all()
    assert (found[2] == 0x4000EF12).all()


@ON_ALL
def test_fma_mix(arch: str) -> None:
    r = np.random.default_rng(4)
    wave = wave_of(arch)
    a, b = (r.standard_normal((wave, 2)).astype(np.float16) for _ in range(2))
    c = r.standard_normal(wave).astype(np.float32)
    code = "v_fma_mix_f32 v20, v10, -v11, v12 op_sel:[1,0,0] op_sel_hi:[1,1,0]\nv_mov_b32 v21, 0\n"
    code += "v_fma_mixhi_f16 v21, |v10|, v11, v12 op_sel:[0,1,0] op_sel_hi:[1,1,0]"
    found = lanes(arch, code, [a.view(np.uint32).ravel(), b.view(np.uint32).ravel(), c], outputs=2)
    exact = [a[:, 1].astype(np.float64) * -b[:, 0] + c, abs(a[:, 0].astype(np.float64)) * b[:, 1] + c]
    assert np.array_equal(found[0].view(np.float32), exact[0].astype(np.float32))
    assert np.array_equal(found[1] >> 16, exact[1].astype(np.float32).astype(np.float16).view(np.uint16))


DIVISION = """
v_div_scale_f32 v30, {ignored}, v11, v11, v10
v_div_scale_f32 v31, vcc{lo}, v10, v11, v10
v_rcp_f32 v32, v30
v_fma_f32 v33, -v30, v32, 1.0
v_fma_f32 v32, v33, v32, v32
v_mul_f32 v34, v31, v32
v_fma_f32 v33, -v30, v34, v31
v_fma_f32 v34, v33, v32, v34
v_fma_f32 v33, -v30, v34, v31
v_div_fmas_f32 v34, v33, v32, v34
v_div_fixup_f32 v20, v34, v11, v10
"""


@ON_ALL
def test_division(arch: str) -> None:
    """LLVM's sequence gives the IEEE quotient, of any two numbers but those with a subnormal quotient: to one step."""
    blocks = 64
    count = wave_of(arch) * blocks
    r = np.random.default_rng(5)
    a, b = (r.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32).copy() for _ in range(2))
    with np.errstate(all="ignore"):
        b[::2] = a[::2] * r.uniform(0.1, 10, len(a[::2])).astype(np.float32)  # as they usually are
    special = np.array([0, -0.0, np.inf, -np.inf, 1e-45, 3.4e38, 1, 1e-38], np.float32)
    a[:64], b[:64] = np.repeat(special, 8), np.tile(special, 8)
    lo, ignored = ("", "s[20:21]") if arch in CDNA else ("_lo", "null")
    found = lanes(arch, DIVISION.format(lo=lo, ignored=ignored), [a, b], blocks=blocks)[0].view(np.float32)
    with np.errstate(all="ignore"):
        expected = a / b
    normal = (abs(expected) >= np.float32(2.0**-126)) | (expected == 0) | np.isnan(expected)
    assert np.array_equal(found[normal], expected[normal], equal_nan=True)
    assert (~normal).any()
    assert abs(found[~normal].astype(np.float64) - expected[~normal]).max() <= 2.0**-149


@ON_ALL
def test_transcendental_functions_are_close(arch: str) -> None:
    x = np.exp(np.random.default_rng(6).uniform(-20, 20, wave_of(arch))).astype(np.float32)
    y = np.log2(x).astype(np.float32)
    code = "v_rcp_f32 v20, v10\nv_rsq_f32 v21, v10\nv_exp_f32 v22, v11\nv_sqrt_f32 v23, v10\nv_log_f32 v24, v10"
    found = lanes(arch, code, [x, y], outputs=5).view(np.float32)
    wide, power = x.astype(np.float64), np.exp2(y.astype(np.float64))
    for got, expected in zip(found, [1 / wide, wide**-0.5, power, wide**0.5, np.log2(wide)], strict=True):
        np.testing.assert_allclose(got, expected, rtol=2.0**-23)


@ON_ALL
def test_maximum_and_minimum(arch: str) -> None:
    """A number wins over a quiet NaN, and zeros have an order."""
    pairs = [(0.0, -0.0), (-0.0, 0.0), (1.0, np.nan), (np.nan, 1.0), (2.0, 3.0), (-np.inf, np.nan), (-1.0, -2.0)]
    a, b = (np.resize(np.array(column, np.float32), wave_of(arch)) for column in zip(*pairs, strict=True))
    names = ("v_max_num_f32", "v_min_num_f32") if arch == "gfx1200" else ("v_max_f32", "v_min_f32")
    found = lanes(arch, f"{names[0]} v20, v10, v11\n{names[1]} v21, v10, v11", [a, b], outputs=2).view(np.float32)
    most = np.resize(np.array([0.0, 0.0, 1.0, 1.0, 3.0, -np.inf, -1.0], np.float32), wave_of(arch))
    least = np.resize(np.array([-0.0, -0.0, 1.0, 1.0, 2.0, -np.inf, -2.0], np.float32), wave_of(arch))
    assert np.array_equal(found[0].view(np.uint32), most.view(np.uint32))
    assert np.array_equal(found[1].view(np.uint32), least.view(np.uint32))


@ON_ALL
def test_integers(arch: str) -> None:
    """64 bits with a carry, a product of 64 bits, a selection, bit fields, bytes."""
    r = np.random.default_rng(7)
    a, b, c, d = (r.integers(0, 1 << 32, wave_of(arch), dtype=np.uint32) for _ in range(4))
    vcc, carry = ("vcc", "v_addc_co_u32") if arch in CDNA else ("vcc_lo", "v_add_co_ci_u32")
    pair = "s[20:21]" if arch in CDNA else "s20"
    code = f"v_add_co_u32 v20, {vcc}, v10, v12\n{carry} v21, {vcc}, v11, v13, {vcc}\n"
    mad = "v_mad_co_u64_u32" if arch == "gfx1200" else "v_mad_u64_u32"
    code += f"{mad} v[22:23], {pair}, v10, v11, v[12:13]\nv_cmp_gt_i32 {pair}, v10, v11\n"
    code += f"v_cndmask_b32 v24, v12, v13, {pair}\nv_bfe_u32 v25, v10, 7, 13\nv_alignbit_b32 v26, v10, v11, 9\n"
    code += "v_mov_b32 v40, 0x0c050b02\nv_perm_b32 v27, v10, v11, v40\nv_mul_hi_u32 v28, v10, v11\n"
    code += f"v_not_b32 v29, v10\n{mad.replace('u64_u32', 'i64_i32')} v[30:31], {pair}, v10, v11, v[12:13]"
    found = lanes(arch, code, [a, b, c, d], outputs=12)
    low, high = (a.astype(np.uint64) | b.astype(np.uint64) << 32), (c.astype(np.uint64) | d.astype(np.uint64) << 32)
    total, product = low + high, a.astype(np.uint64) * b + high
    signed = a.view(np.int32).astype(np.int64) * b.view(np.int32) + high.view(np.int64)
    words = [x.view(np.uint32).reshape(-1, 2).T for x in (total, product, signed)]
    chosen = np.where(a.view(np.int32) > b.view(np.int32), d, c)
    aligned = ((a.astype(np.uint64) << 32 | b) >> 9).astype(np.uint32)
    sign = np.where(a >> 31, 0xFF, 0).astype(np.uint32)  # selector 11: of byte 7
    permuted = (b >> 16 & 0xFF) | sign << 8 | (a >> 8 & 0xFF) << 16
    high_product = ((a.astype(np.uint64) * b) >> 32).astype(np.uint32)
    expected = [*words[0], *words[1], chosen, a >> 7 & 0x1FFF, aligned, permuted, high_product, ~a, *words[2]]
    for n, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        assert np.array_equal(got, wanted), n


@ON_ALL
def test_scalar_integers(arch: str) -> None:
    """A sum with its carry, a signed product, shifts with their condition, a selection by it, a constant of 16 bits."""
    names = ("s_add_co_u32", "s_add_co_ci_u32") if arch == "gfx1200" else ("s_add_u32", "s_addc_u32")
    code = f"""
    s_mov_b32 s20, 0xfffffff0
    s_mov_b32 s21, 0x80000001
    {names[0]} s22, s20, 0x20
    {names[1]} s23, s21, 5
    v_mov_b32 v20, s22
    v_mov_b32 v21, s23
    s_mul_hi_i32 s24, s20, s21
    v_mov_b32 v22, s24
    s_lshr_b32 s25, s21, 31
    s_cselect_b32 s26, 7, 9
    v_mov_b32 v23, s26
    s_lshl_b32 s25, s21, 32
    s_movk_i32 s24, 0x8001
    v_mov_b32 v24, s24
    s_ashr_i32 s24, s24, 4
    v_mov_b32 v25, s24
    s_bfe_u32 s24, s21, 0x4001e
    v_mov_b32 v26, s24
    """
    found = lanes(arch, code, [numbered(arch)], outputs=7)[:, 0]
    product = (-16 * (0x80000001 - (1 << 32)) >> 32) & 0xFFFFFFFF
    assert found.tolist() == [0x10, 0x80000007, product, 7, 0xFFFF8001, 0xFFFFF800, 2]


@ON_CDNA
def test_sdwa(arch: str) -> None:
    r = np.random.default_rng(8)
    a, b = (r.integers(0, 1 << 32, 64, dtype=np.uint32) for _ in range(2))
    code = "v_mov_b32 v20, v11\n"
    code += "v_add_u32_sdwa v20, v10, v11 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_2 src1_sel:WORD_0\n"
    code += "v_cvt_f32_f16_sdwa v21, v10 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1"
    found = lanes(arch, code, [a & 0x7BFFFFFF, b], outputs=2)
    a &= 0x7BFFFFFF
    assert np.array_equal(found[0], (b & 0xFFFF) | ((a >> 16 & 0xFF) + (b & 0xFFFF)) << 16)
    assert np.array_equal(found[1].view(np.float32), (a >> 16).astype(np.uint16).view(np.float16).astype(np.float32))


@ON_CDNA
def test_packed_floats(arch: str) -> None:
    r = np.random.default_rng(9)
    a, b, c, d = (r.standard_normal(64).astype(np.float32) for _ in range(4))
    code = "v_pk_fma_f32 v[20:21], v[10:11], v[12:13], v[10:11] op_sel:[1,0,0] op_sel_hi:[0,1,1] neg_lo:[0,1,0]\n"
    code += (
        "v_pk_add_f32 v[22:23], v[10:11], 2.0 op_sel_hi:[1,0]\nv_pk_mov_b32 v[24:25], v[10:11], v[12:13] op_sel:[1,0]"
    )
    found = lanes(arch, code, [a, b, c, d], outputs=6).view(np.float32)
    wide = b.astype(np.float64) * -c + a, a.astype(np.float64) * d + b
    expected = [wide[0].astype(np.float32), wide[1].astype(np.float32), a + np.float32(2), b + np.float32(2), b, c]
    for n, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        assert np.array_equal(got, wanted), n


@ON_RDNA
def test_the_halves_of_a_dual_instruction_read_before_they_write(arch: str) -> None:
    code = "v_mov_b32 v20, v10\nv_mov_b32 v21, v11\nv_dual_mov_b32 v20, v21 :: v_dual_mov_b32 v21, v20"
    a, b = numbered(arch), numbered(arch, 7)
    found = lanes(arch, code, [a, b], outputs=2)
    assert np.array_equal(found[0], b)
    assert np.array_equal(found[1], a)


# Matrix products -----------------------------------------------------------------------------------------------------


def operand_words(arch: str, rows: Halves) -> list[Words]:
    """The registers of an operand, of which ``rows`` are the rows of A or the columns of B (16 of 16 halves)."""
    words = np.ascontiguousarray(rows).view(np.uint32)  # [row][pair of k]
    wave = wave_of(arch)
    if arch == "gfx1100":  # all k in a lane, twice
        return [np.tile(words[:, pair], 2) for pair in range(8)]
    run = 16 * 16 // wave // 2  # pairs of k in a lane
    return [np.concatenate([words[:, group * run + pair] for group in range(wave // 16)]) for pair in range(run)]


def sums_of(arch: str, registers: Words) -> Floats:
    """C, from the registers of the sums."""
    found = np.zeros((16, 16), np.float32)
    for register, row in enumerate(registers.view(np.float32)):
        for lane, value in enumerate(row):
            group = lane // 16
            at = 2 * register + group if arch == "gfx1100" else len(registers) * group + register
            found[at, lane % 16] = value
    return found


def product(arch: str, a: Halves, b: Halves, c: str = "0") -> Floats:
    """The matrix instruction's A B + C, of an inline constant C."""
    left, right = operand_words(arch, a), operand_words(arch, b.T)
    n, results = len(left), 4 if arch in CDNA else 8
    name = "v_wmma_f32_16x16x16_f16" if arch in RDNA else "v_mfma_f32_16x16x16_f16"
    name = "v_mfma_f32_16x16x16f16" if arch == "gfx90a" else name
    move = "\n".join(f"v_mov_b32 v{36 + i}, v{10 + i}" for i in range(2 * n))
    code = f"{move}\n{name} v[20:{19 + results}], v[36:{35 + n}], v[{36 + n}:{35 + 2 * n}], {c}"
    return sums_of(arch, lanes(arch, code, [*left, *right], outputs=results))


@ON_ALL
def test_matrix_product(arch: str) -> None:
    """Of small integers, which any order of sums gives exactly."""
    r = np.random.default_rng(10)
    a, b = (r.integers(-8, 9, (16, 16)).astype(np.float16) for _ in range(2))
    assert np.array_equal(product(arch, a, b), a.astype(np.float32) @ b.astype(np.float32))
    assert np.array_equal(product(arch, a, b, "-4.0"), a.astype(np.float32) @ b.astype(np.float32) - 4)


@ON_ALL
def test_matrix_product_of_infinity(arch: str) -> None:
    a, b = np.ones((16, 16), np.float16), np.ones((16, 16), np.float16)
    a[3, 5], a[4, 6], b[6, 2] = np.inf, np.inf, 0
    found = product(arch, a, b)
    assert np.isinf(found[3]).all()
    assert np.isnan(found[4, 2])
    assert np.isinf(np.delete(found[4], 2)).all()
    assert np.isfinite(np.delete(found, [3, 4], axis=0)).all()


@ON_ALL
def test_matrix_product_of_subnormals(arch: str) -> None:
    """CDNA 2 takes them for zeros."""
    a, b = np.full((16, 16), 2.0**-20, np.float16), np.ones((16, 16), np.float16)
    a[:, 8:] = 2.0**-14  # the smallest normal half
    kept = 0 if arch == "gfx90a" else 8 * 2.0**-20
    assert (product(arch, a, b) == np.float32(8 * 2.0**-14 + kept)).all()


def test_rdna3_wants_its_operands_twice() -> None:
    words = np.zeros((16, 32), np.uint32)
    words[3, 20] = 1
    move = "\n".join(f"v_mov_b32 v{36 + i}, v{10 + i}" for i in range(16))
    with pytest.raises(EmulationError, match="not replicated"):
        lanes("gfx1100", f"{move}\nv_wmma_f32_16x16x16_f16 v[20:27], v[36:43], v[44:51], 0", list(words), outputs=8)


@ON_ALL
def test_a_matrix_product_wants_all_lanes(arch: str) -> None:
    name = {"gfx90a": "v_mfma_f32_16x16x16f16", "gfx942": "v_mfma_f32_16x16x16_f16"}.get(
        arch, "v_wmma_f32_16x16x16_f16"
    )
    n = {"gfx1100": 8, "gfx1200": 4}.get(arch, 2)
    results = 4 if arch in CDNA else 8
    code = f"{only(arch, 1)}\n{name} v[20:{19 + results}], v[36:{35 + n}], v[44:{43 + n}], 0"
    with pytest.raises(EmulationError, match="inactive lanes"):
        lanes(arch, code, [numbered(arch)], outputs=results)


# Waves, blocks, memory -----------------------------------------------------------------------------------------------


def meet(arch: str) -> str:
    return "s_barrier_signal -1\ns_barrier_wait -1" if arch == "gfx1200" else "s_barrier"


def exchange(arch: str, barrier: str) -> str:
    """Each thread stores its number to LDS and reads the one of the thread at the block's other end."""
    last = 4 * (4 * wave_of(arch) - 1)
    sub = "v_sub_u32" if arch in CDNA else "v_sub_nc_u32"
    return f"""
    v_lshlrev_b32 v1, 2, v0
    {sub} v2, {last}, v1
    ds_write_b32 v1, v0
    {barrier}
    ds_read_b32 v3, v2
    global_store_dword v1, v3, s[6:7]
    """


@ON_ALL
def test_a_barrier_holds_back_the_waves_of_a_block(arch: str) -> None:
    threads = 4 * wave_of(arch)
    wrong = []
    for barrier in (meet(arch), ""):
        program = assemble(arch, exchange(arch, barrier))
        results = []
        for seed in range(8):
            result = np.zeros(threads, np.uint32)
            launch(program, result, result, threads=threads, seed=seed)
            results.append(np.array_equal(result, np.arange(threads)[::-1]))
        wrong.append(results.count(False))
    assert wrong[0] == 0
    assert wrong[1] > 0


@ON_ALL
def test_a_barrier_that_not_all_waves_reach(arch: str) -> None:
    skip = f"v_readfirstlane_b32 s20, v0\ns_cmp_eq_u32 s20, 0\ns_cbranch_scc1 .Lpast\n{meet(arch)}\n.Lpast:"
    program = assemble(arch, skip)
    nothing = np.zeros(4, np.uint32)
    for seed in range(4):
        with pytest.raises(EmulationError, match=r"barrier: .* has ended"):
            launch(program, nothing, nothing, threads=2 * wave_of(arch), seed=seed)


def ticket(arch: str) -> str:
    """Lane 0 of each block adds 3 to the counter behind the results, and notes what it was."""
    block = "ttmp9" if arch == "gfx1200" else "s2"
    returns = {"gfx1100": "glc", "gfx1200": "th:TH_ATOMIC_RETURN", "gfx942": "sc0", "gfx90a": "glc"}[arch]
    return f"""
    {only(arch, 1)}
    v_mov_b32 v1, 0
    v_mov_b32 v2, 3
    v_mov_b32 v3, 0
    global_atomic_add_x2 v[4:5], v1, v[2:3], s[6:7] offset:128 {returns}
    v_mov_b32 v6, {block}
    v_lshlrev_b32 v6, 3, v6
    global_store_dwordx2 v6, v[4:5], s[6:7]
    """


@ON_ALL
def test_atomic_addition_returns_what_was(arch: str) -> None:
    program = assemble(arch, ticket(arch))
    orders = set()
    for seed in range(4):
        result = np.zeros(17, np.uint64)
        result[16] = (1 << 32) - 10  # carries into the upper word
        launch(program, result, result, blocks=16, seed=seed)
        assert result[16] == (1 << 32) - 10 + 48
        assert sorted(result[:16].tolist()) == [(1 << 32) - 10 + 3 * i for i in range(16)]
        orders.add(tuple(result[:16].tolist()))
    assert len(orders) > 1


WAIT = """
  v_mov_b32 v1, 0
.Lwait:
  s_sleep 1
  global_load_dword v2, v1, s[6:7]
  v_cmp_eq_u32 vcc{lo}, 0, v2
  s_cbranch_vccnz .Lwait
"""


@ON_ALL
def test_waiting_for_nobody_is_a_hang(arch: str) -> None:
    program = assemble(arch, WAIT.format(lo="" if arch in CDNA else "_lo"))
    flag = np.zeros(1, np.uint32)
    with pytest.raises(EmulationError, match=r"hang.*no wave can go on.*sleeps"):
        launch(program, flag, flag)
    flag[0] = 1
    launch(program, flag, flag)


@ON_ALL
def test_a_block_that_waits_for_a_later_one_hangs_where_both_have_no_room(arch: str) -> None:
    """Block 1 raises the flag that block 0 waits for."""
    block = "ttmp9" if arch == "gfx1200" else "s2"
    raise_flag = "v_mov_b32 v1, 0\nv_mov_b32 v2, 1\nglobal_store_dword v1, v2, s[6:7]\ns_branch .Lpast"
    body = f"s_cmp_eq_u32 {block}, 0\ns_cbranch_scc1 .Lfirst\n{raise_flag}\n.Lfirst:"
    body += WAIT.format(lo="" if arch in CDNA else "_lo") + ".Lpast:"
    program = assemble(arch, body)
    for seed in range(4):
        flag = np.zeros(1, np.uint32)
        launch(program, flag, flag, blocks=2, seed=seed)
        flag[0] = 0
        with pytest.raises(EmulationError, match=r"hang.*no wave can go on"):
            launch(program, flag, flag, blocks=2, seed=seed, resident=1)


def test_an_endless_loop_is_a_hang() -> None:
    nothing = np.zeros(1, np.uint32)
    with pytest.raises(EmulationError, match=r"hang.*no store"):
        launch(assemble("gfx942", ".Lagain: s_branch .Lagain"), nothing, nothing)


@ON_ALL
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("v_lshlrev_b32 v1, 2, v0\nglobal_load_dword v2, v1, s[4:5] offset:16", "read outside memory.*lane 12"),
        ("v_mov_b32 v1, 0\nglobal_load_dwordx2 v[2:3], v1, s[4:5] offset:60", "read outside memory.*lane 0"),
        ("v_lshlrev_b32 v1, 1, v0\nglobal_load_dword v2, v1, s[4:5]", "misaligned access.*lane 1"),
        ("v_mov_b32 v1, 0\nglobal_store_dword v1, v0, s[4:5]", "write to read-only memory.*lane 0"),
        ("v_mov_b32 v1, 0\nglobal_store_dword v1, v0, s[6:7] offset:-4", "write outside memory.*lane 0"),
        ("s_load_dword s20, s[0:1], 16", "read outside memory"),
        ("v_mov_b32 v1, 0x3fc\nds_read_b64 v[2:3], v1", "outside LDS.*lane 0"),
        ("v_mov_b32 v1, 8\nds_read_b128 v[4:7], v1", "misaligned access to LDS.*lane 0"),
        ("v_mov_b32 v70, 0", "register out of range.*v70 of 64"),
        ("s_trap 2", "not implemented.*s_trap"),
    ],
)
def test_faults(arch: str, code: str, message: str) -> None:
    source, result = np.zeros(16, np.uint32), np.zeros(16, np.uint32)
    with pytest.raises(EmulationError, match=message):
        launch(assemble(arch, code), source, result)


@ON_ALL
def test_code_must_end(arch: str) -> None:
    nothing = np.zeros(1, np.uint32)
    with pytest.raises(EmulationError, match="without s_endpgm"):
        launch(assemble(arch, "v_mov_b32 v1, 0", end=""), nothing, nothing)


@pytest.mark.parametrize("extra", ["  .amdhsa_float_denorm_mode_32 0\n", "  .amdhsa_float_round_mode_32 3\n"])
def test_modes_that_are_not_emulated_are_refused(extra: str) -> None:
    nothing = np.zeros(1, np.uint32)
    program = build(
        "gfx1100",
        SOURCE.replace("  .amdhsa_float_denorm_mode_32 3\n", extra).format(
            arch="gfx1100", body="", end="  s_endpgm", extra="", lds=1024
        ),
    )
    with pytest.raises(EmulationError, match="not emulated"):
        launch(program, nothing, nothing)


@ON_ALL
def test_registers_and_lds_begin_as_random_bits(arch: str) -> None:
    code = "v_mov_b32 v20, v40\nv_lshlrev_b32 v1, 2, v0\nds_read_b32 v21, v1\nv_mov_b32 v22, s30"
    first, again, other = (lanes(arch, code, [numbered(arch)], outputs=3, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert (first != other).any(axis=1).all()
    assert len(set(first[0].tolist())) > 16


@ON_ALL
def test_comparisons_of_what_is_no_number(arch: str) -> None:
    """Less or greater: neither; and not so: both."""
    nan, one = np.full(wave_of(arch), np.nan, np.float32), np.ones(wave_of(arch), np.float32)
    mask = "vcc" if arch in CDNA else "vcc_lo"
    for left, right, expected in ((nan, one, (0, 1, 1)), (one, 2 * one, (1, 0, 1)), (one, one, (0, 1, 0))):
        code = "".join(
            f"v_cmp_{name}_f32 {mask}, v10, v11\nv_cndmask_b32 v{20 + n}, 0, v12, {mask}\n"
            for n, name in enumerate(("lg", "nlg", "neq"))
        )
        found = lanes(arch, code, [left, right, np.ones(wave_of(arch), np.uint32)], outputs=3)
        assert tuple(found[:, 0]) == expected


@ON_ALL
def test_scalar_load_at_a_register(arch: str) -> None:
    """On CDNA with and without a constant beside it, which are two encodings."""
    values = numbered(arch)
    code = "s_mov_b32 s20, 8\ns_load_dword s21, s[4:5], s20\nv_mov_b32 v20, s21\n"
    code += "s_load_dword s21, s[4:5], s20 offset:0x10\nv_mov_b32 v21, s21"
    assert lanes(arch, code, [values], outputs=2)[:, 0].tolist() == [values[2], values[6]]


@ON_ALL
def test_addresses_in_lds_wrap(arch: str) -> None:
    code = "v_mov_b32 v4, -4\nv_mov_b32 v5, 0\nv_mov_b32 v6, 42\nds_write_b32 v4, v6 offset:12\n"
    code += "ds_read_b32 v20, v5 offset:8\nds_read2_b32 v[22:23], v4 offset0:3 offset1:3\nv_mov_b32 v21, v23"
    assert (lanes(arch, code, [numbered(arch)], outputs=2) == 42).all()


@ON_CDNA
def test_products_of_packed_integers(arch: str) -> None:
    left, right = numbered(arch, 0x12345678), numbered(arch, 0x9ABCDEF0)
    code = "v_pk_mul_lo_u16 v20, v10, v11\nv_pk_mul_lo_u16 v21, v10, v11 op_sel:[0,1] op_sel_hi:[0,0]"
    found = lanes(arch, code, [left, right], outputs=2)
    low, high = (left & 0xFFFF) * (right & 0xFFFF) & 0xFFFF, (left >> 16) * (right >> 16) & 0xFFFF
    assert np.array_equal(found[0], low | high << 16)
    low, high = (left & 0xFFFF) * (right >> 16) & 0xFFFF, (left & 0xFFFF) * (right & 0xFFFF) & 0xFFFF
    assert np.array_equal(found[1], low | high << 16)


def test_what_gfx950_adds() -> None:
    """In words, as LLVM 22 assembles them; compilers before 20 know no gfx950."""
    values = np.linspace(-70000, 70000, 64, dtype=np.float32)
    a, b, c = (np.random.default_rng(n).integers(0, 1 << 32, 64, dtype=np.uint32) for n in range(3))
    packed = ".long 0xd2670014, 0x4002170a"  # v_cvt_pk_f16_f32 v20, v10, -v11
    with np.errstate(over="ignore"):
        low, high = (each.astype(np.float16).view(np.uint16).astype(np.uint32) for each in (values, -values[::-1]))
    assert np.array_equal(lanes("gfx942", packed, [values, values[::-1]])[0], low | high << 16)
    table = ".long 0xd2340514, 0x8c32170a"  # v_bitop3_b32 v20, v10, v11, v12 bitop3:0x6c
    expected = np.zeros(64, np.uint32)
    for bit in range(32):
        entry = (a >> bit & 1) * 4 + (b >> bit & 1) * 2 + (c >> bit & 1)
        expected |= (0x6C >> entry & 1).astype(np.uint32) << bit
    assert np.array_equal(lanes("gfx942", table, [a, b, c])[0], expected)


@pytest.mark.parametrize(
    ("arch", "code"),
    [
        ("gfx942", "v_mov_b64_dpp v[20:21], v[10:11] row_newbcast:1 row_mask:0xf bank_mask:0xf"),
        ("gfx942", "v_fma_mix_f32 v20, 1.0, v10, v11 op_sel_hi:[1,0,0]"),
        ("gfx1100", "v_fma_mix_f32 v20, 1.0, v10, v11 op_sel_hi:[1,0,0]"),
    ],
)
def test_what_would_be_guessed_is_refused(arch: str, code: str) -> None:
    with pytest.raises(EmulationError, match="not implemented"):
        lanes(arch, code, [numbered(arch), numbered(arch)])


# Decoding and translation --------------------------------------------------------------------------------------------


def test_the_pseudo_code_is_translated_or_left_alone() -> None:
    assert translate.translated("D0.u32 = S0.u32 <> S1.u32") == "D0.u32 = S0.u32 != S1.u32;"
    assert translate.translated("tmp = 64'U(S0.u32) + VCC.u64[laneId].u64;\nD0.u32 = tmp.u32") == (
        "const Value tmp = value(uint64_t(S0.u32) + uint32_t(C.carry)); D0.u32 = tmp.u32;"
    )
    assert translate.translated("D0.u32 = (S0.u32 << S1[4 : 0].u32)") == "D0.u32 = (S0.u32 << bits(S1, 4, 0));"
    assert translate.translated("D0.u32 = some_new_function(S0.u32)") is None
    assert translate.translated("declare tmp : 64'B;\nD0.b64 = tmp") is None


@pytest.mark.parametrize("arch", [native.COVERED.get(arch, arch) for arch in ALL])
def test_all_that_is_shipped_is_decoded_as_llvm_does_and_known(arch: str) -> None:
    """By the instructions' names; what the disassembly lists behind a kernel's end is padding."""
    [path] = machine_code.objects(f"{arch}.hsaco")
    family = CodeObject(path.read_bytes()).family
    for kernel, found in code_object.kernels(path.read_bytes()).items():
        records, names = decode.listing(family, found.code, lambda _: 0)
        sizes = [size for _, size, *_ in decode.RECORD.iter_unpack(records)]
        decoded = Counter(name for name, size in zip(names, sizes, strict=True) if size)  # not the second of a dual one
        listed: Counter[str] = Counter()
        for name, count in machine_code.instructions(path)[kernel].items():
            plain = translate.canonical(re.sub("_(dpp|sdwa|e64_dpp)$", "", name).upper())
            listed[plain.replace("16X16X16F16", "16X16X16_F16")] += count
        assert not decoded - listed
        assert set(listed - decoded) <= {"S_NOP", "S_CODE_END"}
        assert set(names) <= set(core.operations(family))


def test_a_listing_has_the_numbers_that_it_was_given() -> None:
    """Whoever has decoded the same words before with others."""
    code = bytes.fromhex("0000 80bf 0000 b0bf")  # s_nop 0, s_endpgm
    for number in (0, 7):
        records, names = decode.listing("rdna3", code, dict.fromkeys(("S_NOP", "S_ENDPGM"), number).__getitem__)
        assert [record[0] for record in decode.RECORD.iter_unpack(records)] == [number, number]
        assert names == ["S_NOP", "S_ENDPGM"]


def test_an_unknown_word_has_no_name() -> None:
    [(name, record)] = decode.decode("rdna3", 0xFFFFFFFF)
    assert (name, record.bytes) == ("", 4)
