"""sdort.SplitSilu: left * SiLU(right) of the halves of X, [batch, rows, 2 width] (SwiGLU, https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.operator import Call, Category, Example, Operator, any_form, outputs_only
from sdort.operators.bias_split_gelu import infer


def halves(activation: str) -> str:
    """The product of the first half and the activation, ``active``, of the second, ``right``; in float32."""
    return f"""
      wide = Cast <to = 1> (X)
      left, right = Split <axis = -1, num_outputs = 2> (wide)
      {activation}
      product = Mul (left, active)
      Y = CastLike (product, X)"""


def definition(call: Call) -> str:
    return halves("share = Sigmoid (right)  active = Mul (right, share)")


OPERATOR = Operator(
    name="SplitSilu",
    domain=OWN_DOMAIN,
    category=Category.ACTIVATION,
    inputs=("X",),
    outputs=("Y",),
    attributes={},
    infer=infer,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=(),
    operations=6,
    kernels={"rocm": any_form, "cuda": any_form},
    unserved={},
    examples=(Example({"X": (2, 5, 16)}),),
)
