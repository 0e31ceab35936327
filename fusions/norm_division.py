"""A tensor times the inverse root of a mean square as a division by the root, which the fusions of norms know."""

from itertools import product

from sdort.rewrite.match import Match, Refusal

STAGE = "raise"
ANCHOR = "Sqrt"
RUN_AFTER = ("norm_root",)
_GRAPH = """
g (float[] x, float[] c, int64[] axes{inputs}) => (float[] y) {constants} {{
    square = Mul (c, c)
    mean = ReduceMean <keepdims = 1> (square, axes)
    shifted = Add (mean, epsilon)
    root = Sqrt (shifted)
    {end}
}}"""
_CONSTANTS = "<float epsilon, float one = {1.0}>"
_INVERSES = ("inverse = Reciprocal (root)", "inverse = Div (one, root)")
_PRODUCTS = (
    ("", "y = Mul (x, inverse)", "y = Div (x, root)"),
    (", float[] w", "factor = Mul (inverse, w)  y = Mul (x, factor)", "normal = Div (x, root)  y = Mul (normal, w)"),
)
_FORMS = tuple(product(_INVERSES, _PRODUCTS))
BEFORE = tuple(
    _GRAPH.format(inputs=more, constants=_CONSTANTS, end=f"{inverse}  {times}") for inverse, (more, times, _) in _FORMS
)
AFTER = tuple(
    _GRAPH.format(inputs=f"{more}, float epsilon", constants="", end=divided) for _, (more, _, divided) in _FORMS
)
EXAMPLE = {"x": [2, 3, 8], "c": [2, 3, 8], "w": [8], "axes": [-1], "epsilon": [1e-5]}


def check(m: Match) -> Refusal | None:
    """Of the factors of a product either could be ``x``: it is the one of the size of what is squared."""
    shapes = [m.editor.shape(m[name]) for name in ("x", "c", "w") if name in m.tensors]
    if "w" in m.tensors and (shapes[0] != shapes[1] or shapes[2] == shapes[1]):
        # The smaller form matches, which divides the other factor.
        return Refusal("the factor is not of fewer elements than what is normalized", m["x"].name, applicable=False)
    return None
