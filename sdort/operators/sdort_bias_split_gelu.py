"""sdort.BiasSplitGelu: com.microsoft.BiasSplitGelu of any width; ONNX Runtime's kernels are compiled for three."""

from sdort.model.domains import OWN_DOMAIN
from sdort.model.operator import Call, Category, Example, Operator, any_form, outputs_only
from sdort.operators.bias_split_gelu import infer


def definition(call: Call) -> str:
    """The function that a model carries: with ONNX Runtime's Gelu, which GPU providers have a kernel of."""
    return """
      biased = Add (X, bias)
      left, right = Split <axis = -1, num_outputs = 2> (biased)
      gelu = com.microsoft.Gelu (right)
      Y = Mul (left, gelu)"""


OPERATOR = Operator(
    name="BiasSplitGelu",
    domain=OWN_DOMAIN,
    category=Category.ACTIVATION,
    inputs=("X", "bias"),
    outputs=("Y",),
    attributes={},
    infer=infer,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=(),
    operations=10,
    kernels={"rocm": any_form, "cuda": any_form},
    unserved={},
    examples=(Example({"X": (2, 5, 16), "bias": (16,)}),),
)
