"""The opset that a target loads, stated after making sure that every operator is the same there."""

from __future__ import annotations

from sdort.errors import BadModelError
from sdort.graph.model import Model
from sdort.passes.upgrade import HINT, inexpressible, set_opset
from sdort.rewrite.editor import Editor


def run(editor: Editor, opset: int, ir_version: int) -> int:
    """Declare the target's opset; what ONNX Runtime infers itself is no longer stated, and so is never stale.

    Returns:
        The number of nodes that are written otherwise in that opset.

    Raises:
        BadModelError: an operator cannot be expressed in it.
    """
    graph, changes = editor.graph, declare_opset(editor.model, opset)
    graph.ir_version = ir_version
    ends = {id(t) for t in (*graph.inputs, *graph.outputs)}
    for tensor in (t for n in graph.nodes for t in n.outputs if id(t) not in ends):
        tensor.shape = tensor.dtype = None
    return changes


def declare_opset(model: Model, opset: int) -> int:
    """Declare an opset after making sure that every operator is the same there.

    Returns:
        The number of nodes that are written otherwise in that opset.

    Raises:
        BadModelError: an operator cannot be expressed in it.
    """
    changes = 0
    for node in model.graph.nodes:
        count = len(node.attrs)
        reason = inexpressible(node, opset)
        if reason:
            raise BadModelError(reason, component=model.component, node=node.name, hint=HINT)
        changes += len(node.attrs) != count
    set_opset(model, opset)
    return changes
