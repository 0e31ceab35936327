"""Equality of weights' expressions."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from sdort.graph.weights import Weight


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
