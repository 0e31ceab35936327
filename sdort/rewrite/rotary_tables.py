"""Tables of rotary embeddings: of angles that stand there twice, those that stand there once.

ONNX's RotaryEmbedding reads one cosine and one sine for each pair of elements. Exporters write tables as wide as a
head, with each angle for both elements of its pair: beside each other (``pairs``), or in one half and again in the
other. That the two are equal is followed through what computes the table; of a constant it is seen.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.symbolic import Dim, Shape
from sdort.rewrite.editor import Editor, array, producer, scalar

Build = Callable[[], gs.Tensor]
"""Makes the nodes of a table, or finds its tensor."""

LARGEST_TABLE = 1 << 24
"""A constant table of up to so many elements is looked at: 65,536 rows of heads of 256."""
_POINTWISE = frozenset({"Cast", "Cos", "Sin", "Neg", "Identity"})
_SCALED = frozenset({"Mul", "Div", "Add", "Sub"})
_STEPS = 64
"""Nodes from a table to the angles, at most."""


def half_table(editor: Editor, tensor: gs.Tensor, pairs: bool, steps: int = _STEPS) -> Build | None:
    """The maker of the table with each angle once, [..., H] of [..., 2 H]; None where two angles may differ.

    Args:
        pairs: the two of a pair are neighbours, else half the width apart.
        steps: nodes that may be followed.
    """
    if isinstance(tensor, gs.Constant):
        return _of_constant(editor, tensor, pairs)
    node, shape = producer(tensor), editor.shape(tensor)
    if node is None or node.domain or not shape or steps < 1:
        return None
    if node.op in _POINTWISE:
        inner = half_table(editor, node.inputs[0], pairs, steps - 1)
        return None if inner is None else lambda: editor.op(node.op, [inner()], dict(node.attrs))
    if node.op in _SCALED:
        return _scaled(editor, node, pairs, steps)
    if node.op == "Concat":
        return _joined(editor, node, len(shape), pairs, steps)
    if node.op == "Tile" and not pairs:
        before = editor.shape(node.inputs[0])
        twice = before is not None and before[:-1] == shape[:-1] and 2 * before[-1] == shape[-1]
        return (lambda: node.inputs[0]) if twice else None
    return _viewed(editor, node, shape, pairs, steps) if node.op == "Reshape" else None


def _of_constant(editor: Editor, tensor: gs.Constant, pairs: bool) -> Build | None:
    values = array(tensor, LARGEST_TABLE)
    if values is None or not values.ndim or values.shape[-1] % 2:
        return None
    width = values.shape[-1] // 2
    one, other = (values[..., 0::2], values[..., 1::2]) if pairs else (values[..., :width], values[..., width:])
    return (lambda: editor.constant(np.ascontiguousarray(one), tensor.name)) if np.array_equal(one, other) else None


def _scaled(editor: Editor, node: gs.Node, pairs: bool, steps: int) -> Build | None:
    """With a number that is the same for all."""
    places = [index for index, tensor in enumerate(node.inputs) if scalar(tensor) is None]
    if len(places) != 1:
        return None
    inner = half_table(editor, node.inputs[places[0]], pairs, steps - 1)
    if inner is None:
        return None
    number = node.inputs[1 - places[0]]
    return lambda: editor.op(node.op, [inner(), number] if places[0] == 0 else [number, inner()], dict(node.attrs))


def _joined(editor: Editor, node: gs.Node, rank: int, pairs: bool, steps: int) -> Build | None:
    """Of halves the same tensor twice; of pairs, or along another axis, each part by itself."""
    last = node.attrs["axis"] % rank == rank - 1
    if last and not pairs:
        first, *more = node.inputs
        return (lambda: first) if len(more) == 1 and more[0] is first else None
    parts = [half_table(editor, tensor, pairs, steps - 1) for tensor in node.inputs]
    if any(part is None for part in parts):
        return None
    return lambda: editor.op("Concat", [part() for part in parts if part is not None], dict(node.attrs))


def _viewed(editor: Editor, node: gs.Node, shape: Shape, pairs: bool, steps: int) -> Build | None:
    source, width = node.inputs[0], shape[-1]
    before = editor.shape(source)
    if not before or not isinstance(width, int) or width % 2:
        return None
    if before[-1] == width:
        inner = half_table(editor, source, pairs, steps - 1)
        return _view_of(editor, inner, _target(shape[:-1], before[:-1], width // 2))
    repeated = _repeated(editor, source, before) if pairs and before[-2:] == (width // 2, 2) else None
    once = None if repeated is None else (lambda: repeated)
    return _view_of(editor, once, _target(shape[:-1], before[:-2], width // 2))


def _view_of(editor: Editor, build: Build | None, target: list[int] | None) -> Build | None:
    if build is None or target is None:
        return None
    return lambda: editor.op("Reshape", [build(), editor.ints(target)])


def _repeated(editor: Editor, tensor: gs.Tensor, shape: Shape) -> gs.Tensor | None:
    """The tensor that stands twice on the last axis of two."""
    node = producer(tensor)
    if node is not None and node.op in ("Expand", "Tile") and not node.domain:
        inner = editor.shape(node.inputs[0])
        return node.inputs[0] if inner == (*shape[:-1], 1) else None
    if node is not None and node.op == "Concat" and node.attrs["axis"] in (-1, len(shape) - 1):
        first, *more = node.inputs
        return first if len(more) == 1 and more[0] is first else None
    return None


def _target(shape: Shape, before: Shape, width: int) -> list[int] | None:
    """A Reshape target of the axes before the last; None where two of them are open that are none of the source's."""
    spec = [size if isinstance(size, int) else 0 if before[axis : axis + 1] == (size,) else -1
            for axis, size in enumerate(shape)]  # fmt: skip
    return None if spec.count(-1) > 1 else [*spec, width]


def for_each(editor: Editor, table: gs.Tensor, batch: Dim, like: gs.Tensor) -> gs.Tensor:
    """A table of four axes, of which the first is 1 or the batch, for each of the batch.

    Args:
        like: a tensor whose first axis is the batch.
    """
    shape = editor.shape(table)
    if shape is not None and shape[0] == batch:
        return table
    if isinstance(batch, int):
        return editor.op("Expand", [table, editor.ints([batch, 1, 1, 1])])
    count = editor.op("Shape", [like], {"start": 0, "end": 1})
    return editor.op("Expand", [table, editor.op("Concat", [count, editor.ints([1, 1, 1])], {"axis": 0})])


def once_for_all(editor: Editor, table: gs.Tensor) -> gs.Tensor | None:
    """The table that was repeated for each of the batch, with 1 as its first axis; None where that is not so."""
    shape, tensor = editor.shape(table), table
    if not shape or shape[0] == 1:
        return table if shape else None
    values = array(table, LARGEST_TABLE)
    if values is not None:
        return editor.constant(values[:1], table.name) if (values == values[:1]).all() else None
    while (node := producer(tensor)) is not None and node.op == "Reshape" and not node.domain:
        tensor = node.inputs[0]
        before = editor.shape(tensor)
        if before is None or before[0] != shape[0]:
            return None
    if node is None or node.op != "Expand" or node.domain:
        return None
    before, after = editor.shape(node.inputs[0]), editor.shape(tensor)
    return node.inputs[0] if before and after and before[0] == 1 and before[1:] == after[1:] else None
