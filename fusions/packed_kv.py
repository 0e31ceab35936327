"""Cross-attention whose key and value are projections of one tensor: one MatMul, packed [B, L, heads, 2, size]."""

from typing import Any

from sdort.fusions.packed_qkv import check as check_width
from sdort.fusions.packed_qkv import interleave

from sdort.rewrite.match import Match

STAGE = "fuse"
ANCHOR = "Attention"
RUN_AFTER = ("packed_qkv",)
_BEFORE = """
g (float[B, S, C] q, float[B, L, I] x) => (float[B, S, C] y) <{0}> {{
    {1}
    y = Attention <q_num_heads: int = @heads, kv_num_heads: int = @heads, scale: float = @scale> (q, k, v)
}}"""
_APART = ("float[I, C] wk, float[I, C] wv", "k = MatMul (x, wk)  v = MatMul (x, wv)")
_ONE = ("float[I, P] wkv", "m = MatMul (x, wkv)  k, v = Split <axis = -1, num_outputs = 2> (m)")
BEFORE = tuple(_BEFORE.format(*parts) for parts in (_APART, _ONE))
AFTER = """
g (float[B, S, C] q, float[B, L, I] x, float[I, P] weight, int64[5] shape) => (float[B, S, C] y) {
    packed = MatMul (x, weight)
    kv = Reshape (packed, shape)
    y = com.microsoft.MultiHeadAttention <num_heads: int = @heads, scale: float = @scale> (q, kv)
}"""
EXAMPLE = {"B": 2, "S": 5, "L": 7, "I": 10, "C": 12, "P": (None, 24), "heads": 3, "scale": 0.3}


check = check_width


def derive(m: Match) -> dict[str, Any]:
    heads = m.attrs["heads"]
    size = m.size("C") // heads
    return {"weight": interleave(m, heads, size), "shape": m.editor.ints([0, 0, heads, 2, size])}
