"""sdort.GatedTwiceModulatedLayerNormalization: sdort.GatedModulatedLayerNormalization with two modulations."""

from dataclasses import replace

from sdort.graph.operator import Call, Example
from sdort.operators import gated_modulated_layer_normalization as once
from sdort.operators.modulated_layer_normalization import OF_IMAGE, modulated


def definition(call: Call) -> str:
    return once.definition(call) + modulated("scale2", "shift2", "Y2")


_EXAMPLE = {**once.EXAMPLE, "scale2": OF_IMAGE, "shift2": OF_IMAGE}
OPERATOR = replace(
    once.OPERATOR,
    name="GatedTwiceModulatedLayerNormalization",
    inputs=tuple(_EXAMPLE),
    outputs=("Y", "sum", "Y2"),
    definition=definition,
    on_cpu=definition,
    operations=14,
    examples=(Example(_EXAMPLE), Example(_EXAMPLE, {"epsilon": 0.25})),
)
