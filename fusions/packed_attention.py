"""Causal self-attention with biased projections (CLIP) -> com.microsoft Attention, projections included.

ORT's MultiHeadAttention has no causal form on ROCm and takes no bias there; its Attention operator has both.
"""

from typing import Any

from sdort.graph.weights import Concatenated, as_weight
from sdort.rewrite.match import Match

STAGE = "fuse"
ANCHOR = "Attention"
_BEFORE = """
g (float[B, S, I] x) => (float[B, S, C] y) <{0}> {{
    {1}
    y = Attention <q_num_heads: int = @heads, kv_num_heads: int = @heads, scale: float = @scale,
                   is_causal = 1> (q, k, v)
}}"""
_APART = (
    "float[I, C] wq, float[I, C] wk, float[I, C] wv, float[C] bq, float[C] bk, float[C] bv",
    """qm = MatMul (x, wq)  km = MatMul (x, wk)  vm = MatMul (x, wv)
    q = Add (qm, bq)  k = Add (km, bk)  v = Add (vm, bv)""",
)
_ONE = (
    "float[I, P] weight, float[P] bias, float[B, S, C] q",
    "m = MatMul (x, weight)  b = Add (m, bias)  q, k, v = Split <axis = -1, num_outputs = 3> (b)",
)
BEFORE = tuple(_BEFORE.format(*parts) for parts in (_APART, _ONE))
AFTER = """
g (float[B, S, I] x, float[I, P] weight, float[P] bias) => (float[B, S, C] y) {
    y = com.microsoft.Attention <num_heads: int = @heads, scale: float = @scale, unidirectional = 1> (x, weight, bias)
}"""
EXAMPLE = {"B": 2, "S": 5, "I": 12, "C": 12, "P": (None, 36), "heads": 3, "scale": 0.3}


def derive(m: Match) -> dict[str, Any]:
    if "weight" in m.tensors:
        return {}
    weight = Concatenated([as_weight(m[n]._values) for n in ("wq", "wk", "wv")], 1)
    bias = Concatenated([as_weight(m[n]._values) for n in ("bq", "bk", "bv")], 0)
    return {"weight": m.editor.constant(weight, m["wq"].name), "bias": m.editor.constant(bias, m["bq"].name)}
