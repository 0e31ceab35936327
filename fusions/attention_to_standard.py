"""Attention for targets without an operator for this form of it: MatMul, Softmax and MatMul, heads apart."""

from itertools import product
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "lower"
ANCHOR = "Attention"
MUST_FUSE = True
_BEFORE = """
g (float[B, S, C] q, float[K, L, W] k, float[A, T, V] v{mask}) => (float[] y) {{
    y = Attention <q_num_heads: int = @heads, kv_num_heads: int = @heads, scale: float = @scale{attributes}> ({inputs})
}}"""
_AFTER = """
g (float[B, S, C] q, float[K, L, W] k, float[A, T, V] v{mask}, float scale, float cap, float inverse, float lowest,
   int64 one, int64[4] qk, int64[4] vv, int64[3] flat) => (float[] y) {{
    q4 = Reshape (q, qk)
    k4 = Reshape (k, qk)
    v4 = Reshape (v, vv)
    qh = Transpose <perm = [0, 2, 1, 3]> (q4)
    kt = Transpose <perm = [0, 2, 3, 1]> (k4)
    vh = Transpose <perm = [0, 2, 1, 3]> (v4)
    product = MatMul (qh, kt)
    logits = Mul (product, scale)
    {scores}
    o = MatMul (p, vh)
    ot = Transpose <perm = [0, 2, 1, 3]> (o)
    y = Reshape (ot, flat)
}}"""
_CAUSAL = """
    length = Shape <start = 1, end = 2> (q)
    square = Concat <axis = 0> (length, length)
    closed = Expand (lowest, square)
    triangle = Trilu <upper = 1> (closed, one)
    masked = Add ({0}, triangle)"""
# Each: what the node says beside heads and scale, its mask, and the lines from {0} to the name after them.
_CAPS = (
    ("", "", ""),
    (
        ", softcap: float = @softcap",
        "ratio = Mul ({0}, inverse)  bent = Tanh (ratio)  capped = Mul (bent, cap)",
        "capped",
    ),
)
_MASKS = (("", "", "", ""), ("", ", float[] mask", "masked = Add ({0}, mask)", "masked"),
          (", is_causal = 1", "", _CAUSAL, "masked"))  # fmt: skip
_SOFTMAXES = (
    ("", "p = Softmax <axis = -1> ({0})"),
    (
        ", softmax_precision: int = @precision",
        "wide = Cast <to: int = @precision> ({0})  shares = Softmax <axis = -1> (wide)\n"
        "p = Cast <to: int = @own> (shares)",
    ),
)


def _spelling(cap: tuple[str, ...], mask: tuple[str, ...], softmax: tuple[str, ...]) -> tuple[str, str]:
    last, lines = "logits", []
    for text, name in ((cap[1], cap[2]), (mask[2], mask[3])):
        lines += [text.format(last)] if text else []
        last = name or last
    scores = "\n".join([*lines, softmax[1].format(last)])
    inputs = "q, k, v, mask" if mask[1] else "q, k, v"
    before = _BEFORE.format(mask=mask[1], attributes=cap[0] + mask[0] + softmax[0], inputs=inputs)
    return before, _AFTER.format(mask=mask[1], scores=scores)


BEFORE, AFTER = zip(*(_spelling(*parts) for parts in product(_CAPS, _MASKS, _SOFTMAXES)), strict=True)
EXAMPLE = {
    "B": 2, "S": 5, "C": 12, "K": 2, "L": 5, "W": 12, "A": 2, "T": 5, "V": 12, "heads": 3, "scale": 0.3,
    "softcap": 2.0, "precision": 11, "mask": [1, 1, 5, 5],
}  # fmt: skip
LOWEST = -10000.0
"""Closed scores: exp underflows to 0 in fp32 and fp16, and fp16 can hold it."""
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def check(m: Match) -> Refusal | None:
    widths, heads = (m.known("C"), m.known("V")), m.attrs["heads"]
    if None in widths:
        return refuse("the width is not fixed", (m.dims["C"], m.dims["V"]))
    if not isinstance(heads, int) or any(width % heads for width in widths if width):
        return refuse("the width is no multiple of the heads", (*widths, heads))
    if m.attrs.get("precision", TensorProto.FLOAT) not in FLOATS:
        return refuse("softmax_precision is no floating-point type", m.attrs["precision"])
    return None


def derive(m: Match) -> dict[str, Any]:
    heads, dtype = m.attrs["heads"], m.editor.dtype(m["q"])
    width, values = (m.size(d) // heads for d in ("C", "V"))
    cap = m.attrs.get("softcap") or 1.0
    numbers = {"scale": m.attrs["scale"] or width**-0.5, "cap": cap, "inverse": 1 / cap, "lowest": LOWEST}
    return {
        **{name: m.editor.constant(np.array(value, dtype), name) for name, value in numbers.items()},
        "one": m.editor.constant(np.array(1, np.int64), "one"),
        "own": helper.np_dtype_to_tensor_dtype(dtype),
        "qk": m.editor.ints([0, 0, heads, width]),
        "vv": m.editor.ints([0, 0, heads, values]),
        "flat": m.editor.ints([0, 0, heads * values]),
    }
