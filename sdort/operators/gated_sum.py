"""sdort.GatedSum: X + gate * (branch + bias), what a block whose gates are its timestep's writes to its stream.

https://arxiv.org/abs/2212.09748. X and branch are [batch, rows, width], bias is [width], gate [batch, 1, width].
"""

from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.operator import Call, Category, Example, Operator, any_form, outputs_only, same


def summed(branch: str) -> str:
    """Steps to ``total``, X plus the gate times the branch, all of float32."""
    return f"""
      wide = Cast <to = 1> (X)
      wide_gate = Cast <to = 1> (gate)
      gated = Mul (wide_gate, {branch})
      total = Add (wide, gated)"""


BIASED = """
      wide_branch = Cast <to = 1> (branch)
      wide_bias = Cast <to = 1> (bias)
      biased = Add (wide_branch, wide_bias)"""


def definition(call: Call) -> str:
    return f"""{BIASED}{summed("biased")}
      Y = CastLike (total, X)"""


OPERATOR = Operator(
    name="GatedSum",
    domain=OWN_DOMAIN,
    category=Category.SUM,
    inputs=("X", "branch", "bias", "gate"),
    outputs=("Y",),
    attributes={},
    infer=same,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=True,
    factors=(),
    operations=3,
    kernels={"rocm": any_form, "cuda": any_form},
    unserved={},
    examples=(Example({"X": (2, 5, 12), "branch": (2, 5, 12), "bias": (12,), "gate": (2, 1, 12)}),),
)
