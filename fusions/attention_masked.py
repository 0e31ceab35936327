"""Attention with a mask that is added to the scores.

torch writes 0 where softmax gives NaN: in rows that are masked completely, whose result is 0 in ONNX's Attention too.
"""

from sdort.fusions.attention import check as check_sizes
from sdort.fusions.attention import derive as derive  # the scale

from sdort.rewrite.match import Match, Refusal, decline, refuse

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
    shape = m.editor.shape(m["mask"])
    if shape is None:
        return refuse("the mask's shape is not known", m["mask"].name)
    if not shape or shape[-1] != m.dims["L"]:
        return decline("one element of the mask is added to all keys alike", list(shape))
    return check_sizes(m)
