"""A branch's bias and gate, the stream that it is added to, and the AdaLN that reads the sum.

https://arxiv.org/abs/2403.03206, figure 2.
"""

from itertools import product
from typing import Any

from sdort.fusions.gated_sum import BIASED, BRANCH, no_bias
from sdort.fusions.modulated_layer_norm import ANCHOR as ANCHOR
from sdort.fusions.modulated_layer_norm import FIRST, ONCE, SECOND, TWICE
from sdort.fusions.modulated_layer_norm import STAGE as STAGE
from sdort.fusions.modulated_layer_norm import check as check_norm

from sdort.rewrite.match import Match, Refusal

_BEFORE = """
g (float[B, S, C] x, float[B, S, C] branch, float[B, 1, C] gate, {0}) => ({1}) <float[C] gamma{2}> {{
    {3}
    sum = Add (x, gated)
    normal = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma)
    {4}
}}"""
_OUTPUTS = "float[B, S, C] y, float[B, S, C] sum"
_FORMS = (
    (f"{FIRST}, {SECOND}", f"{_OUTPUTS}, float[B, S, C] y2", TWICE),
    (FIRST, _OUTPUTS, ONCE),
)
BEFORE = tuple(
    _BEFORE.format(inputs, outputs, constants, gated, lines)
    for (inputs, outputs, lines), (constants, gated) in product(_FORMS, (BIASED, BRANCH))
)
_TWICE = """
g (float[] x, float[] branch, float[] bias, float[] gate, float[] scale, float[] shift, float[] scale2, float[] shift2)
=> (float[] y, float[] sum, float[] y2) {
    y, sum, y2 = sdort.GatedTwiceModulatedLayerNormalization <epsilon: float = @epsilon>
        (x, branch, bias, gate, scale, shift, scale2, shift2)
}"""
_ONCE = """
g (float[] x, float[] branch, float[] bias, float[] gate, float[] scale, float[] shift) => (float[] y, float[] sum) {
    y, sum = sdort.GatedModulatedLayerNormalization <epsilon: float = @epsilon> (x, branch, bias, gate, scale, shift)
}"""
AFTER = (_TWICE, _TWICE, _ONCE, _ONCE)
EXAMPLE = {"B": 2, "S": 5, "C": 8, "epsilon": 1e-6, "gamma": [1.0] * 8}


def check(m: Match) -> Refusal | None:
    refusal: Refusal | None = check_norm(m)
    return refusal


def derive(m: Match) -> dict[str, Any]:
    derived: dict[str, Any] = no_bias(m)
    return derived
