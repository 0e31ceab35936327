"""The root of a mean square as Sqrt, and the inverse one as 1 / Sqrt, for a Pow by 1/2 or -1/2.

What keeps a variance in fp32 looks for its Sqrt (:mod:`sdort.passes.half`), and so do the fusions of norms.
"""

STAGE = "raise"
ANCHOR = "Pow"
RUN_AFTER = ("norm_square",)
_MEAN = """
g (float[] c, int64[] axes{more}) => (float[] y) {values} {{
    square = Mul (c, c)
    mean = ReduceMean <keepdims = 1> (square, axes)
    shifted = Add (mean, epsilon)
    {root}
}}"""
_MORE = ", float epsilon"
BEFORE = (
    _MEAN.format(more="", values="<float epsilon, float power = {-0.5}>", root="y = Pow (shifted, power)"),
    _MEAN.format(more="", values="<float epsilon, float power = {0.5}>", root="y = Pow (shifted, power)"),
)
AFTER = (
    _MEAN.format(more=_MORE, values="", root="root = Sqrt (shifted)  y = Reciprocal (root)"),
    _MEAN.format(more=_MORE, values="", root="y = Sqrt (shifted)"),
)
EXAMPLE = {"c": [2, 3, 8], "axes": [-1], "epsilon": [1e-5]}
