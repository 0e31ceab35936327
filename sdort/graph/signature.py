"""Inputs and outputs as a model declares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sdort.errors import BadModelError

Array = npt.NDArray[Any]
Factors = tuple[Array, Array]
"""Matrices in fp32, [rows, rank] and [rank, columns]: something large is their product."""

Feeds = Mapping[str, Array]
"""Values for a component's inputs, by name."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output as the model declares it; a dynamic dimension is its symbol, or None without one."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]


class HasInputs(Protocol):
    """A session, or the signature of a file."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """Inputs by name."""


def static_size(shape: Sequence[int | str | None], axis: int) -> int | None:
    """A dimension's fixed size, None when it is dynamic or absent."""
    size = shape[axis] if axis < len(shape) else None
    return size if isinstance(size, int) else None


def cast_feeds(feeds: Mapping[str, Any], inputs: Iterable[TensorSpec], component: str) -> dict[str, Any]:
    """A model's feeds in the dtypes that it declares, by the names of its inputs.

    Args:
        feeds: per input an array of any dtype and layout, or what a runtime keeps in memory of its own; more are left
            out.
        inputs: as the model declares them.

    Returns:
        Arrays cast to the declared dtypes, in C order; the rest as it is.

    Raises:
        BadModelError: an input is missing.
    """
    inputs = list(inputs)
    missing = [spec.name for spec in inputs if spec.name not in feeds]
    if missing:
        raise BadModelError(
            f"the model wants the inputs {', '.join(missing)}, which nothing here provides", component=component
        )
    return {spec.name: _cast(feeds[spec.name], spec.dtype) for spec in inputs}


def _cast(value: Any, dtype: np.dtype[Any]) -> Any:
    return np.asarray(value, dtype, order="C") if isinstance(value, np.ndarray) else value
