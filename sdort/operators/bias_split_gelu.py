"""com.microsoft.BiasSplitGelu: left * gelu(right) of the halves of X + bias, the exact Gelu (GEGLU).

https://arxiv.org/abs/2002.05202
"""

from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import Fact
from sdort.graph.operator import Call, Category, Example, Operator, any_form, outputs_only
from sdort.graph.symbolic import divide, unknown
from sdort.operators.gelu import by_error_function

WIDTHS = (1280, 2560, 5120)
"""bias_split_gelu_impl.cu (CUDA 1.31 and, hipified, ROCm 1.22) has these output widths and throws for any other."""


def infer(call: Call) -> list[Fact]:
    x = call.fact("X")
    if x.shape is None:
        return [Fact(x.dtype)]
    half = divide(x.shape[-1], 2)
    return [Fact(x.dtype, (*x.shape[:-1], unknown() if half is None else half))]


def definition(call: Call) -> str:
    return f"""
      biased = Add (X, bias)
      wide = Cast <to = 1> (biased)
      left, right = Split <axis = -1, num_outputs = 2> (wide)
      {by_error_function("right", "gelu")}
      product = Mul (left, gelu)
      Y = CastLike (product, X)"""


def compiled_width(call: Call) -> str | None:
    shape = call.shape("X")
    width = shape[-1] if shape else None
    if not isinstance(width, int) or width // 2 not in WIDTHS:
        half = width // 2 if isinstance(width, int) else width
        widths = ", ".join(map(str, WIDTHS))
        return f"BiasSplitGelu is compiled for widths {widths} (sdort's own takes every width), this one is {half}"
    return None


OPERATOR = Operator(
    name="BiasSplitGelu",
    domain=MICROSOFT,
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
    kernels={"rocm": compiled_width, "cuda": compiled_width, "webgpu": any_form},
    unserved={},
    examples=(Example({"X": (2, 5, 16), "bias": (16,)}),),
    trials=(Example({"X": (1, 16, 2560), "bias": (2560,)}),),
)
