"""The exact Gelu, x/2 * (1 + erf(x / sqrt(2))) (https://arxiv.org/abs/1606.08415), in its three spellings."""

STAGE = "raise"
ANCHOR = "Erf"
MUST_FUSE = True
_HEAD = """g (float[] x) => (float[] y) <float half = {0.5}, float one = {1.0}, float r = {0.70710678}> {
    t = Mul (x, r)
    e = Erf (t)
    p = Add (e, one)
"""
BEFORE = (
    _HEAD + "q = Mul (x, p)  y = Mul (q, half) }",
    _HEAD + "q = Mul (p, half)  y = Mul (x, q) }",
    _HEAD + "q = Mul (x, half)  y = Mul (q, p) }",
)
AFTER = "g (float[] x) => (float[] y) { y = Gelu (x) }"
EXAMPLE = {"x": [2, 3, 8]}
