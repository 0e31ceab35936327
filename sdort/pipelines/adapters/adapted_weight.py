"""A weight with the differences of adapters added, computed while it is written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sdort.model.convert import convert
from sdort.model.signature import Array
from sdort.model.weights import Weight
from sdort.pipelines.adapters.delta import Delta


class Adapted(Weight):
    """``operand + sum(scale * delta)`` in fp32.

    Where a difference depends on the weight (DoRA), that is ``operand``, so that the order of adapters is of no
    effect, and a scale is a share of the way from the old weight to the new one.
    """

    def __init__(self, operand: Weight, deltas: Sequence[tuple[Delta, float]]) -> None:
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
        base = total = convert(self.operand.load(), np.float32)
        for delta, scale in self.deltas:
            difference = delta.array(base)  # nobody else's: it becomes the sum
            if scale != 1:
                difference *= np.float32(scale)
            total = np.add(total, difference, out=difference)
        return total


def adapted(weight: Weight, deltas: Sequence[tuple[Delta, float]]) -> Weight:
    """``weight`` with differences, each times its scale; ``weight`` itself where there are none or all scales are 0.

    Raises:
        ValueError: a difference is of another shape.
    """
    effective = [(delta, scale) for delta, scale in deltas if scale]
    return Adapted(weight, effective) if effective else weight
