"""The values that an attention mask may hold, read from what it is computed from.

A mask is built of a few constants by operators that move or combine them. No more is asked than decides its form:
whether it may be minus infinity, which closes whole rows, and whether a constant in it is beyond fp16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph import float16
from sdort.graph.signature import Array
from sdort.rewrite.editor import Editor, array, producer
from sdort.rewrite.match import is_float

_LIMIT = 1 << 24
"""Constants of more elements are not looked at, and may hold anything."""
_HALF_OF_ALL = float(np.finfo(np.float32).max) / 2
"""Two larger numbers make an infinity."""
_MOVES = frozenset(
    {"Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Expand", "Tile", "Slice", "Gather", "GatherND",
     "GatherElements", "Transpose", "Concat", "Cast", "CastLike", "Pad", "Trilu", "ScatterND", "ScatterElements",
     "Split", "Add", "Sub", "Neg", "Where", "Min", "Max", "Clip", "Sum"}
)  # fmt: skip
"""Operators that hand on an infinite element of an input."""
_SCALES = frozenset({"Mul", "Div"})
"""A finite number times a constant; of infinite ones nobody makes a mask by products."""


@dataclass
class Extremes:
    """Values beyond usual numbers that a tensor may hold."""

    infinite: bool = False
    """It may hold minus infinity."""
    beyond_half: bool = False
    """A finite constant in it is too large for fp16."""


def extremes(editor: Editor, tensor: gs.Tensor) -> Extremes:
    """The extremes of a floating-point tensor's elements; a graph input may be infinite."""
    largest, added, infinite = 0.0, False, False
    stack, seen = [(tensor, True)], set[tuple[int, bool]]()
    while stack:
        current, moved = stack.pop()
        if (id(current), moved) in seen or not _floats(editor, current):
            continue
        seen.add((id(current), moved))
        node = producer(current)
        values = _constant(current)
        if values is not None:
            finite = np.abs(values[np.isfinite(values)])
            largest = max(largest, float(finite.max(initial=0.0)))
            infinite = infinite or bool(np.isinf(values).any())
        elif node is None or isinstance(current, gs.Constant):
            infinite |= moved
        elif _is_clipped(node):
            continue  # whatever it was
        elif node.op in _MOVES | _SCALES and not node.domain:
            added |= node.op in ("Add", "Sub", "Sum")
            stack.extend((t, moved and node.op in _MOVES) for t in node.inputs if t.name)
        else:
            infinite |= node.op in ("Log", "Loop", "If", "Scan")
    infinite |= added and largest > _HALF_OF_ALL
    return Extremes(infinite, largest > float16.LARGEST)


def closes_keys(editor: Editor, tensor: gs.Tensor) -> bool:
    """Whether what a mask has beyond fp16 is the same for all queries: of [..., 1, keys]."""
    stack = [tensor]
    while stack:
        current = stack.pop()
        if not extremes(editor, current).beyond_half:
            continue
        shape, node = editor.shape(current), producer(current)
        if shape is not None and (len(shape) < 2 or shape[-2] == 1):
            continue
        if node is None or node.domain or node.op not in ("Add", "Sub", "Sum", "Expand", "Identity", "Cast"):
            return False
        stack.extend(t for t in node.inputs if t.name and _floats(editor, t))
    return True


def cone(editor: Editor, tensor: gs.Tensor) -> list[gs.Node]:
    """The floating-point nodes that :func:`extremes` looks through."""
    nodes: dict[int, gs.Node] = {}
    stack = [tensor]
    while stack:
        current = stack.pop()
        node = producer(current)
        if node is None or id(node) in nodes or node.op not in _MOVES | _SCALES or not _floats(editor, current):
            continue
        nodes[id(node)] = node
        stack.extend(t for t in node.inputs if t.name)
    return list(nodes.values())


def _is_clipped(node: gs.Node) -> bool:
    """Whether a node bounds its result by numbers that fp16 holds."""
    if node.op != "Clip" or node.domain or len(node.inputs) < 3:
        return False
    bounds = [array(tensor, 1) if tensor.name else None for tensor in node.inputs[1:3]]
    return all(bound is not None and abs(float(bound.item())) <= float16.LARGEST for bound in bounds)


def _floats(editor: Editor, tensor: gs.Tensor) -> bool:
    dtype = editor.dtype(tensor)
    return dtype is None or is_float(dtype)


def _constant(tensor: gs.Tensor) -> Array | None:
    """A constant's values as float64; None where they are not at hand."""
    node = producer(tensor)
    if node is not None and node.op == "ConstantOfShape":
        return np.asarray(node.attrs["value"].values, np.float64) if "value" in node.attrs else np.zeros(1)
    values = array(tensor, _LIMIT)
    return None if values is None else values.astype(np.float64)
