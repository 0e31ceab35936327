"""Attention with its heads split and merged around it becomes Attention over [batch, sequence, heads * size]."""

from typing import Any

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "raise"
ANCHOR = "Attention"
RUN_AFTER = ("attention", "attention_masked", "attention_causal")
_BEFORE = """
g (float[B, S, C] q, float[B, L, C] k, float[B, L, V] v, int64[] sq, int64[] sk, int64[] sv, int64[] so{mask})
=> (float[B, S, V] y) <float[B, S, N, D] q4, float[B, L, N, D] k4, float[B, L, N, E] v4> {{
    q4 = Reshape (q, sq)
    k4 = Reshape (k, sk)
    v4 = Reshape (v, sv)
    qh = Transpose <perm = [0, 2, 1, 3]> (q4)
    kh = Transpose <perm = [0, 2, 1, 3]> (k4)
    vh = Transpose <perm = [0, 2, 1, 3]> (v4)
    o = Attention <scale: float = @scale, is_causal: int = @causal> ({inputs})
    ot = Transpose <perm = [0, 2, 1, 3]> (o)
    y = Reshape (ot, so)
}}"""
_AFTER = """
g (float[B, S, C] q, float[B, L, C] k, float[B, L, V] v{mask}) => (float[B, S, V] y) {{
    y = Attention <q_num_heads: int = @heads, kv_num_heads: int = @heads, scale: float = @scale,
                   is_causal: int = @causal> ({inputs})
}}"""
_MASKS = ({"mask": "", "inputs": "qh, kh, vh"}, {"mask": ", float[] mask", "inputs": "qh, kh, vh, mask"})
_FLAT = ({"mask": "", "inputs": "q, k, v"}, {"mask": ", float[] mask", "inputs": "q, k, v, mask"})
BEFORE = tuple(_BEFORE.format(**m) for m in _MASKS)
AFTER = tuple(_AFTER.format(**m) for m in _FLAT)
EXAMPLE = {
    "B": 2, "S": 5, "L": 7, "C": 12, "V": 12, "N": 3, "D": 4, "E": 4, "scale": 0.3, "causal": 0, "mask": [1, 1, 5, 7],
    "sq": [0, 0, 3, 4], "sk": [0, 0, 3, 4], "sv": [0, 0, 3, 4], "so": [0, 0, 12],
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    return None if m.known("N") else refuse("the number of heads is not fixed", m.dims["N"])


def derive(m: Match) -> dict[str, Any]:
    return {"heads": m.dims["N"], "causal": m.attrs["causal"] or None}
