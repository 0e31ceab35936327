"""com.microsoft.BiasAdd: a bias and a residual sum."""

from sdort.graph.domains import MICROSOFT
from sdort.graph.operator import Call, Category, Example, Operator, any_form, outputs_only, same


def definition(call: Call) -> str:
    return """
      biased = Add (X, bias)
      Y = Add (biased, skip)"""


OPERATOR = Operator(
    name="BiasAdd",
    domain=MICROSOFT,
    category=Category.SUM,
    inputs=("X", "bias", "skip"),
    outputs=("Y",),
    attributes={},
    infer=same,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=True,
    factors=(),
    operations=2,
    kernels={"rocm": any_form, "cuda": any_form, "webgpu": any_form},
    unserved={},
    examples=(Example({"X": (2, 5, 12), "bias": (12,), "skip": (2, 5, 12)}),),
)
