"""com.microsoft.NhwcConv: Conv on (N, H, W, C) with weights (M, kH, kW, C / group)."""

import math

from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import Fact, windows
from sdort.graph.operator import Call, Category, Example, Operator, Sizes, outputs_only

SETTINGS = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def infer(call: Call) -> list[Fact]:
    x, w = call.shape("X"), call.shape("W")
    if x is None or w is None:
        return [Fact(call.dtype("X"))]
    return [Fact(call.dtype("X"), (x[0], *windows(call.attributes, x[1:3], w[1:3]), w[0]))]


def definition(call: Call) -> str:
    return f"""
      planes = Transpose <perm = [0, 3, 1, 2]> (X)
      filters = Transpose <perm = [0, 3, 1, 2]> (W)
      convolved = Conv {call.text(*SETTINGS)} (planes, filters{", B" if call.has("B") else ""})
      Y = Transpose <perm = [0, 2, 3, 1]> (convolved)"""


def operations(inputs: Sizes, outputs: Sizes) -> int | None:
    if len(inputs) < 2 or len(inputs[1]) != 4:
        return None
    return 2 * math.prod(outputs[0]) * math.prod(inputs[1][1:])


def images(call: Call) -> str | None:
    shape = call.shape("X")
    return None if shape and len(shape) == 4 else "NhwcConv runs on images only"


def channels_axis(call: Call) -> int:
    return 3


OPERATOR = Operator(
    name="NhwcConv",
    domain=MICROSOFT,
    category=Category.CONVOLUTION,
    inputs=("X", "W", "B"),
    outputs=("Y",),
    attributes={
        "auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "pads": None, "strides": None,
    },
    infer=infer,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=("W",),
    operations=operations,
    kernels={"rocm": images, "cuda": images},
    unserved={},
    channels_axis=channels_axis,
    examples=(
        Example({"X": (2, 6, 5, 4), "W": (6, 3, 1, 4), "B": (6,)}, {"pads": [1, 0, 1, 2], "strides": [2, 1]}),
        Example({"X": (2, 6, 5, 4), "W": (6, 3, 3, 2)}, {"group": 2, "dilations": [2, 1]}),
    ),
    trials=(
        Example({"X": (1, 16, 16, 64), "W": (64, 3, 3, 64), "B": (64,)}, {"pads": [1, 1, 1, 1]}),
        Example({"X": (1, 16, 16, 64), "W": (32, 1, 1, 64), "B": (32,)}),
    ),
)  # fmt: skip
