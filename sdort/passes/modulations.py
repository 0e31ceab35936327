"""Modulations as transformers of diffusion models compute them: pieces of one projection of the timestep.

A block's scales, shifts and gates (AdaLN, https://arxiv.org/abs/2212.09748) are one Linear that is cut into pieces,
each of which is given an axis for the rows, and 1 is added to the scales. One view of all pieces is enough, and the
1 goes into the Linear's bias.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.symbolic import numbers
from sdort.rewrite.editor import Editor, array, producer, scalar
from sdort.rewrite.match import is_float
from sdort.rewrite.worklist import RewriteRule

LARGEST_BIAS = 1 << 20
"""A bias of up to so many elements is computed anew."""


def _view_before_split(editor: Editor, node: gs.Node) -> bool:
    """A Split of the last axis all of whose pieces get an axis of 1 before it -> a Split of a tensor with that axis."""
    shape = editor.shape(node.inputs[0]) if node.op == "Split" and not node.domain else None
    if shape is None or node.attrs.get("axis", 0) not in (-1, len(shape) - 1):
        return False
    pieces = [(tensor, list(tensor.outputs)) for tensor in node.outputs if tensor.name]
    views = [view for _, readers in pieces for view in readers]
    if len(views) < 2 or any(editor.is_output(tensor) for tensor, _ in pieces):
        return False
    for tensor, readers in pieces:
        before = editor.shape(tensor)
        wanted = None if before is None else (*before[:-1], 1, before[-1])
        if any(view.op != "Reshape" or view.domain or editor.shape(view.outputs[0]) != wanted for view in readers):
            return False
    target = [*[0] * (len(shape) - 1), 1, shape[-1] if isinstance(shape[-1], int) else -1]
    source = editor.op("Reshape", [node.inputs[0], editor.ints(target, "shape")])
    attrs = {**node.attrs, "axis": -1}
    parts = editor.node("Split", [source, *node.inputs[1:]], attrs, outputs=len(node.outputs)).outputs
    outputs = list(node.outputs)
    for tensor, part in zip(outputs, parts, strict=True):
        for view in list(tensor.outputs):
            editor.replace(view.outputs[0], part)
            view.inputs.clear()
            view.outputs.clear()
    node.inputs.clear()
    node.outputs.clear()
    return True


def _into_bias(editor: Editor, node: gs.Node) -> bool:
    """A number that is added to one piece of a Linear -> the same number added to that piece of its bias."""
    if node.op != "Add" or node.domain:
        return False
    for tensor, other in (node.inputs, node.inputs[::-1]):
        number, dtype = scalar(other), editor.dtype(tensor)
        if number is None or dtype is None or not is_float(dtype):
            continue
        if editor.shape(tensor) != editor.shape(node.outputs[0]):
            continue
        place = next(_biases(editor, tensor), None)
        if place is not None:
            linear, index, start, end = place
            values = np.array(array(linear.inputs[index], LARGEST_BIAS))
            values[..., start:end] += np.asarray(number, values.dtype)
            linear.inputs[index] = editor.constant(values, linear.inputs[index].name)
            editor.replace(node.outputs[0], tensor)
            return True
    return False


def _biases(editor: Editor, tensor: gs.Tensor) -> Iterator[tuple[gs.Node, int, int, int]]:
    """The Linear that a tensor is a piece of, the position of its bias, and the piece's place in it; at most one."""
    current, first, last = tensor, 0, None
    for _ in range(_STEPS):
        node = producer(current)
        if node is None or node.domain or len(current.outputs) != 1 or editor.is_output(current):
            return
        if node.op == "Reshape" and _keeps_last(editor, node):
            current = node.inputs[0]
        elif node.op == "Split" and last is None:
            bounds = _bounds(editor, node, current)
            if bounds is None:
                return
            first, last = bounds
            current = node.inputs[0]
        else:
            break
    node, width = producer(current), (editor.shape(current) or (None,))[-1]
    if node is None or len(current.outputs) != 1 or editor.is_output(current) or not isinstance(width, int):
        return
    index = _bias_index(editor, node)
    values = None if index is None else array(node.inputs[index], LARGEST_BIAS)
    if index is not None and values is not None and values.shape == (width,):
        yield node, index, first, width if last is None else last


_STEPS = 4
"""Views and a Split between a Linear and what is added to its piece, at most."""


def _bias_index(editor: Editor, node: gs.Node) -> int | None:
    """The position of a Linear's bias, which is added to each row as it is."""
    if node.op == "Gemm" and node.attrs.get("beta", 1) == 1 and len(node.inputs) > 2:
        return 2
    if node.op != "Add":
        return None
    return next((1 - i for i, t in enumerate(node.inputs) if producer(t, "MatMul") is not None), None)


def _keeps_last(editor: Editor, view: gs.Node) -> bool:
    before, after = editor.shape(view.inputs[0]), editor.shape(view.outputs[0])
    return bool(before and after) and (before or ())[-1] == (after or ())[-1]


def _bounds(editor: Editor, split: gs.Node, piece: gs.Tensor) -> tuple[int, int] | None:
    """The first element of a piece of the last axis, and the one behind its last."""
    shape = editor.shape(split.inputs[0])
    widths = [(editor.shape(tensor) or (None,))[-1] for tensor in split.outputs]
    sizes = numbers(tuple(width for width in widths if width is not None))
    if shape is None or split.attrs.get("axis", 0) not in (-1, len(shape) - 1):
        return None
    if sizes is None or len(sizes) < len(widths):
        return None
    index = next(index for index, tensor in enumerate(split.outputs) if tensor is piece)
    return sum(sizes[:index]), sum(sizes[: index + 1])


RULES: tuple[RewriteRule, ...] = (_view_before_split,)
"""Rules that round nothing."""
ROUNDING: tuple[RewriteRule, ...] = (_into_bias,)
"""Rules that add in another order."""
