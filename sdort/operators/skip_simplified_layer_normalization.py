"""com.microsoft.SkipSimplifiedLayerNormalization: root mean square normalization of input + bias + skip, last axis."""

from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import NOTHING, Fact
from sdort.graph.operator import Call, Category, Example, Operator, outputs_only, runs_itself, same
from sdort.operators.simplified_layer_normalization import root_mean_square, squares_in_fp16


def infer(call: Call) -> list[Fact]:
    (whole,) = same(call)
    return [whole, NOTHING, NOTHING, whole]


def definition(call: Call) -> str | None:
    if call.has("mean"):
        return None
    asked = {"inv_std_var": "inverse", "input_skip_bias_sum": "sum"}
    results = "\n".join(f"      {name} = Identity ({value})" for name, value in asked.items() if call.has(name))
    return f"""
      biased = {"Add (input, bias)" if call.has("bias") else "Identity (input)"}
      sum = Add (biased, skip)
      {root_mean_square(call.attributes["epsilon"], [-1], "sum", "output", "gamma")}
{results}"""


def in_rows(call: Call) -> str | None:
    """The kernels take tensors of two or three axes."""
    shape = call.shape("input")
    if shape is not None and len(shape) in (2, 3):
        return None
    rank = "an unknown number of" if shape is None else len(shape)
    return f"SkipSimplifiedLayerNormalization takes two or three axes, these are {rank}"


def on_migraphx(call: Call) -> str | None:
    """MIGraphX's parser adds the bias behind the norm."""
    biased = "SkipSimplifiedLayerNormalization has no bias in MIGraphX" if call.has("bias") else None
    return in_rows(call) or biased or squares_in_fp16(call.dtype("input"))


OPERATOR = Operator(
    name="SkipSimplifiedLayerNormalization",
    domain=MICROSOFT,
    category=Category.NORMALIZATION,
    inputs=("input", "skip", "gamma", "bias"),
    outputs=("output", "mean", "inv_std_var", "input_skip_bias_sum"),
    attributes={"epsilon": 1e-12},
    infer=infer,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=True,
    factors=("gamma",),
    operations=6,
    kernels={"rocm": in_rows, "migraphx": on_migraphx, "cuda": in_rows, "webgpu": in_rows, "cpu": in_rows},
    unserved={},
    examples=(
        Example({"input": (2, 5, 12), "skip": (2, 5, 12), "gamma": (12,)}, outputs=("output",)),
        Example(
            {"input": (2, 5, 12), "skip": (2, 5, 12), "gamma": (12,), "bias": (12,)},
            {"epsilon": 1e-3},
            outputs=("output", "input_skip_bias_sum"),
        ),
    ),
)
