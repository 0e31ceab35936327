"""The square of a mean square in the spelling that the fusions of norms know: c * c for Pow(c, 2), the same number."""

STAGE = "raise"
ANCHOR = "Pow"
BEFORE = """
g (float[] c, int64[] axes) => (float[] mean) <float two = {2.0}> {
    square = Pow (c, two)
    mean = ReduceMean <keepdims = 1> (square, axes)
}"""
AFTER = """
g (float[] c, int64[] axes) => (float[] mean) {
    square = Mul (c, c)
    mean = ReduceMean <keepdims = 1> (square, axes)
}"""
EXAMPLE = {"c": [2, 3, 8], "axes": [-1]}
