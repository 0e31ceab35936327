"""Attention over [batch, sequence, heads * size] -> MultiHeadAttention."""

from typing import Any

from sdort.rewrite.match import Match

STAGE = "fuse"
ANCHOR = "Attention"
MUST_FUSE = True
RUN_AFTER = ("packed_qkv", "packed_kv", "packed_attention")
BEFORE = """
g (float[B, S, C] q, float[B, L, C] k, float[B, L, V] v) => (float[B, S, V] y) {
    y = Attention <q_num_heads: int = @heads, kv_num_heads: int = @heads, scale: float = @scale,
                   is_causal: int = @causal> (q, k, v)
}"""
AFTER = """
g (float[B, S, C] q, float[B, L, C] k, float[B, L, V] v) => (float[B, S, V] y) {
    y = com.microsoft.MultiHeadAttention <num_heads: int = @heads, scale: float = @scale,
                                          unidirectional: int = @causal> (q, k, v)
}"""
EXAMPLE = {"B": 2, "S": 5, "L": 7, "C": 12, "V": 12, "heads": 3, "scale": 0.3, "causal": 0}


def derive(m: Match) -> dict[str, Any]:
    return {"causal": m.attrs["causal"] or None}
