"""Attention over merged batch and heads (diffusers' first attention processor, baddbmm and bmm)."""

from typing import Any

from sdort.fusions.attention import check as check_sizes
from sdort.fusions.attention import concerns as concerns
from sdort.fusions.attention import derive as derive_scale

from sdort.rewrite.match import Match, Refusal, decline, refuse

STAGE = "raise"
ANCHOR = "Softmax"
_BEFORE = """
g (float[M, S, D] q, float[M, L, D] k, float[M, L, E] v{mask}) => (float[M, S, E] y) <float scale> {{
    kt = Transpose <perm = [0, 2, 1]> (k)
    {scores}
    p = Softmax <axis = -1> ({last})
    y = MatMul (p, v)
}}"""
_SCORES = ("score = MatMul (q, kt)  logits = Mul (score, scale)", "logits = MatMul (q, kt)")
_MASK = ", float[] mask"
_AFTER = """
g (float[M, S, D] q, float[M, L, D] k, float[M, L, E] v) => (float[M, S, E] y) {
    y = Attention <q_num_heads = 1, kv_num_heads = 1, scale: float = @factor> (q, k, v)
}"""
_AFTER_MASKED = """
g (float[M, S, D] q, float[M, L, D] k, float[M, L, E] v, float[] mask, int64[1] axis) => (float[M, S, E] y) {
    by_head = Unsqueeze (mask, axis)
    y = Attention <q_num_heads = 1, kv_num_heads = 1, scale: float = @factor> (q, k, v, by_head)
}"""
BEFORE = (
    *(_BEFORE.format(mask="", scores=scores, last="logits") for scores in _SCORES),
    *(_BEFORE.format(mask=_MASK, scores=f"{scores}  sum = Add (logits, mask)", last="sum") for scores in _SCORES),
)
AFTER = (_AFTER, _AFTER, _AFTER_MASKED, _AFTER_MASKED)
EXAMPLE = {"M": 6, "S": 5, "L": 7, "D": 4, "E": 4, "scale": [0.3], "mask": [6, 5, 7]}


def check(m: Match) -> Refusal | None:
    if "mask" in m.tensors:
        shape = m.editor.shape(m["mask"])
        if shape is None or len(shape) != 3:
            return refuse("the mask has not three axes", m["mask"].name)
        if shape[-1] != m.dims["L"]:
            return decline("one element of the mask is added to all keys alike", list(shape))
    refusal: Refusal | None = check_sizes(m)
    return refusal


def derive(m: Match) -> dict[str, Any]:
    return {**derive_scale(m), "axis": m.editor.ints([1])}
