"""sdort.BiasSplitGelu: com.microsoft.BiasSplitGelu of any width; ONNX Runtime's kernels are compiled for three."""

from dataclasses import replace

from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.operator import Call, any_form
from sdort.operators import bias_split_gelu


def definition(call: Call) -> str:
    """The function that a model carries: with ONNX Runtime's Gelu, which GPU providers have a kernel of."""
    return """
      biased = Add (X, bias)
      left, right = Split <axis = -1, num_outputs = 2> (biased)
      gelu = com.microsoft.Gelu (right)
      Y = Mul (left, gelu)"""


OPERATOR = replace(
    bias_split_gelu.OPERATOR,
    domain=OWN_DOMAIN,
    definition=definition,
    on_cpu=definition,
    kernels={"rocm": any_form, "cuda": any_form},
)
