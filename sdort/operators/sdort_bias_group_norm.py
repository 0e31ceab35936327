"""sdort.BiasGroupNorm: S = X + bias; Y = its group normalization with optional SiLU. Channels-last.

sdort.GroupNorm in another form: a model has one form of each (:mod:`sdort.onnx_io.own_functions`).
"""

from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.fact import Fact
from sdort.graph.operator import REQUIRED, Call, Category, Example, Operator, outputs_only, same
from sdort.operators.group_norm import pairs_of_channels


def infer(call: Call) -> list[Fact]:
    return same(call) * 2


def definition(call: Call) -> str:
    """The function that a model carries: with ONNX Runtime's GroupNorm, which GPU providers have a kernel of."""
    settings = call.text("groups", "activation", "epsilon", channels_last=1)
    return f"""
      S = Add (X, bias)
      Y = com.microsoft.GroupNorm {settings} (S, gamma, beta)"""


OPERATOR = Operator(
    name="BiasGroupNorm",
    domain=OWN_DOMAIN,
    category=Category.NORMALIZATION,
    inputs=("X", "gamma", "beta", "bias"),
    outputs=("Y", "S"),
    attributes={"groups": REQUIRED, "activation": 0, "epsilon": 1e-5, "channels_last": 1},
    infer=infer,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=("gamma", "beta"),
    additive=True,
    factors=(),
    operations=10,
    kernels={"rocm": pairs_of_channels, "cuda": pairs_of_channels},
    unserved={},
    examples=(
        Example({"X": (2, 3, 5, 12), "gamma": (12,), "beta": (12,), "bias": (12,)}, {"groups": 3, "activation": 1}),
    ),
)
