"""com.microsoft.SkipLayerNormalization: layer normalization of input + bias + skip over the last axis."""

from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import NOTHING, Fact
from sdort.graph.operator import Call, Category, Example, Operator, any_form, outputs_only, runs_itself, same

_STATISTICS = (("mean", "average"), ("inv_std_var", "inverse"), ("input_skip_bias_sum", "sum"))


def infer(call: Call) -> list[Fact]:
    (whole,) = same(call)
    return [whole, NOTHING, NOTHING, whole]


def normalize(epsilon: float, x: str, y: str, gamma: str, beta: str | None) -> str:
    """Steps from ``sum`` to y, of the dtype of x: normalized over the last axis, times gamma, plus any beta."""
    return f"""
      axes = Constant <value_ints = [-1]> ()
      epsilon = Constant <value_float = {epsilon:.20f}> ()
      wide = Cast <to = 1> (sum)
      average = ReduceMean <keepdims = 1> (wide, axes)
      centered = Sub (wide, average)
      square = Mul (centered, centered)
      variance = ReduceMean <keepdims = 1> (square, axes)
      raised = Add (variance, epsilon)
      root = Sqrt (raised)
      normal = Div (centered, root)
      scaled = Mul (normal, {gamma})
      affine = {f"Add (scaled, {beta})" if beta else "Identity (scaled)"}
      {y} = CastLike (affine, {x})
      inverse = Reciprocal (root)"""


def definition(call: Call) -> str:
    statistics = " ".join(f"{name} = Identity ({value})" for name, value in _STATISTICS if call.has(name))
    return f"""
      biased = {"Add (input, bias)" if call.has("bias") else "Identity (input)"}
      sum = Add (biased, skip)
      {normalize(call.attributes["epsilon"], "input", "output", "gamma", "beta" if call.has("beta") else None)}
      {statistics}"""


OPERATOR = Operator(
    name="SkipLayerNormalization",
    domain=MICROSOFT,
    category=Category.NORMALIZATION,
    inputs=("input", "skip", "gamma", "beta", "bias"),
    outputs=("output", "mean", "inv_std_var", "input_skip_bias_sum"),
    attributes={"epsilon": 1e-12},
    infer=infer,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=True,
    factors=(),
    operations=9,
    kernels={"rocm": any_form, "migraphx": any_form, "cuda": any_form, "webgpu": any_form, "cpu": any_form},
    unserved={
        "SkipLayerNormalization": ("mean", "inv_std_var"),
        # ONNX Runtime itself fuses an Add and the LayerNormalization behind it, the outputs of which it keeps.
        "LayerNormalization": ("Mean", "InvStdDev"),
    },
    examples=(
        Example({"input": (2, 5, 12), "skip": (2, 5, 12), "gamma": (12,)}, outputs=("output",)),
        Example(
            {"input": (2, 5, 12), "skip": (2, 5, 12), "gamma": (12,), "beta": (12,), "bias": (12,)},
            {"epsilon": 1e-3},
            outputs=("output", "input_skip_bias_sum"),
        ),
    ),
)
