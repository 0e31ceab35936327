"""sdort.TwiceModulatedLayerNormalization: sdort.ModulatedLayerNormalization with two scales and shifts of one norm.

Stable Diffusion 3.5's blocks with two attentions of the image have it (https://arxiv.org/abs/2403.03206).
"""

from dataclasses import replace

from sdort.graph.operator import Call, Example
from sdort.operators import modulated_layer_normalization as once


def definition(call: Call) -> str:
    return once.definition(call) + once.modulated("scale2", "shift2", "Y2")


_EXAMPLE = {**once.EXAMPLE, "scale2": once.OF_IMAGE, "shift2": once.OF_IMAGE}
OPERATOR = replace(
    once.OPERATOR,
    name="TwiceModulatedLayerNormalization",
    inputs=(*once.OPERATOR.inputs, "scale2", "shift2"),
    outputs=("Y", "Y2"),
    definition=definition,
    on_cpu=definition,
    operations=11,
    examples=(Example(_EXAMPLE), Example(_EXAMPLE, {"epsilon": 0.25})),
)
