"""Weights that say nothing: a component whose matrices are each one number throughout, such as zeros or NaN.

A disk, a broken download or a wrong conversion leaves files of the right size without their values. The component
loads, and what it computes looks like a result: of a zeroed text encoder an image without regard to the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sdort.errors import BadModelError
from sdort.files.input_file import open_input
from sdort.graph.signature import Array
from sdort.graph.stored_values import StoredValues
from sdort.machine.os_calls import os_calls

ALIVE = 0.1
"""Share of the matrices' bytes that has to vary. Zero-initialised convolutions (ControlNet's, motion modules'), norms,
biases and zero points may be constant, and stay far below the rest; embeddings and projections of real models vary."""
_LEAST_BYTES = 1 << 16
"""Bytes of all matrices together below which nothing is said: graphs of a few nodes are no components."""
_SAMPLE = 64
"""Elements of each sample; there is one at the beginning, the middle and the end of a matrix."""


def refuse_constant(weights: Iterable[object], component: str) -> None:
    """Refuse a component of whose matrices nearly all are constant.

    Samples suffice to see that a matrix varies, and it is enough to look at the largest, so that a right component
    costs a few reads. What seems constant is read wholly before it is refused.

    Args:
        weights: of the component; those that do not lie in a file, vectors and integers are not looked at.

    Raises:
        BadModelError: the values say nothing.
    """
    chosen = (weight for weight in weights if isinstance(weight, StoredValues) and _is_matrix(weight))
    matrices = sorted(chosen, key=lambda weight: -weight.nbytes)
    total = sum(weight.nbytes for weight in matrices)
    if total < _LEAST_BYTES:
        return
    for constant in (_seems_constant, _is_constant):
        varying = 0
        for weight in matrices:
            varying += 0 if constant(weight) else weight.nbytes
            if varying > ALIVE * total:
                return
    first = matrices[0].load().reshape(-1)[:1].astype(np.float64)
    raise BadModelError(
        f"its weights are empty: {1 - varying / total:.0%} of their bytes are tensors of one value throughout "
        f"(the largest: {first[0]:g}), in {matrices[0].path}",
        component=component,
        hint="A damaged disk, an unfinished download or a wrong conversion does this: copy or convert it again.",
    )


def _is_matrix(weight: StoredValues) -> bool:
    return len(weight.shape) > 1 and weight.nbytes > 1024 and weight.dtype not in (np.int64, np.int32, np.bool_)


def _seems_constant(weight: StoredValues) -> bool:
    size, count = weight.dtype.itemsize, weight.nbytes // weight.dtype.itemsize
    with open_input(weight.path) as file:
        samples = [
            np.frombuffer(os_calls.read_at(file.fileno(), size * _SAMPLE, weight.offset + size * first), np.uint8)
            for first in (0, count // 2, max(count - _SAMPLE, 0))
        ]
    try:
        return _says_nothing(np.concatenate(samples).view(weight.dtype))
    except ValueError:
        return False  # cut off: reading it says so


def _is_constant(weight: StoredValues) -> bool:
    first = None
    for piece in weight.pieces():
        first = piece[:1].copy() if first is None else first
        if not _says_nothing(np.concatenate([first, piece])):
            return False
    return True


def _says_nothing(values: Array) -> bool:
    """Whether all values are the same, or none is finite."""
    return bool((values == values[0]).all()) or not np.isfinite(values.astype(np.float32)).any()
