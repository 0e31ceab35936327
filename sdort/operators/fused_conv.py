"""com.microsoft.FusedConv: a Conv, a tensor added to it, and an activation; ONNX Runtime fuses it by itself."""

from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import Fact, windows
from sdort.graph.operator import Call, Category, Example, Operator, outputs_only, runs_itself
from sdort.operators import nhwc_conv

ACTIVATIONS = {
    "Relu": "Y = Relu (summed)",
    "Sigmoid": "Y = Sigmoid (summed)",
    "Tanh": "Y = Tanh (summed)",
    "LeakyRelu": "Y = LeakyRelu <alpha = {0:.20f}> (summed)",
    "HardSigmoid": "Y = HardSigmoid <alpha = {0:.20f}, beta = {1:.20f}> (summed)",
    "Clip": """least = Constant <value_float = {0:.20f}> ()  most = Constant <value_float = {1:.20f}> ()
      low = CastLike (least, summed)  high = CastLike (most, summed)
      Y = Clip (summed, low, high)""",
}
"""Function of each activation, with ``activation_params`` (onnxruntime/core/optimizer/conv_activation_fusion.cc)."""


def infer(call: Call) -> list[Fact]:
    x, w = call.shape("X"), call.shape("W")
    if x is None or w is None:
        return [Fact(call.dtype("X"))]
    return [Fact(call.dtype("X"), (x[0], w[0], *windows(call.attributes, x[2:], w[2:])))]


def activated(call: Call) -> str | None:
    """The steps from ``convolved`` to Y."""
    name = call.attributes["activation"]
    added = "summed = Add (convolved, Z)" if call.has("Z") else "summed = Identity (convolved)"
    if not name:
        return f"{added}  Y = Identity (summed)"
    text = ACTIVATIONS.get(name.decode() if isinstance(name, bytes) else name)
    return text and f"{added}  {text.format(*(call.attributes['activation_params'] or ()))}"


def definition(call: Call) -> str | None:
    end = activated(call)
    conv = f"convolved = Conv {call.text(*nhwc_conv.SETTINGS)} (X, W{', B' if call.has('B') else ''})"
    return end and f"{conv}  {end}"


def channels_axis(call: Call) -> int:
    return 1


OPERATOR = Operator(
    name="FusedConv",
    domain=MICROSOFT,
    category=Category.CONVOLUTION,
    inputs=("X", "W", "B", "Z"),
    outputs=("Y",),
    attributes={**nhwc_conv.OPERATOR.attributes, "activation": None, "activation_params": None},
    infer=infer,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=("W",),
    operations=nhwc_conv.operations,
    kernels={},  # sdort takes it apart (fusions/restore_fused_conv.py): ONNX Runtime makes it where it has a kernel
    unserved={},
    channels_axis=channels_axis,
    examples=(
        Example({"X": (2, 4, 6, 5), "W": (6, 4, 3, 1), "B": (6,)}, {"activation": "Relu", "pads": [1, 0, 1, 0]}),
        Example(
            {"X": (2, 4, 6, 5), "W": (6, 2, 3, 3), "Z": (2, 6, 4, 3)},
            {"activation": "LeakyRelu", "activation_params": [0.25], "group": 2},
        ),
    ),
)
