"""sdort.RMSNormRotaryEmbedding: sdort.RotaryEmbedding of heads that are divided by the root of their mean square, times
the scale, which is [size].
"""

from dataclasses import replace

from sdort.graph.operator import AttributeReference, Call, Category, Example, any_form
from sdort.operators import sdort_rotary_embedding
from sdort.operators.sdort_rotary_embedding import BY_HEAD, turned


def definition(call: Call) -> str:
    value = call.attributes["epsilon"]
    given = "value_float: float = @epsilon" if isinstance(value, AttributeReference) else f"value_float = {value:.20f}"
    return f"""{BY_HEAD}
      last = Constant <value_ints = [-1]> ()
      epsilon = Constant <{given}> ()
      square = Mul (heads, heads)
      mean_square = ReduceMean <keepdims = 1> (square, last)
      raised = Add (mean_square, epsilon)
      root = Sqrt (raised)
      normal = Div (heads, root)
      factor = Cast <to = 1> (scale)
      scaled = Mul (normal, factor)
      {turned(call, "scaled", "Y")}"""


OPERATOR = replace(
    sdort_rotary_embedding.OPERATOR,
    name="RMSNormRotaryEmbedding",
    category=Category.NORMALIZATION,
    inputs=("X", "scale", "cos", "sin"),
    attributes={"epsilon": 1e-5, "interleaved": 0},
    definition=definition,
    on_cpu=definition,
    factors=("scale",),
    operations=8,
    kernels={"rocm": any_form, "cuda": any_form},
    examples=(
        Example({"X": (2, 5, 24), "scale": (8,), "cos": (1, 5, 4), "sin": (1, 5, 4)}),
        Example(
            {"X": (2, 5, 24), "scale": (8,), "cos": (2, 5, 4), "sin": (2, 5, 4)}, {"interleaved": 1, "epsilon": 0.25}
        ),
    ),
)
