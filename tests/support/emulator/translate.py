"""AMD's pseudo-code for arithmetic instructions -> C++ (core/translated.h).

The pseudo-code of the ISA manuals, as tinygrad ships it, is close to C++: ``D0.u32 = S0.u32 + S1.u32``. What is
translated are the instructions whose pseudo-code consists of assignments and conditions over the names in
:data:`_KNOWN`; all others are written by hand (core/table.h), or not implemented.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

FAMILIES = ("cdna", "rdna3", "rdna4")
"""tinygrad's names of the instruction sets, in the order of core/machine.h's ``Family``."""

_CLASSES = {"VOP1Op", "VOP2Op", "VOPCOp", "VOP3Op", "VOP3SDOp", "SOP1Op", "SOP2Op", "SOPCOp", "SOPKOp"}
_TYPES = {"U": "uint{}_t", "I": "int{}_t", "B": "uint{}_t"}
_WORDS = """
    S0 S1 S2 D0 SCC EXEC SIMM16 SIMM32 C tmp saveexec carry result lane Value value bits concatenated if else const
    fma floor trunc abs signext signext_from_bit f16_to_f32 f32_to_f16 i32_to_f32 u32_to_f32 f32_to_u32 f32_to_i32
    u64 i64 b64 f64 u32 i32 b32 f32 u24 i24 u16 i16 b16 f16 u8 i8 b8
    uint64_t int64_t uint32_t int32_t uint16_t int16_t float double
"""
_KNOWN = set(_WORDS.split())


def canonical(name: str) -> str:
    """An operation's name without what only says how it is encoded."""
    name = re.sub(r"_(E32|E64)$", "", name)
    return name.replace("V_DUAL_", "V_", 1)


def _expression(text: str) -> str:
    text = re.sub(r"(\d+)'F\(", lambda m: "float(" if m[1] == "32" else "double(", text)
    text = re.sub(r"(\d+)'([UIB])\(", lambda m: _TYPES[m[2]].format(m[1]) + "(", text)
    text = re.sub(r"\b\d+'(\d+)U?\b", r"\1u", text)
    text = re.sub(r"\b\d+'(0x[0-9a-fA-F]+)U?\b", r"\1u", text)
    text = re.sub(r"(S0\.f\d+) <> (S1\.f\d+)", r"(\1 < \2 || \1 > \2)", text)  # not so if one is no number
    text = text.replace("<>", "!=")
    text = re.sub(r"VCC\.u64\[laneId\](\.u\d+)?", "uint32_t(C.carry)", text)
    text = re.sub(r"\bSCC\.u\d+", "SCC", text)
    text = re.sub(r"(S0\.u\d+)\[(S1\.u32)\[(\d+) : 0\]\]", r"bits(\1 >> bits(\2, \3, 0), 0, 0)", text)
    text = re.sub(r"([\w.]+)\[(\d+) : (\d+)\](?:\.[ub]\d+)?", r"bits(\1, \2, \3)", text)
    text = re.sub(r"([\w.]+)\[(\d+)\]", r"bits(\1, \2, \2)", text)
    text = re.sub(r"\{ ([^,{}]+), ([^,{}]+) \}", r"concatenated(\1, \2)", text)
    return re.sub(r"\b(tmp|saveexec)\b(?!\.)", r"\1.u64", text)


def _assignment(line: str) -> str:
    target, _, right = (part.strip() for part in line.partition(" = "))
    right = _expression(right)
    if target in {"tmp", "saveexec"}:
        return f"const Value {target} = value({right});"
    if target in {"VCC.u64[laneId]", "D0.u64[laneId]", "EXEC.u64[laneId]"}:
        return f"C.result = {right};"
    if target == "SCC" or re.fullmatch(r"(D0|EXEC)\.\w+", target):
        return f"{target} = {right};"
    raise ValueError(target)


def _statement(line: str) -> str:
    if line.startswith("if ") and line.endswith(" then"):
        return f"if ({_expression(line[3:-5])}) {{"
    if line.startswith("elsif ") and line.endswith(" then"):
        return f"}} else if ({_expression(line[6:-5])}) {{"
    if line == "else":
        return "} else {"
    if line == "endif":
        return "}"
    return _assignment(line)


def translated(pseudo_code: str) -> str | None:
    """C++ statements; None where the pseudo-code says more than this can translate."""
    lines = [line.strip().rstrip(";").strip() for line in pseudo_code.splitlines()]
    lines = [line for line in lines if line and not line.startswith("//")]
    try:
        code = " ".join(_statement(line) for line in lines)
    except (ValueError, KeyError):
        return None
    names = set(re.findall(r"\b[A-Za-z_]\w*", re.sub(r"\b(0x[0-9a-fA-F]+|\d+\.?\d*)\w*", "", code)))
    return code if code and names <= _KNOWN and not re.search(r"[\[\]']|\*\*|\)\.|u\.", code) else None


def _operations() -> Iterator[tuple[str, str, str]]:
    """Family, name and C++ of what can be translated. What the CDNA manual leaves out is as in RDNA3's."""
    tables = {f: importlib.import_module(f"tinygrad.runtime.autogen.amd.{f}.str_pcode").PCODE for f in FAMILIES}
    named = {
        family: {canonical(op.name): text for op, text in table.items() if type(op).__name__ in _CLASSES}
        for family, table in tables.items()
    }
    named["cdna"] = {**named["rdna3"], **named["cdna"]}
    for family, operations in named.items():
        for name, text in operations.items():
            if (code := translated(text)) is not None:
                yield family, name, code


def header(skip: set[str]) -> str:
    """core/translated.h: operations of the same code share a function; those named in ``skip`` are left out."""
    functions: dict[tuple[bool, str], str] = {}
    bodies, entries = [], []
    for family, name, code in _operations():
        if name in skip:
            continue
        scalar = name.startswith("S_")
        if (scalar, code) not in functions:
            functions[scalar, code] = identifier = f"F{len(functions)}_{name}"
            macro = f"EMULATOR_SCALAR({identifier}, {str('EXEC' in code).lower()}," if scalar else None
            body = code if scalar else code.replace("SIMM32", "C.immediate")
            bodies.append(f"{macro or f'EMULATOR_VECTOR({identifier},'} {body})")
        kind = "scalar" if scalar else "vector"
        families = f"1 << {FAMILIES.index(family)}"
        entries.append(f'{{{families}, "{name}", {kind}_operation<translated::{functions[scalar, code]}>}},')
    return "\n".join(
        [
            "#pragma once\n",
            '#include "table.h"\n',
            "namespace emulator {\nnamespace translated {\n",
            *bodies,
            "\n}  // namespace translated\n\ninline const Entry kTranslated[] = {",
            *entries,
            "};\n\n}  // namespace emulator\n",
        ]
    )
