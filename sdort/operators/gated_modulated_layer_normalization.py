"""sdort.GatedModulatedLayerNormalization: sum is sdort.GatedSum, and Y its AdaLN, of no rounded sum."""

from dataclasses import replace

from sdort.graph.operator import Call, Example
from sdort.operators import modulated_layer_normalization as alone
from sdort.operators.gated_sum import BIASED, summed

EXAMPLE = {
    "X": alone.ROWS, "branch": alone.ROWS, "bias": alone.ROWS[-1:], "gate": alone.OF_IMAGE, "scale": alone.OF_IMAGE,
    "shift": alone.OF_IMAGE,
}  # fmt: skip


def definition(call: Call) -> str:
    return f"""{BIASED}{summed("biased")}{alone.normal(call, "total")}{alone.modulated("scale", "shift", "Y")}
      sum = CastLike (total, X)"""


OPERATOR = replace(
    alone.OPERATOR,
    name="GatedModulatedLayerNormalization",
    inputs=tuple(EXAMPLE),
    outputs=("Y", "sum"),
    definition=definition,
    on_cpu=definition,
    additive=True,
    operations=12,
    examples=(Example(EXAMPLE), Example(EXAMPLE, {"epsilon": 0.25})),
)
