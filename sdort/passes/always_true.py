"""Conditions that hold for every element, as an encoder has in its mask where nothing is masked."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sdort.graph.fact import broadcast
from sdort.rewrite.editor import Editor, producer

_VIEWS = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Identity", "Expand"})
"""Operators that move elements and add none."""


def choose_without_condition(editor: Editor, node: gs.Node) -> bool:
    """Where (all true, x, y) -> x, with the sizes of the result."""
    if node.op != "Where" or node.domain or not _holds(editor, node.inputs[0]):
        return False
    chosen, output = node.inputs[1], node.outputs[0]
    condition, shape = producer(node.inputs[0], "Expand"), editor.shape(output)
    if shape is not None and editor.shape(chosen) == shape:
        _put(editor, node, chosen)
        return True
    # The sizes that the condition was brought to give the result its own, unless what is not chosen is larger.
    sizes = None if condition is None else condition.inputs[1]
    dims = None if sizes is None else editor.dims(sizes)
    if shape is None or dims is None or broadcast(editor.shape(chosen), dims) != shape:
        return False
    node.inputs.clear()
    editor.node("Expand", [chosen, sizes], outputs=[output])
    return True


def drop_true_operand(editor: Editor, node: gs.Node) -> bool:
    """And (x, all true) -> x."""
    if node.op != "And" or node.domain:
        return False
    for tensor, other in (node.inputs, reversed(node.inputs)):
        shape = editor.shape(node.outputs[0])
        if _holds(editor, other) and shape is not None and editor.shape(tensor) == shape:
            _put(editor, node, tensor)
            return True
    return False


def _put(editor: Editor, node: gs.Node, tensor: gs.Tensor) -> None:
    """Let ``tensor`` take the place of a node's result."""
    output = node.outputs[0]
    node.inputs.clear()
    node.outputs.clear()
    editor.replace(output, tensor)


def _holds(editor: Editor, tensor: gs.Tensor) -> bool:
    """Whether all elements of a tensor are true."""
    origin = _origin(tensor)
    if editor.filling(origin) is not None:
        return bool(editor.filling(origin))
    node = producer(origin, "GreaterOrEqual")
    if node is None or node.domain:
        return False
    counted, least = producer(_origin(node.inputs[0]), "Range"), editor.integer(node.inputs[1])
    if counted is None or least is None:
        return False
    start, step = editor.integer(counted.inputs[0]), editor.integer(counted.inputs[2])
    return start is not None and step is not None and step > 0 and start >= least


def _origin(tensor: gs.Tensor) -> gs.Tensor:
    """The tensor that views lead back to."""
    node = producer(tensor)
    while node is not None and node.op in _VIEWS and not node.domain:
        tensor = node.inputs[0]
        node = producer(tensor)
    return tensor
