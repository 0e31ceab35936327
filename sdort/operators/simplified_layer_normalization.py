"""ONNX Runtime's SimplifiedLayerNormalization: X / sqrt(mean(X^2) + epsilon) * scale (https://arxiv.org/abs/1910.07467).

Files have it in the default domain (:data:`sdort.graph.domains.IN_DEFAULT_DOMAIN`). ``axis`` is the first of the axes
that the mean is over.
"""

from typing import Any

import numpy as np

from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import NOTHING, Fact
from sdort.graph.operator import Call, Category, Example, Operator, any_form, outputs_only, runs_itself, same


def infer(call: Call) -> list[Fact]:
    return [*same(call), NOTHING]


def root_mean_square(epsilon: float, axes: list[int], x: str, y: str, scale: str) -> str:
    """Steps from x to y, of its dtype: divided by the root of its mean square over the axes, times the scale."""
    return f"""
      axes = Constant <value_ints = {axes}> ()
      epsilon = Constant <value_float = {epsilon:.20f}> ()
      wide = Cast <to = 1> ({x})
      square = Mul (wide, wide)
      mean_square = ReduceMean <keepdims = 1> (square, axes)
      raised = Add (mean_square, epsilon)
      root = Sqrt (raised)
      normal = Div (wide, root)
      factor = Cast <to = 1> ({scale})
      scaled = Mul (normal, factor)
      {y} = CastLike (scaled, {x})
      inverse = Reciprocal (root)"""


def definition(call: Call) -> str | None:
    axis, shape = call.attributes["axis"], call.shape("X")
    rank = 0 if shape is None else len(shape)
    if axis >= 0 and not rank:
        return None
    last = list(range(axis - rank if axis >= 0 else axis, 0))
    steps = root_mean_square(call.attributes["epsilon"], last, "X", "Y", "scale")
    return steps + ("\n      inv_std_var = Identity (inverse)" if call.has("inv_std_var") else "")


def on_migraphx(call: Call) -> str | None:
    """The form that MIGraphX's parser has, which takes the mean square over one axis and hands it on as X's type."""
    axis, shape = call.attributes["axis"], call.shape("X")
    if shape is None or len(shape) < 2 or axis not in (-1, len(shape) - 1):
        return "SimplifiedLayerNormalization normalizes the last of two axes or more in MIGraphX"
    return squares_in_fp16(call.dtype("X"))


def squares_in_fp16(dtype: np.dtype[Any] | None) -> str | None:
    """The reason against X of fp16: MIGraphX rounds the mean square to it, which ends at that of 256."""
    return "MIGraphX rounds the mean square to fp16" if dtype == np.float16 else None


OPERATOR = Operator(
    name="SimplifiedLayerNormalization",
    domain=MICROSOFT,
    category=Category.NORMALIZATION,
    inputs=("X", "scale"),
    outputs=("Y", "inv_std_var"),
    attributes={"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    infer=infer,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=("scale",),
    operations=5,
    kernels={"rocm": any_form, "migraphx": on_migraphx, "cuda": any_form, "webgpu": any_form, "cpu": any_form},
    unserved={},
    examples=(
        Example({"X": (2, 5, 12), "scale": (12,)}, outputs=("Y",)),
        Example({"X": (2, 3, 5, 12), "scale": (5, 12)}, {"axis": -2, "epsilon": 1e-3}, outputs=("Y",)),
    ),
)
