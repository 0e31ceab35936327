"""Reshape targets as constants.

``[0, -1, 320]`` says the same as a chain that reads the batch, multiplies height by width and concatenates. Where two
sizes change at once (a sequence back to height x width) a constant cannot say it; then the ``Shape`` of a tensor that
has that very shape does.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sdort.model.symbolic import Dim, Shape
from sdort.rewrite.editor import Editor, producer
from sdort.rewrite.worklist import apply_rules

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def run(editor: Editor) -> int:
    """Settle every view of known shape; returns the number of changes."""
    return apply_rules(editor, [constant_view])


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


Lender = tuple[gs.Tensor, int, int]
"""A tensor and the run of its axes [start, end) that has the wanted sizes."""
SIZE_INPUTS = {"Reshape": 1, "Expand": 1, "Resize": 3, "ConstantOfShape": 0}
"""The input of each operator that holds sizes."""


def borrow_shapes(editor: Editor) -> None:
    """Let sizes that are still computed be read off earlier tensors that have them, and be constant where fixed."""
    lenders: dict[tuple[Dim, ...], Lender] = {}
    made: dict[tuple[Dim, ...], gs.Tensor] = {}
    for tensor in editor.graph.inputs:
        _remember(editor, lenders, tensor)
    for node in list(editor.graph.nodes):
        index = SIZE_INPUTS.get(node.op) if not node.domain else None
        if index is not None and index < len(node.inputs) and isinstance(node.inputs[index], gs.Variable):
            sizes = editor.shape(node.outputs[0]) if node.op == "Reshape" else editor.dims(node.inputs[index])
            cover = _cover(sizes, lenders) if sizes else None
            if sizes and cover is not None:
                if sizes not in made:
                    made[sizes] = _read(editor, cover)
                node.inputs[index] = made[sizes]
        for tensor in node.outputs:
            _remember(editor, lenders, tensor)
    editor.finish()


def _remember(editor: Editor, lenders: dict[tuple[Dim, ...], Lender], tensor: gs.Tensor) -> None:
    shape = editor.shape(tensor)
    if shape is None:
        return
    for start in range(len(shape)):
        for end in range(start + 1, len(shape) + 1):
            lenders.setdefault(shape[start:end], (tensor, start, end))


def _cover(sizes: Shape, lenders: dict[tuple[Dim, ...], Lender]) -> list[Lender | int] | None:
    """Numbers and the longest runs of axes that make up ``sizes``; None if one is nowhere to be read."""
    if sizes in lenders:
        return [lenders[sizes]]
    cover: list[Lender | int] = []
    start = 0
    while start < len(sizes):
        dim = sizes[start]
        ends = [
            e for e in range(len(sizes), start, -1) if sizes[start:e] in lenders and not isinstance(sizes[e - 1], int)
        ]
        if isinstance(dim, int):
            cover.append(dim)
            start += 1
        elif ends:
            cover.append(lenders[sizes[start : ends[0]]])
            start = ends[0]
        else:
            return None
    return cover


def _read(editor: Editor, cover: list[Lender | int]) -> gs.Tensor:
    """Shape, a Slice where only some axes are wanted, and a Concat where there are several parts.

    Not Shape's own ``start`` and ``end``: ORT's transpose optimizer leaves them as they are.
    """
    parts = []
    for item in cover:
        if isinstance(item, int):
            parts.append(editor.ints([item]))
            continue
        tensor, start, end = item
        part = editor.op("Shape", [tensor])
        if (start, end) != (0, len(editor.shape(tensor) or ())):
            part = editor.op("Slice", [part, editor.ints([start]), editor.ints([end]), editor.ints([0])])
        parts.append(part)
    return parts[0] if len(parts) == 1 else editor.op("Concat", parts, {"axis": 0})
