"""A weight with the differences of adapters added, computed while it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sdort.adapters.weight_deltas import Difference
from sdort.graph.float16 import convert
from sdort.graph.pieces import gather, split
from sdort.graph.signature import Array
from sdort.graph.weights import Weight


class Adapted(Weight):
    """``operand + sum(scale * delta)`` in fp32.

    Where a difference depends on the weight (DoRA), that is ``operand``, so that the order of adapters is of no
    effect, and a scale is a share of the way from the old weight to the new one.
    """

    def __init__(self, operand: Weight, deltas: Sequence[tuple[Difference, float]]) -> None:
        super().__init__(operand.shape, np.float32)
        self.operand = operand
        self.deltas = tuple(deltas)
        for delta, _ in self.deltas:
            if delta.shape != self.shape:
                raise ValueError(f"a difference of shape {delta.shape} for a weight of {self.shape}")

    @property
    def operands(self) -> tuple[Weight, ...]:
        return (self.operand,)

    def load(self) -> Array:
        return gather(self.pieces(), self.shape, self.dtype)

    def pieces(self, row: int = 1) -> Iterator[Array]:
        if not math.prod(self.shape) or not all(delta.by_rows for delta, _ in self.deltas):
            return split(self._add([delta.rows() for delta, _ in self.deltas], 0, self.operand.load()), row)
        return self._pieces(math.lcm(row, math.prod(self.shape[1:])))

    def _pieces(self, row: int) -> Iterator[Array]:
        start, inner = 0, self.shape[1:]
        rows = [delta.rows() for delta, _ in self.deltas]
        for piece in self.operand.pieces(row):
            base = piece.reshape(-1, *inner)
            yield self._add(rows, start, base).reshape(-1)
            start += len(base)

    def _add(self, rows: Sequence[Callable[[int, Array], Array]], start: int, values: Array) -> Array:
        """The rows from ``start`` on, whose old values are given, with all differences."""
        base = total = convert(values, np.float32)
        for compute, (_, scale) in zip(rows, self.deltas, strict=True):
            difference = compute(start, base)  # nobody else's: it becomes the sum
            if scale != 1:
                difference *= np.float32(scale)
            total = np.add(total, difference, out=difference)
        return total


def adapted(weight: Weight, deltas: Sequence[tuple[Difference, float]]) -> Weight:
    """``weight`` with differences, each times its scale; ``weight`` itself where there are none or all scales are 0.

    Raises:
        ValueError: a difference is of another shape.
    """
    effective = [(delta, scale) for delta, scale in deltas if scale]
    return Adapted(weight, effective) if effective else weight
