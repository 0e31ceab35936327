"""Weights that are described, not loaded.

A pass never touches the values of a large tensor. It builds an expression, such as
``transpose(stored, (0, 2, 3, 1))``, and the writer evaluates it one tensor at a time while it streams the
data file, so peak memory is the graph plus the largest tensor. A :class:`Weight` stands wherever
onnx-graphsurgeon expects a ``LazyValues``: ``gs.Constant(name, values=weight)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx_graphsurgeon.ir.tensor import LazyValues

from sdort.errors import BadModelError

Array = npt.NDArray[Any]


class Weight(LazyValues):  # type: ignore[misc]
    """A tensor of known ``shape`` and ``dtype`` whose values :meth:`load` produces on demand."""

    # LazyValues.__init__ wants a TensorProto; a Weight has none until it is written.
    def __init__(self, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        self.shape = tuple(int(d) for d in shape)
        self.dtype = np.dtype(dtype)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def operands(self) -> tuple[Weight, ...]:
        """The weights that this one is computed from; empty for a leaf."""
        return ()

    def leaves(self) -> Iterator[Weight]:
        """The stored tensors at the bottom of the expression."""
        if not self.operands:
            yield self
        for operand in self.operands:
            yield from operand.leaves()

    def load(self) -> Array:
        """Compute the values: an array of ``shape`` and ``dtype``; nothing is cached."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"


class Stored(Weight):
    """Raw little-endian, row-major bytes at ``offset`` of a file (ONNX external data or safetensors)."""

    def __init__(self, path: Path, offset: int, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        super().__init__(shape, dtype)
        self.path = path
        self.offset = offset

    def load(self) -> Array:
        array: Array = np.empty(self.shape, self.dtype)
        # A read, not a map: pages of a mapped file would count towards the process's memory.
        try:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(self.offset)
                view = array.reshape(-1).view(np.uint8).data
                done = 0
                while done < len(view):
                    count = file.readinto(view[done:])
                    if not count:
                        raise BadModelError(
                            f"{self.path} ends {len(view) - done} bytes before the end of a tensor",
                            hint="The file is truncated; copy or download it again.",
                        )
                    done += count
        except OSError as error:
            raise BadModelError(f"cannot read weights from {self.path}: {error.strerror or error}") from error
        return array


class Inline(Weight):
    """Values already in memory, behind the same interface."""

    def __init__(self, array: Array) -> None:
        super().__init__(array.shape, array.dtype)
        self.array = array

    def load(self) -> Array:
        return self.array


class Absent(Weight):
    """A parameter whose values are not here: an architecture without a checkpoint."""

    def __init__(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        super().__init__(shape, dtype)
        self.name = name

    def load(self) -> Array:
        raise BadModelError(
            f"parameter {self.name!r} has no values: this model is an architecture without weights",
            hint="Bind a checkpoint to it first (sdort export MODEL OUT).",
        )


class _Unary(Weight):
    def __init__(self, operand: Weight, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        super().__init__(shape, dtype)
        self.operand = operand

    @property
    def operands(self) -> tuple[Weight, ...]:
        return (self.operand,)


class Transposed(_Unary):
    """``operand`` with its axes permuted; ``shape[i] = operand.shape[perm[i]]``."""

    def __init__(self, operand: Weight, perm: Sequence[int]) -> None:
        self.perm = tuple(int(p) for p in perm)
        super().__init__(operand, [operand.shape[p] for p in self.perm], operand.dtype)

    def load(self) -> Array:
        values = self.operand.load()
        return _transposed(values) if self.perm == (1, 0) else np.ascontiguousarray(values.transpose(self.perm))


TILE = 256
"""Rows and columns of a tile whose source and target lines stay in the cache while it is turned."""


def _transposed(values: Array) -> Array:
    """A matrix turned tile by tile: several times as fast as numpy's own copy, which misses the cache all the time."""
    out = np.empty(values.shape[::-1], values.dtype)
    for i in range(0, values.shape[0], TILE):
        for j in range(0, values.shape[1], TILE):
            out[j : j + TILE, i : i + TILE] = values[i : i + TILE, j : j + TILE].T
    return out


class Reshaped(_Unary):
    """``operand`` with the same elements in another shape."""

    def __init__(self, operand: Weight, shape: Sequence[int]) -> None:
        super().__init__(operand, shape, operand.dtype)
        if math.prod(self.shape) != math.prod(operand.shape):
            raise ValueError(f"cannot reshape {operand.shape} to {self.shape}")

    def load(self) -> Array:
        return self.operand.load().reshape(self.shape)


class Cast(_Unary):
    """``operand`` rounded to ``dtype`` (to nearest, ties to even; overflow becomes infinity)."""

    def __init__(self, operand: Weight, dtype: npt.DTypeLike) -> None:
        super().__init__(operand, operand.shape, dtype)

    def load(self) -> Array:
        with np.errstate(over="ignore"):
            return self.operand.load().astype(self.dtype, copy=False)


class Scaled(_Unary):
    """``operand`` times a scalar, rounded once to its own dtype."""

    def __init__(self, operand: Weight, factor: float) -> None:
        super().__init__(operand, operand.shape, operand.dtype)
        self.factor = float(factor)

    def load(self) -> Array:
        wide = self.operand.load().astype(np.float32 if self.dtype.itemsize <= 2 else self.dtype, copy=False)
        scaled: Array = wide * wide.dtype.type(self.factor)
        return scaled.astype(self.dtype, copy=False)


class Concatenated(Weight):
    """The operands one after the other along ``axis``."""

    def __init__(self, parts: Sequence[Weight], axis: int) -> None:
        first = parts[0]
        self.axis = axis % len(first.shape)
        shape = list(first.shape)
        shape[self.axis] = sum(part.shape[self.axis] for part in parts)
        super().__init__(shape, first.dtype)
        self.parts = tuple(parts)

    @property
    def operands(self) -> tuple[Weight, ...]:
        return self.parts

    def load(self) -> Array:
        out = np.empty(self.shape, self.dtype)
        index: list[slice] = [slice(None)] * len(self.shape)
        start = 0
        for part in self.parts:
            index[self.axis] = slice(start, start + part.shape[self.axis])
            out[tuple(index)] = part.load()
            start += part.shape[self.axis]
        return out


def cast(weight: Weight, dtype: npt.DTypeLike) -> Weight:
    """``weight`` rounded to ``dtype``, as deep as that may go: what only moves values then moves fewer bytes."""
    if isinstance(weight, Transposed):
        return Transposed(cast(weight.operand, dtype), weight.perm)
    if isinstance(weight, Reshaped):
        return Reshaped(cast(weight.operand, dtype), weight.shape)
    if isinstance(weight, Concatenated):
        return Concatenated([cast(part, dtype) for part in weight.parts], weight.axis)
    return Cast(weight, dtype)


def as_weight(values: Array | Weight) -> Weight:
    """A gs.Constant's values (an array or a weight) as a weight."""
    return values if isinstance(values, Weight) else Inline(values)
