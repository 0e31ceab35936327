"""A residual sum (and the bias of the projection before it) and the LayerNormalization that reads it."""

STAGE = "fuse"
ANCHOR = "LayerNormalization"
RUN_AFTER = ("gated_sum",)  # which spares a tensor more: the branch times its gate
BEFORE = (
    """
g (float[B, S, C] x, float[B, S, C] skip) => (float[B, S, C] y, float[B, S, C] sum)
<float[C] gamma, float[C] beta, float[C] bias> {
    biased = Add (x, bias)
    sum = Add (biased, skip)
    y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma, beta)
}""",
    """
g (float[B, S, C] x, float[B, S, C] skip) => (float[B, S, C] y, float[B, S, C] sum)
<float[C] gamma, float[C] beta> {
    sum = Add (x, skip)
    y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma, beta)
}""",
    """
g (float[B, S, C] x, float[B, S, C] skip) => (float[B, S, C] y, float[B, S, C] sum) <float[C] gamma> {
    sum = Add (x, skip)
    y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma)
}""",
)
AFTER = (
    """
g (float[B, S, C] x, float[B, S, C] skip, float[C] gamma, float[C] beta, float[C] bias)
=> (float[B, S, C] y, float[B, S, C] sum) {
    y, mean, deviation, sum
        = com.microsoft.SkipLayerNormalization <epsilon: float = @epsilon> (x, skip, gamma, beta, bias)
}""",
    """
g (float[B, S, C] x, float[B, S, C] skip, float[C] gamma, float[C] beta)
=> (float[B, S, C] y, float[B, S, C] sum) {
    y, mean, deviation, sum = com.microsoft.SkipLayerNormalization <epsilon: float = @epsilon> (x, skip, gamma, beta)
}""",
    """
g (float[B, S, C] x, float[B, S, C] skip, float[C] gamma) => (float[B, S, C] y, float[B, S, C] sum) {
    y, mean, deviation, sum = com.microsoft.SkipLayerNormalization <epsilon: float = @epsilon> (x, skip, gamma)
}""",
)
EXAMPLE = {"B": 2, "S": 5, "C": 8, "epsilon": 1e-5}
