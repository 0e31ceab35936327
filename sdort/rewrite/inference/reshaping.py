"""Rules of operators that join, arrange, repeat and fill."""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.fact import MAX_VALUE, Fact, broadcast
from sdort.graph.symbolic import Dim, divide, numbers, preference, product, unknown
from sdort.rewrite.inference.rules import Rules

RULES = Rules()
rule = RULES.rule


def _axes(node: gs.Node, facts: list[Fact], index: int = 1) -> list[int] | None:
    if "axes" in node.attrs:
        return list(node.attrs["axes"])
    if len(facts) > index and facts[index].value is not None:
        return numbers(facts[index].value or ())
    return None


@rule("Concat")
def _concat(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    shapes = [f.shape for f in facts if f.shape is not None]
    if len(shapes) != len(facts):
        return [Fact(facts[0].dtype)]
    axis = node.attrs["axis"] % len(shapes[0])
    total: Dim = 0
    for shape in shapes:
        total = total + shape[axis]
    # Along the other axes the inputs agree at run time; one of their spellings is the most useful.
    others = [min((s[i] for s in shapes), key=preference) for i in range(len(shapes[0]))]
    out = (*others[:axis], total, *others[axis + 1 :])
    value = None
    if all(f.value is not None for f in facts) and len(out) == 1:
        value = tuple(v for f in facts for v in (f.value or ()))
    return [Fact(facts[0].dtype, out, value)]


@rule("Unsqueeze")
def _unsqueeze(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    axes = _axes(node, facts)
    if axes is None or facts[0].shape is None:
        return [Fact(facts[0].dtype)]
    rank = len(facts[0].shape) + len(axes)
    new = {a % rank for a in axes}
    old = iter(facts[0].shape)
    return [Fact(facts[0].dtype, tuple(1 if i in new else next(old) for i in range(rank)), facts[0].value)]


@rule("Squeeze")
def _squeeze(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    if facts[0].shape is None:
        return [Fact(facts[0].dtype)]
    rank = len(facts[0].shape)
    axes = _axes(node, facts)
    if axes is None and len(node.inputs) > 1 and node.inputs[1].name:  # computed
        count = (facts[1].shape or (None,))[0]
        return [Fact(facts[0].dtype, tuple(unknown() for _ in range(rank - count)) if isinstance(count, int) else None)]
    if axes is None and any(not isinstance(d, int) for d in facts[0].shape):
        return [Fact(facts[0].dtype)]
    drop = {i for i, d in enumerate(facts[0].shape) if d == 1} if axes is None else {a % rank for a in axes}
    shape = tuple(d for i, d in enumerate(facts[0].shape) if i not in drop)
    return [Fact(facts[0].dtype, shape, facts[0].value)]


@rule("Reshape")
def _reshape(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    data, target = facts
    if target.value is None:
        rank = target.shape[0] if target.shape and isinstance(target.shape[0], int) else None
        return [Fact(data.dtype, None if rank is None else tuple(unknown() for _ in range(rank)))]
    dims: list[Dim | None] = []
    for axis, dim in enumerate(target.value):
        if dim == 0 and not node.attrs.get("allowzero", 0):
            dims.append(data.shape[axis] if data.shape is not None and axis < len(data.shape) else unknown())
        else:
            dims.append(None if dim == -1 else dim)
    if None in dims:
        rest = product(d for d in dims if d is not None)
        whole = None if data.shape is None else divide(product(data.shape), rest)
        dims[dims.index(None)] = unknown() if whole is None else whole
    shape = tuple(d for d in dims if d is not None)
    sizes = numbers(shape)
    if data.value is not None and sizes is not None and math.prod(sizes) != len(data.value):
        raise ValueError(f"{len(data.value)} elements do not fill {shape}")
    return [Fact(data.dtype, shape, data.value)]


@rule("Flatten")
def _flatten(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    if facts[0].shape is None:
        return [Fact(facts[0].dtype)]
    axis = node.attrs.get("axis", 1)
    return [Fact(facts[0].dtype, (product(facts[0].shape[:axis]), product(facts[0].shape[axis:])))]


@rule("Expand")
def _expand(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    return [Fact(facts[0].dtype, broadcast(facts[0].shape, facts[1].value))]


@rule("Tile")
def _tile(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    shape, times = facts[0].shape, facts[1].value
    if shape is None or times is None:
        return [Fact(facts[0].dtype, None if shape is None else tuple(unknown() for _ in shape))]
    return [Fact(facts[0].dtype, tuple(dim * count for dim, count in zip(shape, times, strict=True)))]


@rule("ConstantOfShape")
def _constant_of_shape(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    fill = np.asarray(node.attrs["value"].values) if "value" in node.attrs else np.zeros(1, np.float32)
    shape = facts[0].value
    value = None
    if shape is not None and len(shape) == 1 and isinstance(shape[0], int) and shape[0] <= MAX_VALUE:
        value = (int(fill[0]),) * shape[0] if fill.dtype.kind in "iub" else None
    return [Fact(fill.dtype, shape, value)]


@rule("Range")
def _range(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    start, limit, step = (f.value for f in facts)
    if start is None or limit is None or step != (1,):
        return [Fact(facts[0].dtype, (unknown(),))]
    return [Fact(facts[0].dtype, (limit[0] - start[0],))]


@rule("Transpose")
def _transpose(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    if facts[0].shape is None:
        return [Fact(facts[0].dtype)]
    perm = node.attrs.get("perm", list(range(len(facts[0].shape)))[::-1])
    return [Fact(facts[0].dtype, tuple(facts[0].shape[p] for p in perm))]


@rule("Pad")
def _pad(node: gs.Node, facts: list[Fact]) -> list[Fact] | None:
    shape, pads = facts[0].shape, facts[1].value if len(facts) > 1 else None
    if shape is None or pads is None or len(node.inputs) > 3 or len(pads) != 2 * len(shape):
        return None
    return [Fact(facts[0].dtype, tuple(d + pads[i] + pads[i + len(shape)] for i, d in enumerate(shape)))]


def _listed(node: gs.Node) -> tuple[int, ...] | None:
    """The sizes of a Split into more pieces than values are followed of, such as all modulations of a transformer."""
    values = getattr(node.inputs[1], "_values", None)
    return tuple(map(int, values)) if isinstance(values, np.ndarray) and values.shape == (len(node.outputs),) else None


@rule("Split")
def _split(node: gs.Node, facts: list[Fact]) -> list[Fact] | None:
    """Into pieces whose sizes are computed, as those of a sequence that two were joined to; and lists of numbers."""
    shape, value = facts[0].shape, facts[0].value
    if shape is None:
        return None
    sizes = facts[1].value or _listed(node) if len(facts) > 1 else None
    if sizes is None and len(facts) < 2 and value is not None and len(value) % len(node.outputs) == 0:
        sizes = (len(value) // len(node.outputs),) * len(node.outputs)
    if sizes is None:
        return None
    axis = node.attrs.get("axis", 0) % len(shape)
    before, after = shape[:axis], shape[axis + 1 :]
    lengths = numbers(sizes) if value is not None and len(shape) == 1 else None
    ends = [] if lengths is None else [sum(lengths[: index + 1]) for index in range(len(lengths))]
    values = [value[end - size : end] for end, size in zip(ends, lengths, strict=True)] if value and lengths else []
    return [
        Fact(facts[0].dtype, (*before, size, *after), values[index] if values else None)
        for index, size in enumerate(sizes)
    ]
