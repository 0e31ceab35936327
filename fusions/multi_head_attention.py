"""Attention over [batch, sequence, heads * size] -> MultiHeadAttention.

ONNX Runtime's kernels want a mask of as many rows as there are queries; they broadcast it over batch and heads.
"""

from typing import Any

import numpy as np

from sdort.rewrite.masks import extremes
from sdort.rewrite.match import Match, Refusal

STAGE = "fuse"
ANCHOR = "Attention"
MUST_FUSE = True
RUN_AFTER = ("packed_qkv", "packed_kv", "packed_attention")
_BEFORE = """
g (float[B, S, C] q, float[K, L, W] k, float[A, T, V] v{mask}) => (float[] y) {{
    y = Attention <q_num_heads: int = @heads, kv_num_heads: int = @heads, scale: float = @scale,
                   is_causal: int = @causal, softcap: float = @cap, softmax_precision: int = @precision> ({inputs})
}}"""
_AFTER = """
g (float[B, S, C] q, float[K, L, W] k, float[A, T, V] v) => (float[] y) {
    y = com.microsoft.MultiHeadAttention <num_heads: int = @heads, scale: float = @scale,
                                          unidirectional: int = @causal> (q, k, v)
}"""
_AFTER_MASKED = """
g (float[B, S, C] q, float[K, L, W] k, float[A, T, V] v, float[] mask, int64[1] one) => (float[] y) {
    rows = Shape <start = 1, end = 2> (q)
    sizes = Concat <axis = 0> (one, one, rows, one)
    bias = Expand (mask, sizes)
    y = com.microsoft.MultiHeadAttention <num_heads: int = @heads, scale: float = @scale,
                                          unidirectional: int = @causal> (q, k, v, "", "", bias)
}"""
BEFORE = (
    _BEFORE.format(mask="", inputs="q, k, v"),
    _BEFORE.format(mask=", float[] mask", inputs="q, k, v, mask"),
)
AFTER = (_AFTER, _AFTER_MASKED)
EXAMPLE = {
    "B": 2, "S": 5, "C": 12, "K": 2, "L": 7, "W": 12, "A": 2, "T": 7, "V": 12, "heads": 3, "scale": 0.3, "causal": 0,
    "cap": 0.0, "precision": None, "mask": [2, 1, 5, 7],
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    if m.attrs["cap"]:
        return _without_kernel("no kernel of MultiHeadAttention caps its scores")
    if m.attrs["precision"]:
        return _without_kernel(
            f"softmax_precision is {m.attrs['precision']}, and no kernel of MultiHeadAttention widens its softmax"
        )
    # In fp16 such a number would be an infinity, and a row of them would have no largest one.
    half = m.editor.half or m.editor.dtype(m["q"]) == np.float16
    if "mask" in m.tensors and half and extremes(m.editor, m["mask"]).beyond_half:
        return _without_kernel(
            "MultiHeadAttention has its mask in the precision of its inputs, and fp16 cannot hold it"
        )
    return None


def _without_kernel(reason: str) -> Refusal:
    return Refusal(reason, applicable=False, by_target=True)


def derive(m: Match) -> dict[str, Any]:
    return {"causal": m.attrs["causal"] or None, "one": m.editor.ints([1])}
