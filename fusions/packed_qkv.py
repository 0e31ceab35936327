"""Self-attention whose query, key and value are projections of one tensor: one MatMul, packed [B, S, heads, 3, size].

The packed weight holds, for each head, the columns of Q, of K and of V after each other. A model may have merged some
of the projections itself (diffusers' fuse_qkv_projections): then its columns are all of Q, all of K and all of V.
"""

from typing import Any

import onnx_graphsurgeon as gs

from sdort.graph.weights import Concatenated, Reshaped, Transposed, Weight, as_weight
from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "fuse"
ANCHOR = "Attention"
_BEFORE = """
g (float[B, S, I] x) => (float[B, S, C] y) <{0}, float[B, S, C] q> {{
    {1}
    y = Attention <q_num_heads: int = @heads, kv_num_heads: int = @heads, scale: float = @scale> (q, k, v)
}}"""
_APART = (
    "float[I, C] wq, float[I, C] wk, float[I, C] wv",
    "q = MatMul (x, wq)  k = MatMul (x, wk)  v = MatMul (x, wv)",
)
_ONE = ("float[I, P] wqkv", "m = MatMul (x, wqkv)  q, k, v = Split <axis = -1, num_outputs = 3> (m)")
_TWO = (
    "float[I, C] wq, float[I, P] wkv",
    "q = MatMul (x, wq)  m = MatMul (x, wkv)  k, v = Split <axis = -1, num_outputs = 2> (m)",
)
BEFORE = tuple(_BEFORE.format(*parts) for parts in (_APART, _ONE, _TWO))
AFTER = """
g (float[B, S, I] x, float[I, P] weight, int64[5] shape) => (float[B, S, C] y) {
    packed = MatMul (x, weight)
    qkv = Reshape (packed, shape)
    y = com.microsoft.MultiHeadAttention <num_heads: int = @heads, scale: float = @scale> (qkv)
}"""
EXAMPLE = {"B": 2, "S": 5, "I": 12, "C": 12, "P": (None, 36, 24), "heads": 3, "scale": 0.3}


def check(m: Match) -> Refusal | None:
    width, heads = m.known("C"), m.attrs["heads"]
    if width and width % heads == 0:
        return None
    return refuse("the width is no multiple of the heads", (m.dims["C"], heads))


def derive(m: Match) -> dict[str, Any]:
    heads = m.attrs["heads"]
    size = m.size("C") // heads
    return {"weight": interleave(m, heads, size), "shape": m.editor.ints([0, 0, heads, 3, size])}


def interleave(m: Match, heads: int, size: int) -> gs.Constant:
    """The match's weights, each [inputs, n * heads * size] -> one [inputs, heads * all n * size], head by head."""
    names = [name for name in ("wqkv", "wq", "wk", "wkv", "wv") if name in m.tensors]
    parts: list[Weight] = []
    for weight in (as_weight(m[name]._values) for name in names):
        inputs, width = weight.shape
        count = width // (heads * size)
        if count == 1:
            parts.append(Reshaped(weight, [inputs, heads, 1, size]))
        else:
            parts.append(Transposed(Reshaped(weight, [inputs, count, heads, size]), [0, 2, 1, 3]))
    by_head = Concatenated(parts, 2)
    return m.editor.constant(Reshaped(by_head, [by_head.shape[0], heads * by_head.shape[2] * size]), m[names[0]].name)
