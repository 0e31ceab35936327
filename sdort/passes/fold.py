"""Constant folding and removal of what does nothing.

Small tensors are computed; weights are only described (:mod:`sdort.graph.weights`), so folding a Linear's transpose
costs nothing here. Integer tensors whose elements are known symbolically fold too: that is what turns the
``Shape -> Gather -> Concat`` chains of an exporter into constants.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import defs, helper

from sdort.graph.signature import Array
from sdort.graph.symbolic import numbers
from sdort.graph.weights import (
    Cast,
    Concatenated,
    Dequantized,
    Inline,
    Reshaped,
    Transposed,
    Weight,
    as_weight,
)
from sdort.onnx_io.evaluate import evaluate_nodes
from sdort.passes.reshape import VIEWS
from sdort.rewrite.editor import Editor, array, producer, scalar, weight
from sdort.rewrite.inference.facts import plain_attributes

LARGEST_FOLDED = 1 << 16
"""Constants of up to this many elements are computed; larger ones are described or left."""
CURVED = frozenset({"Exp", "Log", "Pow", "Sin", "Cos", "Tan", "Tanh", "Sigmoid", "Erf"})
"""Computed in float64 and rounded once, as numpy's float32 may be an ulp off: of a frequency that is multiplied by a
guidance scale times 1000, that is a thousandth of a radian."""
GROWING = frozenset({"Expand", "ConstantOfShape", "Tile", "Range", "Resize", "Pad", "OneHot", "EyeLike", "Upsample"})
"""Their result may be far larger than their inputs."""
RANDOM_OPERATORS = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)

Feed = tuple[str, np.dtype[Any], tuple[int, ...], bytes]
"""An input's name, dtype, shape and values."""


def fold(editor: Editor, node: gs.Node) -> bool:
    """The rule: a node that computes a constant, or nothing, gives way to the constant or to its input."""
    if node.domain or len([t for t in node.outputs if t.name]) != 1:
        return False
    new = _constant(editor, node) or _unchanged(editor, node)
    if new is None or (editor.is_output(node.outputs[0]) and node.op == "Identity"):
        return False
    editor.replace(node.outputs[0], new)
    return True


def _constant(editor: Editor, node: gs.Node) -> gs.Constant | None:
    known = editor.facts.of(node.outputs[0]).array()
    if known is not None:
        return editor.constant(known, "folded")
    if not node.inputs or not all(isinstance(t, gs.Constant) or not t.name for t in node.inputs):
        return None
    described = _describe(editor, node)
    if described is not None:
        return editor.constant(described, node.inputs[0].name)
    values = _evaluate(editor, node)
    return None if values is None else editor.constant(values, "folded")


def _describe(editor: Editor, node: gs.Node) -> Weight | None:
    """The node's result as an expression over its weights, if its first input is a weight."""
    operand = weight(node.inputs[0])
    if not isinstance(operand, Weight):
        return None
    if node.op == "Identity":
        return operand
    if node.op == "Transpose":
        return Transposed(operand, node.attrs.get("perm", list(range(len(operand.shape)))[::-1]))
    if node.op == "Cast":
        return Cast(operand, helper.tensor_dtype_to_np_dtype(node.attrs["to"]))
    if node.op == "Concat":
        return Concatenated([as_weight(t._values) for t in node.inputs], node.attrs["axis"])
    if node.op == "DequantizeLinear":
        return _dequantized(node, operand)
    shape = editor.shape(node.outputs[0])
    sizes = numbers(shape) if shape is not None and node.op in VIEWS else None
    return None if sizes is None else Reshaped(operand, sizes)


def _dequantized(node: gs.Node, operand: Weight) -> Weight | None:
    """Weights that are stored as integers, with one scale for all or for each index of an axis."""
    scale, *rest = (as_weight(t._values) for t in node.inputs[1:] if t.name)
    plain = scale.dtype.kind == "f" and operand.dtype.kind in "iu"
    if not plain or node.attrs.get("block_size", 0) or len(scale.shape) > 1:
        return None
    return Dequantized(
        operand, scale, rest[0] if rest else None, node.attrs.get("axis", 1) % max(len(operand.shape), 1)
    )


def _evaluate(editor: Editor, node: gs.Node) -> Array | None:
    """Run one node on its constant inputs, if they and the result are small."""
    if node.op in RANDOM_OPERATORS or not defs.has(node.op, editor.graph.opset):
        return None
    if not _short(editor, node):
        return None
    inputs = {t.name: _small(t) for t in node.inputs if t.name}
    if any(i is None for i in inputs.values()):
        return None
    # By position, not by name: a UNet asks for the same square root in every attention.
    places = {t.name: f"input_{index}" for index, t in enumerate(node.inputs) if t.name}
    names = [places[t.name] if t.name else "" for t in node.inputs]
    proto = helper.make_node(node.op, names, ["output"], **plain_attributes(node))
    feeds = tuple((places[name], v.dtype, v.shape, v.tobytes()) for name, v in inputs.items() if v is not None)
    return _evaluated(proto.SerializeToString(deterministic=True), feeds, editor.graph.opset)


@lru_cache(maxsize=64)
def _evaluated(node: bytes, feeds: tuple[Feed, ...], opset: int) -> Array | None:
    arrays = {name: np.frombuffer(data, dtype).reshape(shape) for name, dtype, shape, data in feeds}
    proto = onnx.NodeProto.FromString(node)
    if proto.op_type in CURVED and arrays["input_0"].dtype in (np.float32, np.float16):
        wide = {name: each.astype(np.float64) if each.dtype.kind == "f" else each for name, each in arrays.items()}
        values = evaluate_nodes([proto], wide, opset)
        values = None if values is None else values.astype(arrays["input_0"].dtype)
    else:
        values = evaluate_nodes([proto], arrays, opset)
    if values is not None:
        values.flags.writeable = False  # every caller gets the same
    return values


def _short(editor: Editor, node: gs.Node) -> bool:
    """Whether the result has at most LIMIT elements."""
    if node.op == "Range":
        start, limit, step = (scalar(t) for t in node.inputs)
        if start is None or limit is None or not step:
            return False
        return abs((limit - start) / step) <= LARGEST_FOLDED
    shape = editor.shape(node.outputs[0])
    sizes = None if shape is None else numbers(shape)
    return node.op not in GROWING if sizes is None else math.prod(sizes) <= LARGEST_FOLDED


def _small(tensor: gs.Constant) -> Array | None:
    if math.prod(tensor.shape) > LARGEST_FOLDED:
        return None
    values = tensor._values
    if isinstance(values, Weight):
        # Stored values stay on disk until the model is written, and a checkpoint may not even be bound yet.
        inline = all(isinstance(leaf, Inline) for leaf in values.leaves())
        return values.load() if inline else None
    return np.asarray(tensor.values)


def _unchanged(editor: Editor, node: gs.Node) -> gs.Tensor | None:
    """The input that the node's output equals, if the node does nothing."""
    if not node.inputs:
        return None
    first = node.inputs[0]
    shape, before = editor.shape(node.outputs[0]), editor.shape(first)
    same = shape is not None and shape == before
    if node.op == "Identity" or (node.op == "Concat" and len(node.inputs) == 1):
        return first
    if node.op == "Dropout":  # ratio, training_mode; a mask that is read as well does not come here
        training = len(node.inputs) > 2 and node.inputs[2].name and scalar(node.inputs[2]) != 0
        return None if training else first
    if node.op == "Cast":
        dtype = editor.dtype(first)  # numpy takes None for float64
        return first if dtype is not None and dtype == editor.dtype(node.outputs[0]) else None
    if node.op in ("Reshape", "Expand", "Flatten", "Squeeze", "Unsqueeze"):
        return first if same else None
    if node.op == "Slice":
        steps = editor.dims(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4].name else (1,)
        return first if same and steps is not None and set(steps) == {1} else None
    if node.op == "Transpose":
        return first if node.attrs.get("perm") == list(range(len(before or ()))) else None
    if node.op in ("Add", "Sub", "Mul", "Div") and (editor.dtype(first) or np.dtype(np.int64)).kind == "f":
        return _neutral(editor, node)
    return None


def _neutral(editor: Editor, node: gs.Node) -> gs.Tensor | None:
    shape = editor.shape(node.outputs[0])
    for kept, other in ((0, 1), (1, 0)):
        if kept == 1 and node.op in ("Sub", "Div"):
            continue
        tensor = node.inputs[kept]
        if shape is None or editor.shape(tensor) != shape:
            continue
        if node.op in ("Mul", "Div") and scalar(node.inputs[other]) == 1:
            return tensor
        if node.op in ("Add", "Sub") and is_zero(node.inputs[other]):
            return tensor
    return None


def _score_sized(tensor: gs.Constant) -> bool:
    """Exporters fold the empty tensor of baddbmm to a constant of the scores' shape; biases broadcast."""
    return len(tensor.shape) >= 3 and 1 not in tensor.shape


def _holds_zeros(tensor: gs.Constant) -> bool:
    """Whether a large constant is all zeros: the one case in which a pass looks at a weight's values."""
    values = array(tensor, math.inf)
    return values is not None and not np.any(values)


def is_zero(tensor: gs.Tensor) -> bool:
    """Whether all elements are known to be zero: what is left of ``baddbmm(..., beta=0)``."""
    if isinstance(tensor, gs.Constant):
        return scalar(tensor) == 0 or (_score_sized(tensor) and _holds_zeros(tensor))
    node = producer(tensor)
    if node is None:
        return False
    if node.op == "ConstantOfShape":
        return "value" not in node.attrs or not np.any(np.asarray(node.attrs["value"].values))
    if node.op in ("Expand", "Reshape"):
        return is_zero(node.inputs[0])
    return node.op == "Mul" and any(is_zero(t) for t in node.inputs)
