"""Sizes that are still computed, read off a tensor that has them.

Two sizes that change at once (a sequence back to height x width) no constant Reshape target can say; the ``Shape`` of a
tensor that has that very shape does, at the cost of one small operator instead of a chain.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.symbolic import Dim, Shape
from sdort.rewrite.editor import Editor
from sdort.workload.steering_inputs import steering_inputs

Lender = tuple[gs.Tensor, int, int]
"""A tensor and the run of its axes [start, end) that has the sizes in question."""
SIZE_INPUTS = {"Reshape": 1, "Expand": 1, "Resize": 3, "ConstantOfShape": 0, "Sub": 1}
"""The input of each operator that holds sizes; of a Sub what a pad is short of (fusions/upsampling_convolution.py)."""


def run(editor: Editor) -> int:
    """Read sizes that are still computed off earlier tensors that have them; a fixed size is a constant.

    Returns:
        The number of inputs that hold sizes and were replaced.
    """
    changes = 0
    lenders: dict[tuple[Dim, ...], Lender] = {}
    made: dict[tuple[Dim, ...], gs.Tensor] = {}
    lacked = steering_inputs(tensor.name for tensor in editor.graph.inputs)
    for tensor in editor.graph.inputs:
        if tensor.name not in lacked:  # which a run may lack
            _remember(editor, lenders, tensor)
    for node in list(editor.graph.nodes):
        index = SIZE_INPUTS.get(node.op) if not node.domain else None
        if index is not None and index < len(node.inputs) and isinstance(node.inputs[index], gs.Variable):
            sizes = editor.shape(node.outputs[0]) if node.op == "Reshape" else editor.dims(node.inputs[index])
            cover = _cover(sizes, lenders) if sizes and _is_vector(editor, node.inputs[index]) else None
            if sizes and cover is not None:
                if sizes not in made:
                    made[sizes] = _read(editor, cover)
                node.inputs[index] = made[sizes]
                changes += 1
        for tensor in node.outputs:
            _remember(editor, lenders, tensor)
    editor.finish()
    return changes


def _is_vector(editor: Editor, sizes: gs.Tensor) -> bool:
    """Whether the tensor is what Shape gives: where it is subtracted it may be a scalar, or of another type."""
    fact = editor.facts.of(sizes)
    return fact.dtype == np.int64 and fact.rank == 1


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
