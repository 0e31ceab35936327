"""sdort.GatedModulatedRMSNormalization: sum is X plus the gate times a normalized branch, Y modulates its norm.

The branch's norm is that of sdort.ModulatedRMSNormalization, with ``factor`` for a weight and ``branch_epsilon``; Y is
sdort.ModulatedRMSNormalization of the sum, not rounded. Z-Image's blocks have it (https://arxiv.org/abs/2511.22699).
"""

from dataclasses import replace

from sdort.graph.operator import Call, Example
from sdort.operators import modulated_rms_normalization as alone
from sdort.operators.gated_sum import summed
from sdort.operators.modulated_layer_normalization import OF_IMAGE, ROWS, modulated


def definition(call: Call) -> str:
    inner = alone.root_mean_square(call, "wide_branch", "factor", "branch_epsilon", "inner")
    return f"""
      wide_branch = Cast <to = 1> (branch){inner}{summed("inner")}
      {alone.root_mean_square(call, "total", "weight", "epsilon", "normal")}{modulated("scale", None, "Y")}
      sum = CastLike (total, X)"""


_EXAMPLE = {
    "X": ROWS, "branch": ROWS, "factor": ROWS[-1:], "gate": OF_IMAGE, "weight": ROWS[-1:], "scale": OF_IMAGE,
}  # fmt: skip
OPERATOR = replace(
    alone.OPERATOR,
    name="GatedModulatedRMSNormalization",
    inputs=tuple(_EXAMPLE),
    outputs=("Y", "sum"),
    attributes={"epsilon": 1e-5, "branch_epsilon": 1e-5},
    definition=definition,
    on_cpu=definition,
    additive=True,
    operations=13,
    examples=(Example(_EXAMPLE), Example(_EXAMPLE, {"epsilon": 0.25, "branch_epsilon": 0.5})),
)
