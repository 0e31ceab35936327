"""Operators by which one row of a batch becomes one row, whatever is in the others.

What such operators make of a list of timesteps is, row by row, what they make of each timestep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sdort.graph.domains import MICROSOFT
from sdort.graph.element_operators import BROADCAST, is_unary

Row = tuple[int, ...]
"""The shape of a row: a tensor's dimensions after its first, in which each row stands for itself."""


class Rows:
    """Known facts of a graph's tensors: the rows among them, and constants.

    Attributes:
        rows: tensor -> the shape of its rows.
    """

    def __init__(self, constants: Mapping[str, onnx.TensorProto]) -> None:
        self.rows: dict[str, Row] = {}
        self._constants = constants

    def add(self, node: onnx.NodeProto) -> bool:
        """Whether a node's outputs are rows made of rows and constants, which are then known."""
        found = self._row_of(node)
        if found is not None:
            self.rows |= dict.fromkeys(filter(None, node.output), found)
        return found is not None

    def ints(self, name: str) -> list[int] | None:
        """The values of a small constant of integers; None where ``name`` is none."""
        tensor = self._constants.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL or len(tensor.dims) > 1:
            return None
        return [int(value) for value in np.atleast_1d(numpy_helper.to_array(tensor))]

    def _row_of(self, node: onnx.NodeProto) -> Row | None:
        row = self.rows.get(node.input[0]) if node.input else None
        made = {place for place, name in enumerate(node.output) if name}
        if not made <= _OUTPUTS.get(node.op_type, {0}) or any(name and not self._known(name) for name in node.input):
            return None
        if node.op_type in BROADCAST and not node.domain:
            return self._broadcast(node)
        if row is None:
            return None
        if is_unary(node.op_type, node.domain, len(node.input)):
            return row
        rule = _RULES.get((node.domain, node.op_type))
        return rule(self, node, row) if rule else None

    def _known(self, name: str) -> bool:
        return name in self.rows or name in self._constants

    def _broadcast(self, node: onnx.NodeProto) -> Row | None:
        rows = [self.rows[name] for name in node.input if name in self.rows]
        rank = 1 + len(rows[0]) if rows else 0
        shapes = [*rows]
        for name in node.input:
            if name not in self.rows:
                dims = tuple(self._constants[name].dims)
                if len(dims) > rank or (len(dims) == rank and dims[0] != 1):
                    return None
                shapes.append(dims[-(rank - 1) :] if rank > 1 else ())
        if not rows or any(len(row) != rank - 1 for row in rows):
            return None
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            return None

    def _gemm(self, node: onnx.NodeProto, row: Row) -> Row | None:
        second, *third = node.input[1:]
        if len(row) != 1 or second in self.rows or _attribute(node, "transA", 0) or self.rows.keys() & set(third):
            return None
        shapes = [tuple(self._constants[name].dims) for name in third if name]
        if any(len(shape) > 1 and shape[0] != 1 for shape in shapes):
            return None
        width = self._constants[second].dims
        return (width[0] if _attribute(node, "transB", 0) else width[1],)

    def _matmul(self, node: onnx.NodeProto, row: Row) -> Row | None:
        second = node.input[1]
        if not row or second in self.rows or len(self._constants[second].dims) != 2:
            return None
        return (*row[:-1], self._constants[second].dims[1])

    def _norm(self, node: onnx.NodeProto, row: Row) -> Row | None:
        inside = _attribute(node, "axis", -1) % (1 + len(row))
        return row if inside and self.rows.keys().isdisjoint(node.input[1:]) else None

    def _skip_norm(self, node: onnx.NodeProto, row: Row) -> Row | None:
        """The norm of a sum along the last axis, and the sum."""
        alike = row and self.rows.get(node.input[1]) == row
        return row if alike and self.rows.keys().isdisjoint(node.input[2:]) else None

    def _bias_add(self, node: onnx.NodeProto, row: Row) -> Row | None:
        return row if row and node.input[1] not in self.rows and self.rows.get(node.input[2]) == row else None

    def _concat(self, node: onnx.NodeProto, row: Row) -> Row | None:
        rows = [self.rows.get(name) for name in node.input]
        axis = _attribute(node, "axis", 0)
        axis = axis - 1 if axis >= 0 else axis + len(row)
        if axis < 0 or any(other is None or len(other) != len(row) for other in rows):
            return None
        return (*row[:axis], sum(other[axis] for other in rows if other), *row[axis + 1 :])

    def _reshape(self, node: onnx.NodeProto, row: Row) -> Row | None:
        target = self.ints(node.input[1])
        if not target or any(size < 1 for size in target[1:]) or math.prod(target[1:]) != math.prod(row):
            return None
        return tuple(target[1:])

    def _slice(self, node: onnx.NodeProto, row: Row) -> Row | None:
        """A part of each row; ``Slice`` of operator sets before 10 has attributes, and is not looked at."""
        starts, ends, axes, steps = (self.ints(name) if name else None for name in [*node.input[1:], "", ""][:4])
        if len(node.input) < 4 or not (starts and ends and axes) or (len(node.input) > 4 and not steps):
            return None
        places = [axis % (1 + len(row)) for axis in axes]
        if 0 in places:
            return None
        sizes = list(row)
        for place, start, end, step in zip(places, starts, ends, steps or [1] * len(starts), strict=True):
            sizes[place - 1] = len(range(*slice(start, end, step).indices(sizes[place - 1])))
        return tuple(sizes)

    def _unsqueeze(self, node: onnx.NodeProto, row: Row) -> Row | None:
        axes = self.ints(node.input[1]) if len(node.input) > 1 else None
        rank = 1 + len(row) + len(axes or ())
        places = {axis % rank for axis in axes or ()}
        if not places or 0 in places:
            return None
        kept = iter(row)
        return tuple(1 if axis in places else next(kept) for axis in range(1, rank))


_RULES: dict[tuple[str, str], Callable[[Rows, onnx.NodeProto, Row], Row | None]] = {
    ("", "Concat"): Rows._concat,
    ("", "Gemm"): Rows._gemm,
    ("", "LayerNormalization"): Rows._norm,
    ("", "MatMul"): Rows._matmul,
    ("", "RMSNormalization"): Rows._norm,
    ("", "Reshape"): Rows._reshape,
    ("", "SimplifiedLayerNormalization"): Rows._norm,
    ("", "Slice"): Rows._slice,
    ("", "Unsqueeze"): Rows._unsqueeze,
    (MICROSOFT, "BiasAdd"): Rows._bias_add,
    (MICROSOFT, "SkipLayerNormalization"): Rows._skip_norm,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): Rows._skip_norm,
}
_OUTPUTS = dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), frozenset({0, 3}))
"""The places of the outputs that are such rows; of other operators the first one alone."""


def free_rows(node: onnx.NodeProto, row: Row | None) -> tuple[onnx.NodeProto, list[onnx.TensorProto]]:
    """A node that makes such rows, for any number of them, and the constants that it needs for that: a Reshape may name
    the number. A node without rows stays as it is."""
    if node.op_type != "Reshape" or row is None:
        return node, []
    target = helper.make_tensor(f"{node.output[0]}.rows", onnx.TensorProto.INT64, [1 + len(row)], [-1, *row])
    return helper.make_node("Reshape", [node.input[0], target.name], node.output, node.name), [target]


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    found = next((attribute for attribute in node.attribute if attribute.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def same_rows(first: Sequence[object], second: Sequence[object]) -> bool:
    """Whether two declared shapes count the same rows first."""
    return bool(first and second) and first[0] is not None and first[0] == second[0]
