"""Matrices in 8 or 4 bits: integers, and for each group of a row's neighbours a scale and a zero point.

The layout is that of ``com.microsoft.MatMulNBits``
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits). A value is
``(integer - zero point) * scale``. In 8 bits the zero point is 128 everywhere and is not stored; in 4 bits, where a
wasted level costs more, the levels reach from a group's smallest value to its largest. Narrower ranges, searched for
each group, would miss 3 % less of a normal distribution in groups of 32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sdort.graph.float16 import convert
from sdort.graph.pieces import gather
from sdort.graph.signature import Array
from sdort.graph.weights import Transposed, Unary, Weight


class GroupFormat(NamedTuple):
    """How a matrix is stored.

    Attributes:
        bits: of an integer, 8 or 4.
        group: how many neighbours of a row share a scale: a power of two from 16 on.
    """

    bits: int
    group: int

    @property
    def symmetric(self) -> bool:
        """Whether the zero point is the middle level, which is not stored."""
        return self.bits == 8

    def groups(self, columns: int) -> int:
        """Groups of a row, the last one filled up with zeros."""
        return -(-columns // self.group)

    def stored_bytes(self, rows: int, columns: int, scale_bytes: int) -> int:
        """Bytes of a matrix: its integers, scales and zero points."""
        groups = self.groups(columns)
        zeros = 0 if self.symmetric else -(-groups * self.bits // 8)
        return rows * (groups * self.group * self.bits // 8 + groups * scale_bytes + zeros)


class Levels(NamedTuple):
    """The levels of the groups of some rows.

    Attributes:
        values: the rows in groups, fp32, [rows, groups, group]; the last group is filled up with zeros. In memory
            the first values of all groups come first, then the second ones: NumPy is several times as fast so.
        scales: [rows, groups], in the dtype in which they are stored.
        zeros: uint8, [rows, groups]: the integers of 0.
    """

    values: Array
    scales: Array
    zeros: Array


class Groups(NamedTuple):
    """Rows in integers.

    Attributes:
        integers: uint8, [rows, groups, group].
        scales: as of :class:`Levels`.
        zeros: likewise.
    """

    integers: Array
    scales: Array
    zeros: Array


def levels_of(rows: Array, form: GroupFormat, scale_dtype: npt.DTypeLike) -> Levels:
    """Choose the levels of rows [rows, columns] of floats."""
    groups = form.groups(rows.shape[1])
    if more := groups * form.group - rows.shape[1]:
        rows = np.pad(rows, ((0, 0), (0, more)))
    values = np.moveaxis(np.empty((form.group, len(rows), groups), np.float32), 0, 2)
    values[...] = rows.reshape(values.shape)
    top = 2**form.bits - 1
    if form.symmetric:
        zeros = np.full(values.shape[:2], 2 ** (form.bits - 1), np.uint8)
        spans = np.abs(values).max(axis=2) / (top // 2)
    else:
        low, high = np.minimum(values.min(axis=2), 0), np.maximum(values.max(axis=2), 0)
        spans = (high - low) / top
        zeros = np.rint(-low / np.where(spans > 0, spans, 1)).astype(np.uint8)
    return Levels(values, convert(spans, scale_dtype), zeros)


def quantize(rows: Array, form: GroupFormat, scale_dtype: npt.DTypeLike) -> Groups:
    """Round rows to the nearest levels of their groups.

    Args:
        rows: floats, [rows, columns].
        scale_dtype: in which scales are stored; integers are those of the scales as they are stored.
    """
    values, scales, zeros = levels_of(rows, form, scale_dtype)
    steps = convert(scales, np.float32)[..., None]
    values /= np.where(steps > 0, steps, np.inf)  # a group whose scale is too small to be stored is zero
    np.rint(values, out=values)
    values += zeros[..., None]
    np.clip(values, 0, 2**form.bits - 1, out=values)
    return Groups(values.astype(np.uint8), scales, zeros)


def pack(integers: Array, bits: int) -> Array:
    """Integers of 4 bits in bytes, the first in the lower half, along the last axis; those of 8 bits as they are."""
    if bits == 8:
        return integers
    if integers.shape[-1] % 2:
        integers = np.concatenate([integers, np.zeros_like(integers[..., :1])], axis=-1)
    packed: Array = integers[..., ::2] | integers[..., 1::2] << 4
    return packed


class _Part(Unary):
    """A part of what a matrix ``operand``, [rows, columns], is in integers; rows are computed as they are written."""

    def __init__(
        self, operand: Weight, form: GroupFormat, scale_dtype: npt.DTypeLike, row: Sequence[int], dtype: npt.DTypeLike
    ) -> None:
        self.form, self.scale_dtype = form, np.dtype(scale_dtype)
        self.row = math.prod(row)
        shape = (operand.shape[0], *row) if len(row) > 1 else (operand.shape[0] * self.row,)
        super().__init__(operand, shape, dtype)

    def load(self) -> Array:
        return gather(self.pieces(), self.shape, self.dtype)

    def pieces(self, row: int = 1) -> Iterator[Array]:
        columns = self.operand.shape[1]
        for piece in self.operand.pieces(columns * (math.lcm(row, self.row) // self.row)):
            yield np.ascontiguousarray(self._part(piece.reshape(-1, columns))).reshape(-1)

    def _part(self, rows: Array) -> Array:
        """The part of rows [rows, columns]."""
        raise NotImplementedError


class Integers(_Part):
    """The integers of a matrix, uint8, [rows, groups, bytes of a group]: 4 bits packed by two."""

    def __init__(self, operand: Weight, form: GroupFormat, scale_dtype: npt.DTypeLike) -> None:
        row = form.groups(operand.shape[1]), form.group * form.bits // 8
        super().__init__(operand, form, scale_dtype, row, np.uint8)

    def _part(self, rows: Array) -> Array:
        return pack(quantize(rows, self.form, self.scale_dtype).integers, self.form.bits)


class Scales(_Part):
    """The scales of a matrix's groups, flat, row by row."""

    def __init__(self, operand: Weight, form: GroupFormat, scale_dtype: npt.DTypeLike) -> None:
        super().__init__(operand, form, scale_dtype, (form.groups(operand.shape[1]),), scale_dtype)

    def _part(self, rows: Array) -> Array:
        return levels_of(rows, self.form, self.scale_dtype).scales


class ZeroPoints(_Part):
    """The zero points of a matrix's groups, uint8, flat: 4 bits packed by two within a row."""

    def __init__(self, operand: Weight, form: GroupFormat, scale_dtype: npt.DTypeLike) -> None:
        row = -(-form.groups(operand.shape[1]) * form.bits // 8)
        super().__init__(operand, form, scale_dtype, (row,), np.uint8)

    def _part(self, rows: Array) -> Array:
        return pack(levels_of(rows, self.form, self.scale_dtype).zeros, self.form.bits)


def turned(matrix: Weight) -> Weight:
    """A matrix transposed; of one that is a transpose, what it is made of."""
    if isinstance(matrix, Transposed) and matrix.perm == (1, 0):
        return matrix.operand
    return Transposed(matrix, (1, 0))
