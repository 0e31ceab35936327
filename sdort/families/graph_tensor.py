"""Declared inputs and outputs of a component's graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GraphDim = int | str


@dataclass(frozen=True)
class GraphTensor:
    """An input or output: its name, dtype (numpy's name) and dims (a number, or a name when dynamic)."""

    name: str
    """The tensor's name."""
    dtype: str
    """numpy's name of its dtype."""
    dims: tuple[GraphDim, ...]
    """Its sizes: a number, or a name where it is dynamic."""


GraphSignature = tuple[tuple[GraphTensor, ...], tuple[GraphTensor, ...]]
"""Inputs and outputs."""


def size_of(config: Mapping[str, Any], key: str) -> int:
    """An entry of a config that is a size.

    Raises:
        KeyError, ValueError: there is none.
    """
    return positive(config[key], key)


def positive(value: Any, key: str) -> int:
    """A value of a config that is a size.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{key} = {value!r}")
    return value
