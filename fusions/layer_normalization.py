"""LayerNormalization as exporters below opset 17 write it.

y = gamma * (x - mean) / sqrt(var + epsilon) + beta over the last axis (https://arxiv.org/abs/1607.06450).
"""

from typing import Any

from sdort.rewrite.match import Match

STAGE = "raise"
ANCHOR = "ReduceMean"
MUST_FUSE = True
BEFORE = """
g (float[B, S, C] x) => (float[B, S, C] y)
<float[C] gamma, float[C] beta, float epsilon, int64[1] axis = {-1}, float two = {2.0}> {
    mean = ReduceMean <keepdims = 1> (x, axis)
    centered = Sub (x, mean)
    square = Pow (centered, two)
    variance = ReduceMean <keepdims = 1> (square, axis)
    shifted = Add (variance, epsilon)
    deviation = Sqrt (shifted)
    normal = Div (centered, deviation)
    scaled = Mul (normal, gamma)
    y = Add (scaled, beta)
}"""
AFTER = """
g (float[B, S, C] x, float[C] gamma, float[C] beta) => (float[B, S, C] y) {
    y = LayerNormalization <axis = -1, epsilon: float = @eps> (x, gamma, beta)
}"""
EXAMPLE = {"B": 2, "S": 3, "C": 8, "epsilon": [1e-5]}


def derive(m: Match) -> dict[str, Any]:
    return {"eps": m.scalar("epsilon")}
