"""The change of a weight whose parameters change by products of two small matrices: a product again.

Expressions move, scale and sum values. As long as they keep what comes from the rows of a parameter apart from what
comes from its columns, each factor goes through them alone, and the large product need not be there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sdort.graph.float16 import convert
from sdort.graph.signature import Array, Factors
from sdort.graph.weights import Absent, Cast, Combined, Concatenated, Reshaped, Scaled, Transposed, Weight


def parameter_values(weight: Weight, values: Array) -> Iterator[tuple[str, Array]]:
    """Each parameter of an expression with its values in fp32, as far as ``values`` still have them.

    What a cast rounded stays rounded, so that the weight computed from them again is ``values``. Of a
    :class:`sdort.graph.weights.Combined`, whose sums were rounded each, the parameters are those whose sums come
    nearest to ``values`` (least squares).

    Args:
        weight: an expression over :class:`sdort.graph.weights.Absent`.
        values: of the weight.

    Raises:
        ValueError: a part of the expression is no parameter.
    """
    match weight:
        case Absent():
            yield weight.name, convert(values, np.float32)
        case Transposed():
            yield from parameter_values(weight.operand, values.transpose(np.argsort(weight.perm)))
        case Reshaped():
            yield from parameter_values(weight.operand, values.reshape(weight.operand.shape))
        case Cast():
            yield from parameter_values(weight.operand, convert(values, np.float32))
        case Scaled():
            yield from parameter_values(weight.operand, convert(values, np.float32) / np.float32(weight.factor))
        case Combined():
            inverse = np.linalg.pinv(np.array(weight.matrix))
            solved = np.tensordot(inverse, convert(values, np.float64), (1, weight.axis))
            yield from parameter_values(weight.operand, np.moveaxis(solved, 0, weight.axis))
        case Concatenated():
            starts = np.cumsum([part.shape[weight.axis] for part in weight.parts])[:-1]
            for part, part_values in zip(weight.parts, np.split(values, starts, axis=weight.axis), strict=True):
                yield from parameter_values(part, part_values)
        case _:
            raise ValueError(f"{weight} is no parameter")


ROWS, COLUMNS = 0, 1
_MOST_COPIES = 16
"""Copies of a factor, beside zeros, by which axes may come to the other one's side: an upsampler's phases are four."""


@dataclass(frozen=True)
class _Product:
    """A tensor as the sum over ranks of products of two smaller tensors.

    Attributes:
        sides: of each axis of the tensor, which of the two has it.
        parts: the two, [rank, *axes that are its own, in the tensor's order].
    """

    sides: tuple[int, ...]
    parts: tuple[Array, Array]

    @property
    def shape(self) -> tuple[int, ...]:
        own = [iter(part.shape[1:]) for part in self.parts]
        return tuple(next(own[side]) for side in self.sides)

    @property
    def rank(self) -> int:
        return len(self.parts[0])

    def place(self, axis: int) -> tuple[int, int]:
        """Which part has an axis of the tensor, and where."""
        side = self.sides[axis]
        return side, 1 + self.sides[:axis].count(side)

    def with_part(self, side: int, part: Array) -> _Product:
        parts = (part, self.parts[1]) if side == ROWS else (self.parts[0], part)
        return replace(self, parts=parts)


class _ManyFactorsError(Exception):
    """A weight is no product of two matrices."""


def added_factors(weight: Weight, changes: Mapping[str, Sequence[Factors]]) -> Factors | None:
    """The factors of what is added to a weight, a matrix of its elements in their order; None where it is no product.

    Args:
        weight: an expression over :class:`sdort.graph.weights.Absent`.
        changes: parameter -> what is added to it, each seen as a matrix of its first axis and the others.

    Raises:
        ValueError: factors are of another shape than their parameter.
    """
    try:
        product = _added(weight, changes)
        return _matrices(product) if product else None
    except _ManyFactorsError:
        return None


def _matrices(product: _Product) -> Factors:
    """The factors as matrices: of the axes up to one and of those behind it."""
    axes = range(len(product.sides))
    ways = [[side] * end + [1 - side] * (len(axes) - end) for end in range(len(axes) + 1) for side in (ROWS, COLUMNS)]
    sides = min(ways, key=lambda way: _copies(product, axes, way))
    product = _arranged(product, axes, sides)
    left, right = (part.reshape(product.rank, -1) for part in (product.parts[sides[0]], product.parts[1 - sides[0]]))
    return np.ascontiguousarray(left.T), np.ascontiguousarray(right)  # here, where other threads do so too


def _copies(product: _Product, axes: Iterable[int], sides: Iterable[int]) -> int:
    """Copies of factors for which axes come to these sides."""
    return math.prod(product.shape[axis] for axis, side in zip(axes, sides, strict=True) if product.sides[axis] != side)


def _arranged(product: _Product, axes: Sequence[int], sides: Sequence[int]) -> _Product:
    """The same with axes on these sides.

    Raises:
        _ManyFactorsError: it would be too large.
    """
    if _copies(product, axes, sides) > _MOST_COPIES:
        raise _ManyFactorsError
    for axis, side in zip(axes, sides, strict=True):
        product = product if product.sides[axis] == side else _moved(product, axis)
    return product


def _moved(product: _Product, axis: int) -> _Product:
    """The same with an axis in the other part, which has a copy of itself for each index of it."""
    side, index = product.place(axis)
    own, other = product.parts[side], product.parts[1 - side]
    size, rank = own.shape[index], product.rank
    place = 1 + product.sides[:axis].count(1 - side)
    grown = np.zeros((size, rank, *other.shape[1:place], size, *other.shape[place:]), np.float32)
    for number in range(size):
        np.moveaxis(grown[number], place, 0)[number] = other
    left = np.moveaxis(own, index, 0)
    parts = [left.reshape(-1, *left.shape[2:]), grown.reshape(-1, *grown.shape[2:])]
    sides = (*product.sides[:axis], 1 - side, *product.sides[axis + 1 :])
    return _Product(sides, (parts[0], parts[1]) if side == ROWS else (parts[1], parts[0]))


def _added(weight: Weight, changes: Mapping[str, Sequence[Factors]]) -> _Product | None:
    """The change of a weight; None where there is none."""
    match weight:
        case Absent():
            return _of_parameter(weight, changes.get(weight.name, ()))
        case Concatenated():
            return _concatenated(weight, [_added(part, changes) for part in weight.parts])
    (operand,) = weight.operands
    product = _added(operand, changes)
    if product is None:
        return None
    match weight:
        case Cast():
            return product
        case Scaled():
            return product.with_part(ROWS, product.parts[ROWS] * np.float32(weight.factor))
        case Transposed():
            return _transposed(product, weight.perm)
        case Reshaped():
            return _reshaped(product, weight.shape)
        case Combined():
            return _combined(product, weight)
    raise _ManyFactorsError


def _of_parameter(weight: Absent, changes: Sequence[Factors]) -> _Product | None:
    if not changes:
        return None
    rows, columns = weight.shape[0], math.prod(weight.shape[1:])
    if any((len(left), right.shape[1]) != (rows, columns) for left, right in changes):
        raise ValueError(f"a difference of another shape than {weight.name!r}, {weight.shape}")
    left = np.concatenate([left.T for left, _ in changes])
    right = np.concatenate([right for _, right in changes])
    sides = (ROWS, *[COLUMNS] * (len(weight.shape) - 1))
    return _Product(sides, (left, right.reshape(-1, *weight.shape[1:])))


def _transposed(product: _Product, perm: Sequence[int]) -> _Product:
    places = [product.place(axis) for axis in perm]
    parts = (
        product.parts[side].transpose(0, *(index for own, index in places if own == side)) for side in (ROWS, COLUMNS)
    )
    return _Product(tuple(side for side, _ in places), (next(parts), next(parts)))


def _reshaped(product: _Product, shape: Sequence[int]) -> _Product:
    sides: list[int] = []
    sizes: tuple[list[int], list[int]] = ([], [])
    for old, new in _matched(product.shape, shape):
        copies = [_copies(product, old, [side] * len(old)) for side in (ROWS, COLUMNS)]
        side = copies.index(min(copies))
        product = _arranged(product, old, [side] * len(old))
        sides += [side] * len(new)
        sizes[side].extend(new)
    parts = (part.reshape(len(part), *own) for part, own in zip(product.parts, sizes, strict=True))
    return _Product(tuple(sides), (next(parts), next(parts)))


def _matched(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The smallest groups of neighbours with the same number of elements: axes of the old shape, sizes of the new."""
    axis = place = 0
    while axis < len(old) or place < len(new):
        axes: list[int] = []
        sizes: list[int] = []
        before = after = 1
        while not (axes or sizes) or before != after:
            if place >= len(new) or (axis < len(old) and before <= after):
                before *= old[axis]
                axes.append(axis)
                axis += 1
            else:
                after *= new[place]
                sizes.append(new[place])
                place += 1
        yield axes, sizes


def _combined(product: _Product, weight: Combined) -> _Product:
    side, index = product.place(weight.axis)
    part = np.tensordot(np.array(weight.matrix), product.parts[side].astype(np.float64), (1, index))
    return product.with_part(side, np.moveaxis(part, 0, index).astype(np.float32))


def _concatenated(weight: Concatenated, products: Sequence[_Product | None]) -> _Product | None:
    """The parts' ranks one after the other: along the axis each has its own place, and zeros are elsewhere."""
    known = [product for product in products if product]
    if not known:
        return None
    if len({product.sides for product in known}) > 1:
        raise _ManyFactorsError
    along, index = known[0].place(weight.axis)
    placed = np.zeros((sum(product.rank for product in known), *_grown(known[0], along, index, weight)), np.float32)
    start = rank = 0
    for part, product in zip(weight.parts, products, strict=True):
        stop = start + part.shape[weight.axis]
        if product:
            values = np.moveaxis(product.parts[along], index, 1)
            np.moveaxis(placed, index, 1)[rank : rank + product.rank, start:stop] = values
            rank += product.rank
        start = stop
    others = np.concatenate([product.parts[1 - along] for product in known])
    return _Product(known[0].sides, (placed, others) if along == ROWS else (others, placed))


def _grown(product: _Product, side: int, index: int, weight: Concatenated) -> tuple[int, ...]:
    """The axes of a part, of the concatenated weight."""
    sizes = list(product.parts[side].shape[1:])
    sizes[index - 1] = weight.shape[weight.axis]
    return tuple(sizes)
