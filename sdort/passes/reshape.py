"""Reshape targets as constants.

``[0, -1, 320]`` says the same as a chain that reads the batch, multiplies height by width and concatenates. Where two
sizes change at once (a sequence back to height x width) a constant cannot say it: :mod:`sdort.passes.borrow_shapes`.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.symbolic import Shape
from sdort.rewrite.editor import Editor, producer

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def constant_view(editor: Editor, node: gs.Node) -> bool:
    """The rule: a view of known shape gets a constant target, straight from the first tensor of a chain of views."""
    if node.op not in VIEWS or node.domain:
        return False
    source = node.inputs[0]
    inner = producer(source)
    while inner is not None and inner.op in VIEWS and not inner.domain:
        source = inner.inputs[0]
        inner = producer(source)
    target, before = editor.shape(node.outputs[0]), editor.shape(source)
    spec = None if target is None or before is None else constant_target(target, before)
    if spec is None or (spec and node.op == "Reshape" and source is node.inputs[0] and _has_target(node, spec)):
        return False
    if spec:
        editor.node("Reshape", [source, editor.ints(spec, "shape")], outputs=[node.outputs[0]])
    elif node.op == "Squeeze" and source is node.inputs[0]:
        return False
    else:  # MIGraphX takes a target without numbers for one without elements
        editor.node("Squeeze", [source, editor.ints(range(len(before or ())), "axes")], outputs=[node.outputs[0]])
    node.inputs.clear()
    return True


def _has_target(node: gs.Node, spec: list[int]) -> bool:
    shape = node.inputs[1]
    return isinstance(shape, gs.Constant) and not node.attrs and np.asarray(shape.values).tolist() == spec


def constant_target(target: Shape, before: Shape) -> list[int] | None:
    """A Reshape target of numbers, 0 (as in the input) and at most one -1; None if there is none."""
    spec: list[int] = []
    for axis, dim in enumerate(target):
        if isinstance(dim, int):
            spec.append(dim)
        else:
            spec.append(0 if axis < len(before) and before[axis] == dim else -1)
    if spec.count(-1) > 1 or 0 in [d for d in target if isinstance(d, int)]:
        return None
    return spec
