"""Rules of operators that pick elements, and of Shape and Size, which make dims elements."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sdort.graph.fact import INT64, Fact
from sdort.graph.symbolic import Dim, Shape, is_natural, numbers, product, symbol, unknown
from sdort.rewrite.inference.rules import Rules

RULES = Rules()
rule = RULES.rule


@rule("Shape")
def _shape(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    if facts[0].shape is None:
        return [Fact(INT64)]
    dims = facts[0].shape[node.attrs.get("start", 0) : node.attrs.get("end", None)]
    return [Fact(INT64, (len(dims),), dims)]


@rule("Size")
def _size(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    shape = facts[0].shape
    return [Fact(INT64, (), None if shape is None else (product(shape),))]


@rule("Gather")
def _gather(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    data, index = facts
    if data.shape is None or index.shape is None:
        return [Fact(data.dtype)]
    axis = node.attrs.get("axis", 0) % len(data.shape)
    shape = data.shape[:axis] + index.shape + data.shape[axis + 1 :]
    value = None
    if data.value is not None and len(data.shape) == 1 and index.value is not None:
        picks = [v for v in index.value if isinstance(v, int)]
        value = tuple(data.value[v] for v in picks) if len(picks) == len(index.value) else None
    return [Fact(data.dtype, shape, value)]


@rule("GatherND")
def _gather_nd(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    data, index = facts
    if data.shape is None or index.shape is None or not isinstance(index.shape[-1], int):
        return [Fact(data.dtype)]
    indexed = node.attrs.get("batch_dims", 0) + index.shape[-1]
    return [Fact(data.dtype, index.shape[:-1] + data.shape[indexed:])]


@rule("ScatterND")
def _scatter_nd(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    data, index, updates = facts
    value = None
    if data.value is not None and index.value is not None and updates.value is not None and data.rank == 1:
        elements = list(data.value)
        for place, element in zip(index.value, updates.value, strict=True):
            if not isinstance(place, int) or node.attrs.get("reduction", "none") != "none":
                return [Fact(data.dtype, data.shape)]
            elements[place] = element
        value = tuple(elements)
    return [Fact(data.dtype, data.shape, value)]


@rule("TopK")
def _top_k(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    data, count = facts
    shape: Shape | None = None
    if data.shape is not None and count.value is not None:
        axis = node.attrs.get("axis", -1) % len(data.shape)
        shape = (*data.shape[:axis], *count.value, *data.shape[axis + 1 :])
    return [Fact(data.dtype, shape), Fact(INT64, shape)]


def _span(length: Dim, start: Dim, end: Dim, step: int) -> Dim:
    """The number of elements of ``range(start, end, step)`` clipped to ``length``, for positive steps."""
    first, last = _bound(length, start), _bound(length, end)
    if first is None or last is None:  # of equal sizes the same cut is as long
        return symbol(f"?{length}[{start}:{end}:{step}]")
    size = last - first
    if isinstance(size, int):
        return -(-max(size, 0) // step)
    return -(-size // step) if is_natural(size) else unknown()


def _bound(length: Dim, value: Dim) -> Dim | None:
    """Where a start or end falls on the axis; None if that depends on how long the axis is."""
    if isinstance(value, int) and value < 0:
        value = length + value
        if isinstance(value, int):
            return max(value, 0)
    elif isinstance(value, int) and (isinstance(length, int) or value >= 2**31 - 1):
        return min(value, length) if isinstance(length, int) else length
    elif isinstance(value, int):
        return value if is_natural(length - value) else None
    return value if is_natural(value) else None  # a computed size is taken to lie within the axis


def _numbers(facts: list[Fact], index: int, default: list[int]) -> list[int] | None:
    """The elements of an optional input: the default where it is absent, None where they are not known."""
    if len(facts) <= index or facts[index].shape is None:
        return default
    value = facts[index].value
    return None if value is None else numbers(value)


@rule("Slice")
def _slice(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    data = facts[0]
    starts, ends = (facts[i].value if len(facts) > i else None for i in (1, 2))
    if data.shape is None or starts is None or ends is None:
        return [Fact(data.dtype, None if data.shape is None else tuple(unknown() for _ in data.shape))]
    axes = _numbers(facts, 3, list(range(len(starts))))
    steps = _numbers(facts, 4, [1] * len(starts))
    if axes is None or steps is None or min(steps) <= 0:
        return [Fact(data.dtype, tuple(unknown() for _ in data.shape))]
    shape = list(data.shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        shape[axis] = _span(shape[axis], start, end, step)
    value = None
    if data.value is not None and len(shape) == 1 and isinstance(starts[0], int) and isinstance(ends[0], int):
        value = data.value[starts[0] : ends[0] : steps[0]]
    return [Fact(data.dtype, tuple(shape), value)]
