"""Sizes that an operator equates: it runs only if they agree.

A broadcast alone equates nothing: ``Add (x[a], y[b])`` runs with ``a = 1`` whatever ``b`` is. Its two sizes are equal
only where both are certainly larger than 1, as ``2*a`` and ``2*b`` are. Sizes that a model states of its inner tensors
(``value_info``) are not taken either: tools leave them as they were when they change a graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import onnx_graphsurgeon as gs

from sdort.graph.symbolic import Dim, Shape, is_natural

EqualDims = tuple[Dim, Dim]
BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Sum", "Mean", "Where", "And", "Or", "Xor", "Equal",
     "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
)  # fmt: skip
"""Operators that repeat an input along the axes in which it has one element."""


def equal_sizes(node: gs.Node, shapes: Sequence[Shape | None]) -> Iterator[EqualDims]:
    """Pairs of sizes that are equal whenever ``node`` runs.

    Args:
        node: any node; of operators of other domains nothing is known here.
        shapes: those of its inputs; None where not known.
    """
    if node.domain:
        return
    if node.op == "Concat":
        yield from _of_concat(node, shapes)
    elif node.op == "MatMul":
        yield from _of_matmul(shapes)
    elif node.op == "Attention":
        yield from _of_attention(shapes)
    elif node.op in BROADCASTING:
        yield from _of_broadcast(shapes)


def _of_concat(node: gs.Node, shapes: Sequence[Shape | None]) -> Iterator[EqualDims]:
    """The inputs agree along the axes that are not joined."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes) or len({len(shape) for shape in known}) != 1:
        return
    joined = node.attrs["axis"] % len(known[0])
    for axis in (axis for axis in range(len(known[0])) if axis != joined):
        yield from ((known[0][axis], shape[axis]) for shape in known[1:])


def _of_matmul(shapes: Sequence[Shape | None]) -> Iterator[EqualDims]:
    """Columns meet rows; the matrices' batches broadcast."""
    left, right = shapes
    if not left or not right:
        return
    yield left[-1], right[-2] if len(right) > 1 else right[0]
    yield from _of_broadcast([left[:-2], right[:-2]])


def _of_attention(shapes: Sequence[Shape | None]) -> Iterator[EqualDims]:
    """One batch, as many keys as values, key heads as wide as query heads; nothing of it broadcasts.

    Three axes hold [batch, rows, heads * size], four [batch, heads, rows, size]
    (https://onnx.ai/onnx/operators/onnx__Attention.html).
    """
    query, key, value = shapes[:3]
    for first, second in combinations((query, key, value), 2):
        if first and second:
            yield first[0], second[0]
    if key and value and len(key) == len(value):
        yield key[-2], value[-2]
    if query and key and len(query) == len(key) == 4:
        yield query[3], key[3]


def _of_broadcast(shapes: Sequence[Shape | None]) -> Iterator[EqualDims]:
    """Sizes of one axis, counted from the last, that are both larger than 1."""
    known = [shape for shape in shapes if shape is not None]
    for first, second in combinations(known, 2):
        for a, b in zip(reversed(first), reversed(second), strict=False):
            if a != b and is_natural(a - 2) and is_natural(b - 2):
                yield a, b
