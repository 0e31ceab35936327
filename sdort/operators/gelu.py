"""com.microsoft.Gelu: x/2 * (1 + erf(x / sqrt(2))) (https://arxiv.org/abs/1606.08415)."""

from sdort.graph.domains import MICROSOFT
from sdort.graph.operator import Call, Category, Example, Operator, any_form, outputs_only, runs_itself, same


def by_error_function(source: str, result: str) -> str:
    """The exact Gelu of one tensor of the body, as another."""
    return f"""
      root = Constant <value_float = 1.4142135623730951> ()
      half = Constant <value_float = 0.5> ()
      one = Constant <value_float = 1.0> ()
      ratio = Div ({source}, root)
      erf = Erf (ratio)
      raised = Add (erf, one)
      cdf = Mul (raised, half)
      {result} = Mul ({source}, cdf)"""


def definition(call: Call) -> str:
    return by_error_function("X", "Y")


OPERATOR = Operator(
    name="Gelu",
    domain=MICROSOFT,
    category=Category.ACTIVATION,
    inputs=("X",),
    outputs=("Y",),
    attributes={},
    infer=same,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=(),
    operations=8,
    kernels={"rocm": any_form, "cuda": any_form, "webgpu": any_form, "cpu": any_form},
    unserved={},
    examples=(Example({"X": (2, 5, 12)}),),
)
