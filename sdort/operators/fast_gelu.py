"""com.microsoft.FastGelu: the tanh approximation of Gelu, of X or of X + bias (https://arxiv.org/abs/1606.08415)."""

from sdort.graph.domains import MICROSOFT
from sdort.graph.operator import Call, Category, Example, Operator, any_form, outputs_only, runs_itself, same


def definition(call: Call) -> str:
    return f"""
      biased = {"Add (X, bias)" if call.has("bias") else "Identity (X)"}
      three = Constant <value_float = 3.0> ()
      weight = Constant <value_float = 0.044715> ()
      root = Constant <value_float = 0.7978845608028654> ()
      half = Constant <value_float = 0.5> ()
      one = Constant <value_float = 1.0> ()
      cube = Pow (biased, three)
      bent = Mul (cube, weight)
      sum = Add (biased, bent)
      scaled = Mul (sum, root)
      tanh = Tanh (scaled)
      raised = Add (tanh, one)
      cdf = Mul (raised, half)
      Y = Mul (biased, cdf)"""


OPERATOR = Operator(
    name="FastGelu",
    domain=MICROSOFT,
    category=Category.ACTIVATION,
    inputs=("X", "bias"),
    outputs=("Y",),
    attributes={},
    infer=same,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=(),
    operations=9,
    kernels={"rocm": any_form, "migraphx": any_form, "cuda": any_form, "webgpu": any_form, "cpu": any_form},
    unserved={},
    examples=(Example({"X": (2, 5, 12)}), Example({"X": (2, 5, 12), "bias": (12,)})),
)
