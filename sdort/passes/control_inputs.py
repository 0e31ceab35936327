"""A UNet's inputs for control images, which add to its skip connections and features: what nothing steers lacks them.

The optimizer moves each to where its addition is a node of its own and parts nothing that fuses. So a graph for runs
that nothing steers is made in a moment, from the optimized one: without these inputs, and with what each was added to
in the place of the sum. It is node for node what a UNet that was exported without them becomes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_graphsurgeon as gs

from sdort.console import detail
from sdort.rewrite.editor import Editor, producer
from sdort.workload.residuals import is_residual

_MOVING = frozenset({"Cast", "Identity", "Transpose"})
"""Operators that zeros pass through."""


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


def remove_control_inputs(model: onnx.ModelProto, component: str) -> None:
    """Take a UNet's inputs for control images out of a graph, in place, as if zeros were added.

    One that does not reach additions alone stays, which is told: files of older versions have some.
    """
    graph, readers = model.graph, _readers(model.graph)
    replaced: dict[str, str] = {}
    gone: set[str] = set()
    for name in [info.name for info in graph.input if is_residual(info.name)]:
        found = _zero_sums(name, readers)
        if found is None:
            detail(f"{component}: its input {name} is part of another operator, and zeros are in it")
            continue
        zeros, sums = found
        replaced |= sums
        gone |= zeros | sums.keys()
    for node in graph.node:
        node.input[:] = [_resolved(name, replaced) for name in node.input]
    _keep(graph.node, [node for node in graph.node if not gone.intersection(node.output)])
    _keep(graph.input, [info for info in graph.input if info.name not in gone])
    _keep(graph.value_info, [info for info in graph.value_info if info.name not in gone])


def _readers(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    return readers


def _zero_sums(name: str, readers: Mapping[str, Sequence[onnx.NodeProto]]) -> tuple[set[str], dict[str, str]] | None:
    """The tensors that are zeros where ``name`` is, and sum -> its other operand of all that reads them; None where
    something else than a sum does."""
    zeros, sums, stack = {name}, {}, [name]
    while stack:
        zero = stack.pop()
        for node in readers.get(zero, ()):
            if node.op_type in _MOVING and not node.domain:
                zeros.add(node.output[0])
                stack.append(node.output[0])
                continue
            others = [operand for operand in node.input if operand not in zeros and not is_residual(operand)]
            if node.op_type != "Add" or node.domain or len(others) != 1:
                return None
            sums[node.output[0]] = others[0]
    return zeros, sums


def _resolved(name: str, replaced: Mapping[str, str]) -> str:
    while name in replaced:
        name = replaced[name]
    return name


def _keep(field: object, kept: Sequence[object]) -> None:
    """Let a repeated field hold these of its messages alone."""
    del field[:]  # type: ignore[attr-defined]
    field.extend(kept)  # type: ignore[attr-defined]
