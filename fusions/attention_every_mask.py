"""Attention with a mask over [batch, sequence, width] -> MultiHeadAttention with a mask of every prompt and head.

The kernels of ROCm and DirectML repeat no mask. All attentions of an encoder have one, which is then repeated once.
"""

from typing import Any

from sdort.fusions.multi_head_attention import check as check

from sdort.rewrite.match import Match

STAGE = "fuse"
ANCHOR = "Attention"
PROVIDERS = ("rocm", "dml")
RUN_AFTER = ("multi_head_attention",)
BEFORE = """
g (float[B, S, C] q, float[K, L, W] k, float[A, T, V] v, float[] mask) => (float[] y) {
    y = Attention <q_num_heads: int = @heads, kv_num_heads: int = @heads, scale: float = @scale,
                   softcap: float = @cap, softmax_precision: int = @precision> (q, k, v, mask)
}"""
AFTER = """
g (float[B, S, C] q, float[K, L, W] k, float[A, T, V] v, float[] mask, int64[1] one, int64[1] all) => (float[] y) {
    first = Shape <start = 0, end = 1> (q)
    rows = Shape <start = 1, end = 2> (q)
    sizes = Concat <axis = 0> (first, all, rows, one)
    bias = Expand (mask, sizes)
    y = com.microsoft.MultiHeadAttention <num_heads: int = @heads, scale: float = @scale> (q, k, v, "", "", bias)
}"""
EXAMPLE = {
    "B": 2, "S": 5, "C": 12, "K": 2, "L": 7, "W": 12, "A": 2, "T": 7, "V": 12, "heads": 3, "scale": 0.3, "cap": 0.0,
    "precision": None, "mask": [2, 1, 5, 7],
}  # fmt: skip


def derive(m: Match) -> dict[str, Any]:
    return {"one": m.editor.ints([1]), "all": m.editor.ints([m.attrs["heads"]])}
