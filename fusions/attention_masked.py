"""Attention with a mask that is added to the scores.

The guard against rows that are masked completely (torch writes 0 where softmax gives NaN) is dropped where the mask is
causal: there the diagonal is always open.
"""

from typing import Any

from sdort.fusions.attention import attention_scale

from sdort.rewrite.match import Match, Refusal, refuse
from sdort.rewrite.shapes_only import is_causal

STAGE = "raise"
ANCHOR = "Softmax"
RUN_AFTER = ("transpose_last_two",)
_DECLARED = "<float scale, float zero = {0.0}> {"
_STRAIGHT = f"""
g (float[B, N, S, D] q, float[B, N, L, D] k, float[B, N, L, E] v, float[] mask) => (float[B, N, S, E] y) {_DECLARED}
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
"""
_TURNED = f"""
g (float[B, N, S, D] q, float[B, L, N, D] k, float[B, N, L, E] v, float[] mask) => (float[B, N, S, E] y) {_DECLARED}
    kt = Transpose <perm = [0, 2, 3, 1]> (k)
"""
_SCORES = ("score = MatMul (q, kt)  logits = Mul (score, scale)", "logits = MatMul (q, kt)")
_TAILS = (
    "sum = Add (logits, mask)  p = Softmax <axis = -1> (sum)  y = MatMul (p, v) }",
    "sum = Add (logits, mask)  p = Softmax <axis = -1> (sum)  bad = IsNaN (p)  safe = Where (bad, zero, p)  "
    "y = MatMul (safe, v) }",
)
BEFORE = tuple(head + score + "\n" + tail for head in (_STRAIGHT, _TURNED) for score in _SCORES for tail in _TAILS)
_AFTER = """
g (float[B, N, S, D] q, float[B, N, L, D] k, float[B, N, L, E] v, float[] mask) => (float[B, N, S, E] y) {
    y = Attention <scale: float = @factor> (q, k, v, mask)
}"""
_AFTER_TURNED = """
g (float[B, N, S, D] q, float[B, L, N, D] k, float[B, N, L, E] v, float[] mask) => (float[B, N, S, E] y) {
    heads = Transpose <perm = [0, 2, 1, 3]> (k)
    y = Attention <scale: float = @factor> (q, heads, v, mask)
}"""
AFTER = (_AFTER,) * 4 + (_AFTER_TURNED,) * 4
EXAMPLE = {"B": 2, "N": 3, "S": 5, "L": 5, "D": 4, "E": 4, "scale": [0.3], "mask": ([1, 1, 5, 5], "causal") * 4}


def check(m: Match) -> Refusal | None:
    if not m.known("D"):
        return refuse("the head size is not fixed", m.dims["D"])
    if "bad" in m.tensors and not is_causal(m.editor, m["mask"]):
        return refuse("the mask may close whole rows, so the guard against NaN has to stay", m["mask"].name)
    return None


def derive(m: Match) -> dict[str, Any]:
    return {"factor": attention_scale(m)}
