"""ONNX Runtime's residual sum with a root mean square norm, as another tool has put it in, as a sum and a norm."""

from itertools import product

STAGE = "restore"
ANCHOR = "com.microsoft.SkipSimplifiedLayerNormalization"
_BEFORE = """
g (float[B, S, C] x, float[B, S, C] skip, float[C] gamma{0}) => (float[B, S, C] y{1}) {{
    {2} = com.microsoft.SkipSimplifiedLayerNormalization <epsilon: float = @epsilon> (x, skip, gamma{3})
}}"""
_AFTER = """
g (float[B, S, C] x, float[B, S, C] skip, float[C] gamma{0}) => (float[B, S, C] y{1}) {{
    {2}
    y = RMSNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma)
}}"""
_BIASES = (
    (", float[C] bias", ", bias", "biased = Add (x, bias)  sum = Add (biased, skip)"),
    ("", "", "sum = Add (x, skip)"),
)
_RESULTS = ((", float[B, S, C] sum", 'y, "", "", sum'), ("", "y"))
_FORMS = tuple(product(_BIASES, _RESULTS))
BEFORE = tuple(_BEFORE.format(more, result, names, bias) for (more, bias, _), (result, names) in _FORMS)
AFTER = tuple(_AFTER.format(more, result, add) for (more, _, add), (result, _) in _FORMS)
EXAMPLE = {"B": 2, "S": 3, "C": 8, "epsilon": 1e-5}
