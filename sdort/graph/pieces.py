"""Tensors in pieces that stay in a core's cache while they are read, rounded, turned and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sdort.graph.signature import Array

PIECE = 2**19
"""Elements of a piece. Smaller ones spend their time in Python, larger ones are evicted to memory between two steps."""

TRANSPOSE_TILE = 256
"""Rows and columns of a tile whose source and target lines stay in the cache while it is turned."""


def piece_size(row: int) -> int:
    """Elements of a piece that is made of whole rows: at least one."""
    return max(PIECE // row, 1) * row


def split(values: Array, row: int = 1) -> Iterator[Array]:
    """The values in row-major order, flat, in pieces of whole rows of ``row`` elements."""
    flat = values.reshape(-1)
    step = piece_size(row) if row else 1
    for start in range(0, flat.size, step):
        yield flat[start : start + step]


def gather(pieces: Iterable[Array], shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """An array made of the flat ``pieces`` of its values."""
    array = np.empty(shape, dtype)
    flat, start = array.reshape(-1), 0
    for piece in pieces:
        flat[start : start + piece.size] = piece
        start += piece.size
    return array


def contiguous(view: Array) -> Array:
    """``view`` in row-major order; a matrix is turned by tiles, as numpy misses the cache all the time."""
    if view.ndim != 2 or view.strides[0] >= view.strides[1]:
        return np.asarray(view, order="C")
    out = np.empty(view.shape, view.dtype)
    for i in range(0, view.shape[0], TRANSPOSE_TILE):
        for j in range(0, view.shape[1], TRANSPOSE_TILE):
            out[i : i + TRANSPOSE_TILE, j : j + TRANSPOSE_TILE] = view[i : i + TRANSPOSE_TILE, j : j + TRANSPOSE_TILE]
    return out
