"""Weights that are described, not loaded.

A pass never touches the values of a large tensor. It builds an expression, such as
``transpose(stored, (0, 2, 3, 1))``, and the writer evaluates it while it streams the data file: piece by piece, where
the expression allows it, so that values go from the file through the processor's cache to the other file. A
:class:`Weight` stands wherever onnx-graphsurgeon expects a ``LazyValues``: ``gs.Constant(name, values=weight)``.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx_graphsurgeon.ir.tensor import LazyValues

from sdort.errors import BadModelError
from sdort.graph.float16 import convert
from sdort.graph.pieces import contiguous, gather, piece_size, split
from sdort.graph.signature import Array
from sdort.graph.stored_values import StoredValues

SMALL_BYTES = 1024
"""Tensors up to here (shapes, axes, scalars, epsilons) are arrays in memory, and lie inside a written .onnx file."""


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

    def pieces(self, row: int = 1) -> Iterator[Array]:
        """The values in row-major order as flat arrays, each valid until the next one is asked for.

        Every piece has whole rows of ``row`` elements, which divides the number of all elements.
        """
        return split(self.load(), row)

    def __str__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"


class Stored(StoredValues, Weight):
    """Values in a file (ONNX external data or safetensors)."""


class Unwritten(Weight):
    """Values that a region of a file would have, if that was written: computed from ``weight`` instead.

    A leaf as :class:`Stored` is, of the same place, so that whatever is made of it is what is made of the written file.
    """

    def __init__(self, path: Path, offset: int, weight: Weight) -> None:
        super().__init__(weight.shape, weight.dtype)
        self.path, self.offset, self.weight = path, offset, weight

    def load(self) -> Array:
        return self.weight.load()

    def pieces(self, row: int = 1) -> Iterator[Array]:
        return self.weight.pieces(row)


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


class Unary(Weight):
    """A weight that is computed from one other, ``operand``."""

    def __init__(self, operand: Weight, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        super().__init__(shape, dtype)
        self.operand = operand

    @property
    def operands(self) -> tuple[Weight, ...]:
        return (self.operand,)


class Transposed(Unary):
    """``operand`` with its axes permuted; ``shape[i] = operand.shape[perm[i]]``."""

    def __init__(self, operand: Weight, perm: Sequence[int]) -> None:
        self.perm = tuple(int(p) for p in perm)
        super().__init__(operand, [operand.shape[p] for p in self.perm], operand.dtype)

    def load(self) -> Array:
        if self._keeps_rows:
            return gather(self.pieces(), self.shape, self.dtype)
        return contiguous(self.operand.load().transpose(self.perm))

    def pieces(self, row: int = 1) -> Iterator[Array]:
        if not self.perm or not math.prod(self.shape):
            return split(self.load(), row)
        return self._rows(row) if self._keeps_rows else self._turned_rows(row)

    @property
    def _keeps_rows(self) -> bool:
        """Whether a row, what lies under one index of the first axis, is turned in itself."""
        return self.perm[:1] == (0,) and math.prod(self.shape) > 0

    def _rows(self, row: int) -> Iterator[Array]:
        inner = self.operand.shape[1:]
        for piece in self.operand.pieces(math.lcm(row, math.prod(inner))):
            yield np.ascontiguousarray(piece.reshape(-1, *inner).transpose(self.perm)).reshape(-1)

    def _turned_rows(self, row: int) -> Iterator[Array]:
        """The operand is in memory as a whole; what it is turned into is not."""
        view = self.operand.load().transpose(self.perm)
        size = math.prod(self.shape[1:])
        step = piece_size(math.lcm(row, size)) // size
        for start in range(0, self.shape[0], step):
            yield contiguous(view[start : start + step]).reshape(-1)


class Reshaped(Unary):
    """``operand`` with the same elements in another shape."""

    def __init__(self, operand: Weight, shape: Sequence[int]) -> None:
        super().__init__(operand, shape, operand.dtype)
        if math.prod(self.shape) != math.prod(operand.shape):
            raise ValueError(f"cannot reshape {operand.shape} to {self.shape}")

    def load(self) -> Array:
        return self.operand.load().reshape(self.shape)

    def pieces(self, row: int = 1) -> Iterator[Array]:
        return self.operand.pieces(row)


class Cast(Unary):
    """``operand`` rounded to ``dtype`` (to nearest, ties to even; overflow becomes infinity)."""

    def __init__(self, operand: Weight, dtype: npt.DTypeLike) -> None:
        super().__init__(operand, operand.shape, dtype)

    def load(self) -> Array:
        return gather(self.pieces(), self.shape, self.dtype)

    def pieces(self, row: int = 1) -> Iterator[Array]:
        return (convert(piece, self.dtype) for piece in self.operand.pieces(row))


class Scaled(Unary):
    """``operand`` times a scalar, rounded once to its own dtype."""

    def __init__(self, operand: Weight, factor: float) -> None:
        super().__init__(operand, operand.shape, operand.dtype)
        self.factor = float(factor)

    def load(self) -> Array:
        return gather(self.pieces(), self.shape, self.dtype)

    def pieces(self, row: int = 1) -> Iterator[Array]:
        wide = np.dtype(np.float32) if self.dtype.itemsize <= 2 else self.dtype
        factor = np.array(self.factor, wide)
        return (convert(convert(piece, wide) * factor, self.dtype) for piece in self.operand.pieces(row))


class Combined(Unary):
    """Linear combinations of an operand's slices along ``axis``: ``result[r] = sum(matrix[r][c] * operand[c])``.

    Summed in float64, in the order of ``c``, and rounded once to the operand's dtype.
    """

    def __init__(self, operand: Weight, axis: int, matrix: Sequence[Sequence[float]]) -> None:
        self.axis = axis % len(operand.shape)
        self.matrix = tuple(tuple(float(factor) for factor in row) for row in matrix)
        if not self.matrix or {len(row) for row in self.matrix} != {operand.shape[self.axis]}:
            raise ValueError(f"a matrix of {len(self.matrix)} rows for {operand.shape}, axis {axis}")
        shape = list(operand.shape)
        shape[self.axis] = len(self.matrix)
        super().__init__(operand, shape, operand.dtype)

    def load(self) -> Array:
        return gather(self.pieces(), self.shape, self.dtype)

    def pieces(self, row: int = 1) -> Iterator[Array]:
        size = math.prod(self.shape[1:])
        if self.axis == 0 or not math.prod(self.shape) or size % row:
            return split(self._combined(self.operand.load()), row)
        inner = self.operand.shape[1:]
        slabs = self.operand.pieces(math.prod(inner))
        return (self._combined(slab.reshape(-1, *inner)).reshape(-1) for slab in slabs)

    def _combined(self, values: Array) -> Array:
        slices = np.moveaxis(convert(values, np.float64), self.axis, 0)
        out = np.zeros((len(self.matrix), *slices.shape[1:]))
        for total, factors in zip(out, self.matrix, strict=True):
            for factor, values_of_slice in zip(factors, slices, strict=True):
                if factor:
                    total += values_of_slice if factor == 1 else values_of_slice * factor
        return convert(np.ascontiguousarray(np.moveaxis(out, 0, self.axis)), self.dtype)


class Dequantized(Weight):
    """(``operand`` - ``zero``) * ``scale``: integers as numbers of the scale's type.

    Scale and zero point are one for all, or a vector with one for each index of ``axis``; no zero point is 0
    (https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html).
    """

    def __init__(self, operand: Weight, scale: Weight, zero: Weight | None, axis: int) -> None:
        super().__init__(operand.shape, scale.dtype)
        self.operand, self.scale, self.zero, self.axis = operand, scale, zero, axis
        for vector in (scale, *([zero] if zero is not None else [])):
            if math.prod(vector.shape) != 1 and vector.shape != (operand.shape[axis],):
                raise ValueError(f"a scale of shape {vector.shape} for {operand.shape}, axis {axis}")

    @property
    def operands(self) -> tuple[Weight, ...]:
        return (self.operand, self.scale, *([self.zero] if self.zero is not None else []))

    def load(self) -> Array:
        values = self.operand.load().astype(np.float32)
        if self.zero is not None:
            values -= self._along(self.zero)
        values *= self._along(self.scale)
        return convert(values, self.dtype)

    def pieces(self, row: int = 1) -> Iterator[Array]:
        if self.zero is not None or math.prod(self.scale.shape) != 1:
            return split(self.load(), row)
        scale = self.scale.load().astype(np.float32).reshape(())
        return (convert(piece.astype(np.float32) * scale, self.dtype) for piece in self.operand.pieces(row))

    def _along(self, vector: Weight) -> Array:
        size = [1] * len(self.shape)
        if math.prod(vector.shape) != 1:
            size[self.axis] = -1
        return vector.load().astype(np.float32).reshape(size)


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

    def pieces(self, row: int = 1) -> Iterator[Array]:
        if self.axis or any(math.prod(part.shape) % row for part in self.parts):
            return split(self.load(), row)
        return itertools.chain.from_iterable(part.pieces(row) for part in self.parts)


def cast(weight: Weight, dtype: npt.DTypeLike) -> Weight:
    """``weight`` rounded to ``dtype``, as deep as that may go: what only moves values then moves fewer bytes."""
    if isinstance(weight, Transposed):
        return Transposed(cast(weight.operand, dtype), weight.perm)
    if isinstance(weight, Reshaped):
        return Reshaped(cast(weight.operand, dtype), weight.shape)
    if isinstance(weight, Concatenated):
        return Concatenated([cast(part, dtype) for part in weight.parts], weight.axis)
    return Cast(weight, dtype)


def cast_values(values: Array | Weight, dtype: npt.DTypeLike) -> Array | Weight:
    """A gs.Constant's values rounded to ``dtype``: an array stays one, a weight is only described."""
    return cast(values, dtype) if isinstance(values, Weight) else convert(np.asarray(values), dtype)


def as_weight(values: Array | Weight) -> Weight:
    """A gs.Constant's values (an array or a weight) as a weight."""
    return values if isinstance(values, Weight) else Inline(values)


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
