"""fp16 overflow: the values that became infinite when a weight was evaluated."""

from __future__ import annotations

import numpy as np

from sdort.graph.signature import Array
from sdort.graph.weights import Weight

_INFINITY = 0x7C00
"""The bits of float16's infinity; those of NaN are above."""


def count_overflow(array: Array, weight: Weight) -> int:
    """The number of infinite values of ``array``, which ``weight`` evaluated to, whose sources were finite."""
    return subtract_sources(count_infinite(array), weight)


def is_finite(array: Array) -> bool:
    """Whether no value of a contiguous array of floats is infinite or NaN."""
    if array.dtype != np.float16:
        return bool(np.isfinite(array).all())
    return _largest_bits(array) < _INFINITY


def count_infinite(array: Array) -> int:
    """The number of infinite values in a contiguous array of float16; 0 for other dtypes."""
    if array.dtype != np.float16:
        return 0
    if _largest_bits(array) < _INFINITY:
        return 0
    return int(np.isinf(array).sum())


def _largest_bits(array: Array) -> int:
    """The largest of float16 values without their signs, as bits: several times as fast as numpy's functions."""
    return int((array.reshape(-1).view(np.uint16) & np.uint16(0x7FFF)).max(initial=0))


def subtract_sources(infinite: int, weight: Weight) -> int:
    """The number of ``infinite`` values that ``weight`` evaluated to which were finite in its sources.

    The sources are read again only if there are infinities at all. Transforms move, scale, round and copy values, so
    comparing the counts is enough.
    """
    if not infinite:
        return 0
    return infinite - sum(int(np.isinf(piece).sum()) for leaf in weight.leaves() for piece in leaf.pieces())
