"""LayerNormalization as exporters below opset 17, and models that are written by hand, have it.

y = gamma * (x - mean) / sqrt(var + epsilon) + beta over the last axes (https://arxiv.org/abs/1607.06450). Either of
gamma and beta may be missing, and what is squared may be another difference than what is divided.
"""

from itertools import product
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.symbolic import numbers
from sdort.graph.weights import Reshaped, as_weight
from sdort.rewrite.decomposed import is_of_norm
from sdort.rewrite.editor import Editor, producer
from sdort.rewrite.match import Match, Refusal, behind_casts, decline

STAGE = "raise"
ANCHOR = "ReduceMean"
MUST_FUSE = True
RUN_AFTER = ("norm_square", "norm_root", "norm_division", "group_normalization_parts")
_BEFORE = """
g (float[] x) => (float[] y) <float epsilon, int64[] axes{values}> {{
    mean = ReduceMean <keepdims = 1> (x, axes)
    {centered}
    square = Mul (c, c)
    variance = ReduceMean <keepdims = 1> (square, axes)
    shifted = Add (variance, epsilon)
    deviation = Sqrt (shifted)
    {affine}
}}"""
CENTERED = (
    ("centered = Sub ({x}, mean)", "centered"),
    ("other = Sub ({x}, mean)  centered = Sub ({x}, mean)", "other"),
    ("other = Sub (mean, {x})  centered = Sub ({x}, mean)", "other"),
)
"""Spellings of the differences that are divided, and the name of what is squared."""
_AFFINE = (
    (
        ", float[] gamma, float[] beta",
        "normal = Div (centered, deviation)  scaled = Mul (normal, gamma)  y = Add (scaled, beta)",
        "float[] scale, float[] shift",
        "scale, shift",
    ),
    (", float[] gamma", "normal = Div (centered, deviation)  y = Mul (normal, gamma)", "float[] scale", "scale"),
    ("", "y = Div (centered, deviation)", "float[] scale", "scale"),
)
_AFTER = """
g (float[] x, {0}) => (float[] y) {{
    y = LayerNormalization <axis: int = @axis, epsilon: float = @eps> (x, {1})
}}"""
_FORMS = tuple(product(CENTERED, _AFFINE))
BEFORE = tuple(
    _BEFORE.format(values=a[0], centered=c[0].format(x="x"), affine=a[1]).replace("Mul (c, c)", f"Mul ({c[1]}, {c[1]})")
    for c, a in _FORMS
)
AFTER = tuple(_AFTER.format(*a[2:]) for _, a in _FORMS)
EXAMPLE = {"x": [2, 3, 8], "gamma": np.linspace(0.5, 1.5, 8), "beta": np.linspace(-1, 1, 8), "axes": [-1],
           "epsilon": [1e-5]}  # fmt: skip


def check(m: Match) -> Refusal | None:
    sizes = normalized_sizes(m)
    if isinstance(sizes, Refusal):
        return sizes
    return next((refusal for name in ("gamma", "beta") if (refusal := parameter_refusal(m, name, sizes))), None)


def normalized_sizes(m: Match) -> list[int] | Refusal:
    """The fixed sizes of the last axes, over which the match takes its means."""
    shape, axes = m.editor.shape(m["x"]), m.editor.dims(m["axes"])
    if shape is None or axes is None:
        return decline("the axes are not known", m["x"].name)
    if not is_last(axes, len(shape)):
        return decline("the mean is not over the last axes", list(axes))
    sizes = numbers(shape[-len(axes) :])
    return decline("the last sizes are not fixed", list(shape)) if sizes is None else list(sizes)


def is_last(axes: Any, rank: int) -> bool:
    """Whether axes are the last ones of ``rank``."""
    places = sorted(axis % rank for axis in axes if isinstance(axis, int) and -rank <= axis < rank)
    return bool(places) and len(places) == len(axes) and places == list(range(rank - len(places), rank))


def parameter_refusal(m: Match, name: str, sizes: list[int]) -> Refusal | None:
    """The reason against a parameter that has not one element for each of those over which the means are."""
    shape = m.editor.shape(m[name]) if name in m.tensors else tuple(sizes)
    first = 0 if shape is None else len(shape) - len(sizes)
    fixed = isinstance(m[name], gs.Constant) if first else True
    whole = shape is not None and list(shape[first:]) == sizes and first >= 0 and {*shape[:first]} <= {1} and fixed
    if whole and shape is not None and len(shape) <= len(m.editor.shape(m["x"]) or ()):
        return None
    # Without the parameter a smaller form matches, which does not ask for it.
    return Refusal(f"{name} is not one for each of the last axes' elements", shape and list(shape), applicable=False)


def parameter(m: Match, name: str, sizes: list[int]) -> gs.Tensor:
    """A constant of the match as one of ``sizes``; ones where it has none."""
    if name not in m.tensors:
        return m.editor.constant(np.ones(sizes, m.precision() or np.float32), "scale")
    tensor = m[name]
    if not isinstance(tensor, gs.Constant) or list(tensor.shape) == sizes:
        return tensor
    return m.editor.constant(Reshaped(as_weight(tensor._values), sizes), name)


def derive(m: Match) -> dict[str, Any]:
    sizes = normalized_sizes(m)
    assert not isinstance(sizes, Refusal)
    made = {"scale": parameter(m, "gamma", sizes)}
    if "beta" in m.tensors:
        made["shift"] = parameter(m, "beta", sizes)
    return {**made, "axis": -len(sizes), "eps": m.scalar("epsilon")}


def concerns(editor: Editor, anchor: gs.Node) -> bool:
    """Whether a mean over the last axes is subtracted from what it is of, or is of such differences."""
    if not is_of_norm(editor, anchor):
        return False
    source, _ = behind_casts(editor, anchor.inputs[0])
    shape = editor.shape(source)
    axes = editor.dims(anchor.inputs[1]) if len(anchor.inputs) > 1 else None
    if shape is None or axes is None or not is_last(axes, len(shape)):
        return False
    square = producer(source)
    difference = producer(behind_casts(editor, square.inputs[0])[0], "Sub") if square is not None else None
    if difference is not None and square is not None and square.op in ("Pow", "Mul"):
        return any(producer(behind_casts(editor, t)[0], "ReduceMean") is not None for t in difference.inputs)
    readers = [reader for tensor in anchor.outputs for reader in tensor.outputs]
    readers += [later for reader in readers if reader.op == "Cast" for later in reader.outputs[0].outputs]
    return any(r.op == "Sub" and any(behind_casts(editor, t)[0] is source for t in r.inputs) for r in readers)
