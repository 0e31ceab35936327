"""Attention for targets without an operator for this form of it: MatMul, Softmax and MatMul, heads apart."""

from typing import Any

import numpy as np

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "lower"
ANCHOR = "Attention"
MUST_FUSE = True
_BEFORE = """
g (float[B, S, C] q, float[B, L, C] k, float[B, L, V] v{mask}) => (float[B, S, V] y) {{
    y = Attention <q_num_heads: int = @heads, kv_num_heads: int = @heads, scale: float = @scale{causal}> ({inputs})
}}"""
_HEADS = """
g (float[B, S, C] q, float[B, L, C] k, float[B, L, V] v, float scale{mask}, int64[4] qk, int64[4] vv, int64[3] flat)
=> (float[B, S, V] y) {{
    q4 = Reshape (q, qk)
    k4 = Reshape (k, qk)
    v4 = Reshape (v, vv)
    qh = Transpose <perm = [0, 2, 1, 3]> (q4)
    kt = Transpose <perm = [0, 2, 3, 1]> (k4)
    vh = Transpose <perm = [0, 2, 1, 3]> (v4)
    product = MatMul (qh, kt)
    logits = Mul (product, scale)
    {masking}
    p = Softmax <axis = -1> ({scores})
    o = MatMul (p, vh)
    ot = Transpose <perm = [0, 2, 1, 3]> (o)
    y = Reshape (ot, flat)
}}"""
_CAUSAL = """
    length = Shape <start = 1, end = 2> (q)
    square = Concat <axis = 0> (length, length)
    closed = Expand (lowest, square)
    triangle = Trilu <upper = 1> (closed, one)
    sum = Add (logits, triangle)"""
BEFORE = (
    _BEFORE.format(mask="", causal="", inputs="q, k, v"),
    _BEFORE.format(mask=", float[] mask", causal="", inputs="q, k, v, mask"),
    _BEFORE.format(mask="", causal=", is_causal = 1", inputs="q, k, v"),
)
AFTER = (
    _HEADS.format(mask="", masking="", scores="logits"),
    _HEADS.format(mask=", float[] mask", masking="sum = Add (logits, mask)", scores="sum"),
    _HEADS.format(mask=", float lowest, int64 one", masking=_CAUSAL, scores="sum"),
)
EXAMPLE = {"B": 2, "S": 5, "L": 5, "C": 12, "V": 12, "heads": 3, "scale": 0.3, "mask": [1, 1, 5, 5]}
LOWEST = -10000.0
"""Closed scores: exp underflows to 0 in fp32 and fp16, and fp16 can hold it."""


def check(m: Match) -> Refusal | None:
    return None if m.known("C") and m.known("V") else refuse("the width is not fixed", (m.dims["C"], m.dims["V"]))


def derive(m: Match) -> dict[str, Any]:
    heads, dtype = m.attrs["heads"], m.editor.dtype(m["q"])
    width, values = (m.size(d) // heads for d in ("C", "V"))
    scale = m.attrs["scale"] or width**-0.5
    return {
        "scale": m.editor.constant(np.array(scale, dtype), "scale"),
        "lowest": m.editor.constant(np.array(LOWEST, dtype), "lowest"),
        "one": m.editor.constant(np.array(1, np.int64), "one"),
        "qk": m.editor.ints([0, 0, heads, width]),
        "vv": m.editor.ints([0, 0, heads, values]),
        "flat": m.editor.ints([0, 0, heads * values]),
    }
