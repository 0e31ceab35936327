"""Machine code -> the records that core/machine.h's ``Instruction`` describes, by tinygrad's tables of the formats."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from support.emulator.translate import canonical

RECORD = struct.Struct("<8H I i 12B H 6B")
NONE = 0xFFFF
VECTOR, ACCUMULATION, LITERAL, VCC, EXEC, NULL = 256, 512, 255, 106, 126, 124
DPP, SDWA, BOUND_CONTROL, FETCH_INACTIVE, DUAL, RETURNS = 1, 2, 4, 8, 16, 32


_NAMES = {
    ("cdna", "V_MAD_MIX_F32"): "V_FMA_MIX_F32",
    ("cdna", "V_MAD_MIXLO_F16"): "V_FMA_MIXLO_F16",
    ("cdna", "V_MAD_MIXHI_F16"): "V_FMA_MIXHI_F16",
    ("cdna", "V_DOT2C_F32_BF16"): "V_MAC_F32",
}
"""Opcodes that mean something else than tinygrad's table says: since gfx906 mixed multiplications are fused, and where
gfx950 has V_DOT2C_F32_BF16, gfx90a has V_MAC_F32 (LLVM, VOP3PInstructions.td and VOP2Instructions.td)."""


@dataclass(frozen=True)
class Format:
    """One encoding: which words are of it, and where its fields lie in the instruction."""

    name: str
    mask: int  # of the fixed bits
    fixed: int
    variant: int | None  # what src0 (bits 0 to 8) must be: SDWA, DPP
    op: tuple[int, int]  # bit, mask
    operations: dict[int, tuple[str, Any]]  # opcode -> name, tinygrad's enumeration member
    fields: dict[str, tuple[int, int]]  # name -> bit, mask
    bytes: int


class Fields:
    """An instruction's fields as attributes of :class:`Format`'s names; absent ones are None."""

    def __init__(self, form: Format, raw: int) -> None:
        self.form, self.raw = form, raw

    def get(self, *names: str) -> int | None:
        """Of the first of these that the format has."""
        for name in names:
            if place := self.form.fields.get(name):
                return self.raw >> place[0] & place[1]
        return None

    def number(self, *names: str) -> int:
        return self.get(*names) or 0


def _format(cls: Any) -> Format:
    mask = fixed = 0
    fields: dict[str, tuple[int, int]] = {}
    op: tuple[int, int] = (0, 0)
    operations: dict[int, tuple[str, Any]] = {}
    for field_name, field in cls._fields:
        kind = type(field).__name__
        if kind == "FixedBitField":
            mask |= field.mask << field.lo
            fixed |= field.default << field.lo
        fields[field_name] = field.lo, field.mask
        if field_name in {"op", "opx"}:
            op = field.lo, field.mask
            allowed = field.allowed if field.allowed is not None else list(field._enum)
            family = cls.__module__.split(".")[-2]
            named = {member: canonical(member.name) for member in allowed}
            operations = {member.value: (_NAMES.get((family, name), name), member) for member, name in named.items()}
    variant = {"_SDST": 0xF9, "_SDWA": 0xF9, "_DPP16": 0xFA}
    wanted = next((src for end, src in variant.items() if cls.__name__.endswith(end)), None)
    if cls.__name__.endswith("_SDST") and "SDWA" not in cls.__name__:
        wanted = None
    return Format(cls.__name__, mask, fixed, wanted, op, operations, fields, cls._base_size)


@cache
def _formats(family: str) -> list[Format]:
    """In the order in which they are tried."""
    amd = importlib.import_module("tinygrad.renderer.amd")
    classes = list(amd._load_formats()[family])
    if family == "rdna3":  # for the instructions that invalidate caches
        classes.append(importlib.import_module("tinygrad.runtime.autogen.amd.rdna3.ins").MUBUF)
    return [_format(cls) for cls in classes]


@cache
def _variants(family: str) -> dict[str, Format]:
    ins = importlib.import_module(f"tinygrad.runtime.autogen.amd.{family}.ins")
    ends = ("_LIT", "_DPP16", "_SDWA", "_SDST")
    return {name: _format(c) for name, c in vars(ins).items() if isinstance(c, type) and name.endswith(ends)}


@cache
def _by_prefix(family: str, prefix: int) -> list[Format]:
    """Formats that words with these nine highest bits can be of."""
    word = prefix << 23
    return [f for f in _formats(family) if not (word ^ f.fixed) & f.mask & 0xFF800000]


def _detect(family: str, raw: int) -> Format | None:
    for form in _by_prefix(family, raw >> 23 & 0x1FF):
        if (raw & form.mask) != form.fixed or (form.variant is not None and raw & 0x1FF != form.variant):
            continue
        if form.operations and (raw >> form.op[0] & form.op[1]) not in form.operations:
            continue
        return form
    return None


def _has_literal(family: str, form: Format, f: Fields, name: str) -> bool:
    if form.name == "VOPD":
        names = {name, _dual_name(f)}
        return LITERAL in (f.get("srcx0"), f.get("srcy0")) or any("FMAMK" in n or "FMAAK" in n for n in names)
    if "literal" in form.fields:
        return True
    sources = ("src0", "src1", "src2", "ssrc0", "ssrc1")
    return any(f.get(source) == LITERAL for source in sources if source in form.fields) and "MFMA" not in form.name


def _dual_name(f: Fields) -> str:
    return next(n for v, (n, _) in f.form.operations.items() if v == f.number("opy"))


def _dpp_or_sdwa(family: str, form: Format, f: Fields) -> Format:
    """VOP3 with DPP is a format of its own, which tinygrad's detection leaves to the second word."""
    if f.get("src0") == 0xFA and "_DPP16" not in form.name and (wide := _variants(family).get(form.name + "_DPP16")):
        return wide
    return form


@cache
def _widths(member: Any) -> dict[str, tuple[int, str]]:
    """Operand -> its bits and the name of its number format."""
    dsl = importlib.import_module("tinygrad.renderer.amd.dsl")
    return {name: (bits, fmt.name) for name, (fmt, bits, _) in dsl.OPERANDS.get(member, {}).items()}


@cache
def _width(member: Any, *names: str) -> int | None:
    """Bytes of the first of these operands that the operation has: 2, 4 or 8."""
    known = _widths(member)
    for name in names:
        if name in known:
            return {16: 2, 64: 8}.get(known[name][0], 4)
    return None


class Record:
    """An instruction in the making: the members of core/machine.h's ``Instruction``."""

    def __init__(self, size: int) -> None:
        self.bytes = size
        self.dst = self.sdst = self.mask = NONE
        self.src = [NONE, NONE, NONE]
        self.literal = self.immediate = 0
        self.width = [0, 0, 0, 0]
        self.neg = self.abs = self.opsel = self.opsel_hi = self.neg_hi = self.omod = self.clamp = self.flags = 0
        self.dpp = self.dpp_masks = self.sdwa_dst = 0
        self.sdwa_src = [0, 0]

    def packed(self, operation: int) -> bytes:
        return RECORD.pack(
            *(operation, self.bytes, self.dst, self.sdst, *self.src, self.mask, self.literal, self.immediate),
            *self.width,
            *(self.neg, self.abs, self.opsel, self.opsel_hi, self.neg_hi, self.omod, self.clamp, self.flags, self.dpp),
            *(self.dpp_masks, self.sdwa_dst, *self.sdwa_src, 0, 0),
        )


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def _vector(f: Fields, name: str, member: Any, family: str) -> Record:
    """VOP1, VOP2, VOPC, VOP3, VOP3SD and VOP3P in all variants."""
    r = Record(f.form.bytes)
    kind = f.form.name
    _sources(r, f, member, family)
    _destinations(r, f, name, member, family)
    r.neg, r.abs = f.number("neg"), f.number("abs")
    r.opsel |= f.number("opsel") if kind != "VOP3P_MFMA" else 0
    r.omod, r.clamp = f.number("omod"), f.number("clmp")
    if kind.startswith("VOP3P") and "MFMA" not in kind:
        r.neg_hi, r.opsel_hi = f.number("neg_hi"), f.number("opsel_hi") | f.number("opsel_hi2") << 2
    if "BITOP3" in name:  # the fields of modifiers hold a table
        r.literal = r.omod << 6 | r.abs << 3 | r.neg
        r.omod = r.abs = r.neg = 0
    if "FMA_MIXHI" in name:
        r.opsel |= 8
    if kind == "VOP3P_MFMA":
        _accumulation(r, f)
    _modifiers(r, f)
    return r


def _sources(r: Record, f: Fields, member: Any, family: str) -> None:
    kind = f.form.name
    low_halves = family != "cdna" and not kind.startswith("VOP3")  # bit 7 of a register's number: the upper half
    for n, names in enumerate((("src0", "vsrc0"), ("src1", "vsrc1"), ("src2",))):
        field = names[0] if names[0] in f.form.fields else names[-1]
        code = f.get(field)
        width = _width(member, *names)
        if code is None or width is None:
            continue
        if field == "vsrc1" and n == 1 and "VOP3" not in kind:
            code += VECTOR
            if "s1" in f.form.fields and f.number("s1"):  # SDWA: a scalar register
                code -= VECTOR
        if n == 0 and ("DPP16" in kind or "SDWA" in kind):
            code = f.number("vsrc0") + (0 if f.number("s0") and "SDWA" in kind else VECTOR)
        if low_halves and width == 2 and code >= VECTOR and code & 0x80:
            code, r.opsel = code & ~0x80, r.opsel | 1 << n
        r.src[n], r.width[1 + n] = code, width
    r.literal = f.number("literal")


def _destinations(r: Record, f: Fields, name: str, member: Any, family: str) -> None:
    kind = f.form.name
    compares = name.startswith("V_CMP")
    if compares:
        r.sdst = f.number("vdst") if kind.startswith("VOP3") else VCC
        if "SDWA_SDST" in kind and f.number("sd"):
            r.sdst = f.number("sdst")
        if name.startswith("V_CMPX"):
            r.sdst = EXEC
        return
    scalar = kind in {"VOP1_SDST", "VOP3_SDST"} or name.startswith(("V_S_", "V_READ"))
    code = f.number("vdst") + (0 if scalar else VECTOR)
    r.width[0] = _width(member, "vdst") or 4
    if family != "cdna" and not kind.startswith("VOP3") and r.width[0] == 2 and code & 0x80:
        code, r.opsel = code & ~0x80, r.opsel | 8
    r.dst = code
    if kind.startswith("VOP3SD"):
        r.sdst = f.number("sdst")
    _masks(r, f, name)


def _masks(r: Record, f: Fields, name: str) -> None:
    """Carries and selections, one bit a lane: VCC, or in VOP3's src2."""
    kind = f.form.name
    carries = any(part in name for part in ("_CO_CI_", "ADDC_CO", "SUBB_CO", "SUBBREV_CO"))
    if carries or "CNDMASK" in name:
        r.mask = VCC
        if kind.startswith("VOP3"):
            r.mask, r.src[2], r.width[3] = f.number("src2"), NONE, 0
    if "DIV_FMAS" in name:
        r.mask = VCC
    if not kind.startswith("VOP3") and "_CO_" in name:
        r.sdst = VCC


def _accumulation(r: Record, f: Fields) -> None:
    """MFMA's operands in accumulation registers."""
    for n in (0, 1):
        if f.number("acc") >> n & 1:
            r.src[n] += ACCUMULATION - VECTOR
    if f.number("acc_cd"):
        r.dst += ACCUMULATION - VECTOR
        r.src[2] += ACCUMULATION - VECTOR if r.src[2] >= VECTOR else 0
    if f.number("cbsz") or f.number("abid") or f.number("blgp"):
        r.neg = 7  # refused there


def _modifiers(r: Record, f: Fields) -> None:
    """Of DPP16 and SDWA."""
    kind = f.form.name
    if "DPP16" in kind:
        r.flags |= DPP | (BOUND_CONTROL if f.number("bc") else 0) | (FETCH_INACTIVE if f.number("fi") else 0)
        r.dpp, r.dpp_masks = f.number("dpp"), f.number("row_mask") << 4 | f.number("bank_mask")
    if "SDWA" in kind:
        r.flags |= SDWA
        r.sdwa_dst = (f.number("dst_sel") | f.number("dst_unused") << 3) if "dst_sel" in f.form.fields else 6
        r.sdwa_src = [f.number(f"src{n}_sel") | f.number(f"src{n}_sext") << 3 for n in (0, 1)]
    if ("DPP16" in kind or "SDWA" in kind) and not kind.startswith("VOP3"):
        r.neg |= f.number("src0_neg") | f.number("src1_neg") << 1
        r.abs |= f.number("src0_abs") | f.number("src1_abs") << 1


def _dual(f: Fields, family: str) -> list[tuple[str, Record]]:
    """VOPD: X with all the bytes, then Y with none."""
    found = []
    for half in "xy":
        name, _ = f.form.operations[f.number(f"op{half}")]
        r = Record(f.form.bytes if half == "x" else 0)
        vdst = f.number("vdstx") if half == "x" else f.number("vdsty") << 1 | (f.number("vdstx") & 1 ^ 1)
        r.dst, r.width[0] = vdst + VECTOR, 4
        r.src[0], r.width[1] = f.number(f"src{half}0"), 4
        if "MOV" not in name:
            r.src[1], r.width[2] = f.number(f"vsrc{half}1") + VECTOR, 4
        r.literal = f.number("literal")
        if "CNDMASK" in name:
            r.mask = VCC
        r.flags |= DUAL if half == "x" else 0
        found.append((name, r))
    return found


def _scalar(f: Fields, name: str, member: Any, family: str) -> Record:
    """SOP1, SOP2, SOPC, SOPK, SOPP."""
    r = Record(f.form.bytes)
    if "sdst" in f.form.fields and (width := _width(member, "sdst")):
        r.dst, r.width[0] = f.number("sdst"), width
    for n in (0, 1):
        code, width = f.get(f"ssrc{n}"), _width(member, f"ssrc{n}")
        if code is not None and (width is not None or name == "S_BARRIER_SIGNAL"):
            r.src[n], r.width[1 + n] = code, width or 4
    r.literal, r.immediate = f.number("literal"), f.number("simm16")
    if f.form.name == "SOPK":  # the pseudo-code names the constant S0 or SIMM16
        r.src[0], r.width[1], r.literal = LITERAL, 4, r.immediate
    if name.startswith("S_CMPK"):  # of what stands where others have their result, with a constant S1 or SIMM16
        r.dst, r.src[:2], r.width[:3] = NONE, [f.number("sdst"), LITERAL], [0, 4, 4]
    return r


def _memory(f: Fields, name: str, member: Any, family: str) -> Record:
    """GLOBAL and FLAT."""
    r = Record(f.form.bytes)
    file = ACCUMULATION if f.number("acc") else VECTOR
    r.src[0], r.src[1] = f.number("addr", "vaddr") + VECTOR, f.number("data", "vsrc") + file
    r.dst = f.number("vdst") + file
    base = f.number("saddr")
    flat = f.form.name in {"FLAT", "VFLAT"}
    if base not in {NULL, 0x7F} and not (flat and family != "rdna4"):
        r.mask = base
    bits = {"offset": 13, "ioffset": 24}["offset" if "offset" in f.form.fields else "ioffset"]
    offset = f.number("offset", "ioffset")
    r.immediate = offset if flat and family == "cdna" else _signed(offset, bits)
    if f.number("glc", "sc0") if "th" not in f.form.fields else f.number("th") & 1:
        r.flags |= RETURNS
    if family == "cdna" and f.number("sve"):
        raise ValueError("a load to LDS")
    return r


def _shared(f: Fields, name: str, member: Any, family: str) -> Record:
    """DS."""
    r = Record(f.form.bytes)
    file = ACCUMULATION if f.number("acc") else VECTOR
    r.src = [f.number("addr") + VECTOR, f.number("data0") + file, f.number("data1") + file]
    r.dst, r.immediate = f.number("vdst") + file, f.number("offset0") | f.number("offset1") << 8
    if f.number("gds"):
        raise ValueError("an access to GDS")
    return r


def _scalar_memory(f: Fields, name: str, member: Any, family: str) -> Record:
    """SMEM."""
    r = Record(f.form.bytes)
    r.dst, r.src[0] = f.number("sdata"), f.number("sbase") << 1
    offset, bits = (f.number("ioffset"), 24) if "ioffset" in f.form.fields else (f.number("offset"), 21)
    r.immediate = _signed(offset, bits) if f.get("imm") != 0 else 0
    if f.get("soffset_en") != 0 and f.number("soffset") != NULL:
        r.src[1] = f.number("soffset")
    if f.get("imm") == f.get("soffset_en") == 0:  # CDNA: then the field of the constant names a register
        r.src[1] = offset & 0x7F
    return r


_BUILDERS: dict[str, Callable[[Fields, str, Any, str], Record]] = {
    **dict.fromkeys(("VOP1", "VOP2", "VOPC", "VOP3", "VOP3SD", "VOP3P"), _vector),
    **dict.fromkeys(("SOP1", "SOP2", "SOPC", "SOPK", "SOPP"), _scalar),
    **dict.fromkeys(("GLOBAL", "FLAT", "VGLOBAL", "VFLAT"), _memory),
    "DS": _shared,
    "SMEM": _scalar_memory,
}


def decode(family: str, raw: int) -> list[tuple[str, Record]]:
    """The instruction at the beginning of ``raw`` (128 bits, little-endian): names and records, two for a dual one.

    What is not known has no name, and four bytes.
    """
    form = _detect(family, raw)
    if form is None:
        return [("", Record(4))]
    form = _dpp_or_sdwa(family, form, Fields(form, raw))
    f = Fields(form, raw)
    name, member = form.operations.get(raw >> form.op[0] & form.op[1], (form.name, None))
    if _has_literal(family, form, f, name) and "_LIT" not in form.name and "DPP16" not in form.name:
        form = _variants(family).get(f"{form.name}_LIT", form)
        f = Fields(form, raw)
        if "literal" not in form.fields:
            return [("", Record(form.bytes + 4))]
    if form.name.startswith("VOPD"):
        return _dual(f, family)
    builder = _BUILDERS.get(form.name.split("_")[0])
    if builder is None or "DPP8" in form.name:
        return [(name, Record(form.bytes))]
    try:
        return [(name, builder(f, name, member, family))]
    except ValueError as error:
        return [(f"{name}: {error}", Record(form.bytes))]


def listing(family: str, code: bytes, operation: Callable[[str], int]) -> tuple[bytes, list[str]]:
    """The records of consecutive code, and each one's name; ``operation`` numbers names (0: not implemented)."""
    padded = code + bytes(16)
    records, names = [], []
    at = 0
    while at < len(code):
        size = 4
        for name, rest, length in _packed(family, int.from_bytes(padded[at : at + 16], "little")):
            records += [operation(name).to_bytes(2, "little"), rest]
            names.append(name)
            size = max(size, length)
        at += size
    return b"".join(records), names


_memo: dict[tuple[str, int, int], list[tuple[str, bytes, int]]] = {}


def _packed(family: str, raw: int) -> list[tuple[str, bytes, int]]:
    """Names, records without their first member, the operation's number, and lengths."""
    for size in (4, 8, 12):  # what decides is the instruction's own words
        if found := _memo.get((family, size, raw & ((1 << 8 * size) - 1))):
            return found
    decoded = [(name, r.packed(0)[2:], r.bytes) for name, r in decode(family, raw)]
    own = max(length for _, _, length in decoded)
    _memo[family, own, raw & ((1 << 8 * own) - 1)] = decoded
    return decoded
