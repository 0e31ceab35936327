"""Questions about a weight's expression: are two the same, did one overflow."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from sdort.model.weights import Array, Weight

_INFINITY = 0x7C00
"""The bits of float16's infinity; those of NaN are above."""


def count_overflow(array: Array, weight: Weight) -> int:
    """How many values of ``array``, which ``weight`` evaluated to, are infinite while their sources were finite."""
    return subtract_sources(count_infinite(array), weight)


def count_infinite(array: Array) -> int:
    """How many values are infinite in a contiguous array of float16; 0 for other dtypes."""
    if array.dtype != np.float16:
        return 0
    # By its bits: several times as fast as numpy.isinf on float16, above all where nothing is.
    magnitudes = array.reshape(-1).view(np.uint16) & np.uint16(0x7FFF)
    if not magnitudes.size or magnitudes.max() < _INFINITY:
        return 0
    return int(np.count_nonzero(magnitudes == _INFINITY))


def subtract_sources(infinite: int, weight: Weight) -> int:
    """How many of ``infinite`` values that ``weight`` evaluated to were finite in its sources.

    The sources are read again only if there are infinities at all. Transforms move, scale, round and copy values, so
    comparing the counts is enough.
    """
    if not infinite:
        return 0
    return infinite - sum(int(np.isinf(piece).sum()) for leaf in weight.leaves() for piece in leaf.pieces())


def expression_key(weight: Weight) -> tuple[Any, ...]:
    """Equal for two weights that are computed from the same stored bytes in the same way."""
    parts = tuple((name, _key(value)) for name, value in sorted(vars(weight).items()))
    return type(weight).__name__, parts


def _key(value: Any) -> Any:
    if isinstance(value, Weight):
        return expression_key(value)
    if isinstance(value, (tuple, list)):
        return tuple(_key(item) for item in value)
    if isinstance(value, np.dtype):
        return value.name
    # Anything else that is no plain value, such as an array, is only equal to itself.
    return value if isinstance(value, (str, numbers.Number, type(None))) else _identity(value)


def _identity(value: Any) -> Any:
    return str(value) if hasattr(value, "__fspath__") else ("id", id(value))
