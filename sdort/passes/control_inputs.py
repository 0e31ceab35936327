"""A UNet's inputs for images, which add to its skip connections, features and attentions.

Each is moved to where its addition is a node of its own and parts nothing that fuses, so that a graph without them is
made in a moment from the optimized one (:mod:`sdort.runtime.step.control_inputs_removed`).
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sdort.rewrite.editor import Editor, producer
from sdort.workload.steering_inputs import is_residual


def run(editor: Editor) -> int:
    """Add residuals to the skip connection of a block, not to the block's sum, which a norm may take in; returns how
    many are."""
    residuals = [tensor for tensor in editor.graph.inputs if is_residual(tensor.name)]
    changes = sum(_add_first(editor, node, residual) for residual in residuals for node in list(residual.outputs))
    editor.finish()
    return changes


def _add_first(editor: Editor, node: gs.Node, residual: gs.Tensor) -> bool:
    """(skip + branch) + residual -> (skip + residual) + branch, where nothing else reads the first sum."""
    if node.op != "Add" or node.domain:
        return False
    total = next(tensor for tensor in node.inputs if tensor is not residual)
    block = producer(total, "Add")
    if block is None or len(total.outputs) != 1 or editor.is_output(total):
        return False
    # The branch begins at the skip connection, which so has two readers. Of two branches the first gives its bias away.
    skip = next((tensor for tensor in block.inputs if len(tensor.outputs) > 1), block.inputs[1])
    if any(is_residual(tensor.name) or editor.shape(tensor) != editor.shape(total) for tensor in block.inputs):
        return False
    steered = editor.op("Add", [skip, residual])
    operands = [steered if tensor is skip else tensor for tensor in block.inputs]
    output = node.outputs[0]
    node.inputs.clear()
    editor.node("Add", operands, outputs=[output])
    return True
