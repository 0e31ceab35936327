"""Self-attention whose query, key and value are projections of one tensor: one MatMul, packed [B, S, heads, 3, size].

The packed weight holds, for each head, the columns of Q, of K and of V after each other.
"""

from typing import Any

import onnx_graphsurgeon as gs

from sdort.rewrite.match import Match, Refusal, refuse
from sdort.weights import Concatenated, Reshaped, as_weight

STAGE = "fuse"
ANCHOR = "Attention"
BEFORE = """
g (float[B, S, I] x) => (float[B, S, C] y) <float[I, C] wq, float[I, C] wk, float[I, C] wv> {
    q = MatMul (x, wq)
    k = MatMul (x, wk)
    v = MatMul (x, wv)
    y = Attention <q_num_heads: int = @heads, kv_num_heads: int = @heads, scale: float = @scale> (q, k, v)
}"""
AFTER = """
g (float[B, S, I] x, float[I, P] weight, int64[5] shape) => (float[B, S, C] y) {
    packed = MatMul (x, weight)
    qkv = Reshape (packed, shape)
    y = com.microsoft.MultiHeadAttention <num_heads: int = @heads, scale: float = @scale> (qkv)
}"""
EXAMPLE = {"B": 2, "S": 5, "I": 12, "C": 12, "heads": 3, "scale": 0.3}


def check(m: Match) -> Refusal | None:
    width, heads = m.known("C"), m.attrs["heads"]
    if width and width % heads == 0:
        return None
    return refuse("the width is no multiple of the heads", (m.dims["C"], heads))


def derive(m: Match) -> dict[str, Any]:
    heads = m.attrs["heads"]
    size = m.size("C") // heads
    return {
        "weight": interleave(m, ("wq", "wk", "wv"), heads, size),
        "shape": m.editor.ints([0, 0, heads, 3, size]),
    }


def interleave(m: Match, names: tuple[str, ...], heads: int, size: int) -> gs.Constant:
    """[inputs, heads * size] weights -> one [inputs, heads * n * size] weight, head by head."""
    weights = [as_weight(m[name]._values) for name in names]
    inputs = weights[0].shape[0]
    by_head = Concatenated([Reshaped(w, [inputs, heads, 1, size]) for w in weights], 2)
    return m.editor.constant(Reshaped(by_head, [inputs, heads * len(names) * size]), m[names[0]].name)
