"""The exact Gelu for targets without a Gelu operator: x/2 * (1 + erf(x / sqrt(2)))."""

STAGE = "lower"
ANCHOR = "Gelu"
RUN_AFTER = ("gelu",)
BEFORE = "g (float[] x) => (float[] y) { y = Gelu (x) }"
AFTER = """g (float[] x) => (float[] y) <float half = {0.5}, float one = {1.0}, float r = {0.70710678}> {
    t = Mul (x, r)
    e = Erf (t)
    p = Add (e, one)
    h = Mul (x, half)
    y = Mul (h, p)
}"""
EXAMPLE = {"x": [2, 3, 8]}
