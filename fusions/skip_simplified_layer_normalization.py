"""A residual sum (and the bias of the projection before it) and the RMSNormalization that reads it."""

STAGE = "fuse"
ANCHOR = "RMSNormalization"
RUN_AFTER = ("gated_sum",)  # which spares a tensor more: the branch times its gate
_BEFORE = """
g (float[B, S, C] x, float[B, S, C] skip) => (float[B, S, C] y, float[B, S, C] sum) <float[C] gamma{0}> {{
    {1}
    y = RMSNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma)
}}"""
_AFTER = """
g (float[B, S, C] x, float[B, S, C] skip, float[C] gamma{0}) => (float[B, S, C] y, float[B, S, C] sum) {{
    y, mean, inverse, sum = com.microsoft.SkipSimplifiedLayerNormalization <epsilon: float = @epsilon> ({1})
}}"""
BEFORE = (
    _BEFORE.format(", float[C] bias", "biased = Add (x, bias)  sum = Add (biased, skip)"),
    _BEFORE.format("", "sum = Add (x, skip)"),
)
AFTER = (
    _AFTER.format(", float[C] bias", "x, skip, gamma, bias"),
    _AFTER.format("", "x, skip, gamma"),
)
EXAMPLE = {"B": 2, "S": 5, "C": 8, "epsilon": 1e-5}
