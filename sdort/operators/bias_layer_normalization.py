"""sdort.BiasLayerNormalization: layer normalization of X + bias over the last axis."""

from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.operator import Call, Category, Example, Operator, any_form, outputs_only, same


def definition(call: Call) -> str:
    """The function that a model carries."""
    return f"""
      biased = Add (X, bias)
      Y = LayerNormalization {call.text("epsilon", axis=-1)} (biased, gamma, beta)"""


OPERATOR = Operator(
    name="BiasLayerNormalization",
    domain=OWN_DOMAIN,
    category=Category.NORMALIZATION,
    inputs=("X", "gamma", "beta", "bias"),
    outputs=("Y",),
    attributes={"epsilon": 1e-5},
    infer=same,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=True,
    factors=(),
    operations=9,
    kernels={"rocm": any_form, "cuda": any_form},
    unserved={},
    examples=(Example({"X": (2, 5, 12), "gamma": (12,), "beta": (12,), "bias": (12,)}, {"epsilon": 1e-3}),),
)
