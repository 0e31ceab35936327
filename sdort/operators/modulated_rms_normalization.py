"""sdort.ModulatedRMSNormalization: X / sqrt(mean(X^2) + epsilon) * weight * scale, as Z-Image and Lumina modulate.

X is [batch, rows, width], the weight [width], the scale [batch, 1, width].
"""

from dataclasses import replace

from sdort.graph.operator import AttributeReference, Call, Example
from sdort.operators import modulated_layer_normalization as layer
from sdort.operators.modulated_layer_normalization import OF_IMAGE, ROWS, WIDE, modulated


def root_mean_square(call: Call, x: str, weight: str, epsilon: str, y: str) -> str:
    """Steps from x to y, of float32: divided by the root of the mean square over the last axis, times the weight."""
    value = call.attributes[epsilon]
    given = (
        f"value_float: float = @{epsilon}" if isinstance(value, AttributeReference) else f"value_float = {value:.20f}"
    )
    return f"""
      {y}_last = Constant <value_ints = [-1]> ()
      {y}_epsilon = Constant <{given}> ()
      {y}_square = Mul ({x}, {x})
      {y}_mean = ReduceMean <keepdims = 1> ({y}_square, {y}_last)
      {y}_raised = Add ({y}_mean, {y}_epsilon)
      {y}_root = Sqrt ({y}_raised)
      {y}_plain = Div ({x}, {y}_root)
      {y}_weight = Cast <to = 1> ({weight})
      {y} = Mul ({y}_plain, {y}_weight)"""


def definition(call: Call) -> str:
    return WIDE + root_mean_square(call, "wide", "weight", "epsilon", "normal") + modulated("scale", None, "Y")


_EXAMPLE = {"X": ROWS, "weight": ROWS[-1:], "scale": OF_IMAGE}
OPERATOR = replace(
    layer.OPERATOR,
    name="ModulatedRMSNormalization",
    inputs=tuple(_EXAMPLE),
    attributes={"epsilon": 1e-5},
    definition=definition,
    on_cpu=definition,
    factors=("weight", "scale"),
    operations=6,
    examples=(Example(_EXAMPLE), Example(_EXAMPLE, {"epsilon": 0.25})),
)
