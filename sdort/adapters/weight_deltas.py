"""The differences that adapters add to weights, computed in fp32.

Sources of the formulas: LoRA https://arxiv.org/abs/2106.09685, LoHa (FedPara) https://arxiv.org/abs/2108.06098, LoKr
and all as files have them: LyCORIS https://arxiv.org/abs/2309.14859; DoRA https://arxiv.org/abs/2402.09353.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from sdort.errors import BadModelError
from sdort.graph.float16 import convert
from sdort.graph.signature import Array, Factors
from sdort.graph.stored_values import StoredValues

Shape = tuple[int, ...]
_ALL = slice(None)
Rows = Callable[[slice], Array]
"""The rows of a matrix, computed from factors that are in memory; the array is the caller's."""


@dataclass(frozen=True)
class Factor:
    """A tensor of an adapter's file: of one axis at least, unless it is a scalar."""

    name: str
    stored: StoredValues

    @property
    def shape(self) -> Shape:
        return self.stored.shape

    @property
    def row_size(self) -> int:
        """Elements that lie under one index of the first axis."""
        return math.prod(self.shape[1:])

    def values(self) -> Array:
        """The values in fp32.

        Raises:
            BadModelError: the file cannot be read, or they are not all finite.
        """
        values = convert(self.stored.load(), np.float32)
        if not np.isfinite(values).all():
            raise BadModelError(
                f"the tensor {self.name!r} of {self.stored.path} has infinite values or NaN",
                hint="The training that made it failed, or the file is damaged: get another version of it.",
            )
        return values

    def integers(self) -> Array:
        """The values as int64, of a tensor of integers."""
        return self.stored.load().astype(np.int64)

    def matrix(self) -> Array:
        """The values as a matrix: what one row of the first axis has lies in one row."""
        return self.values().reshape(self.shape[0], self.row_size)


class Form(Protocol):
    """The form in which an adapter stores a difference."""

    @property
    def outputs(self) -> int:
        """Rows of the matrix of the difference: output channels."""

    @property
    def inputs(self) -> int:
        """Columns of that matrix: input channels times the kernel's size."""

    @property
    def rank(self) -> int | None:
        """The rank that ``alpha`` is divided by; None where the difference is stored whole."""

    @property
    def fits(self) -> bool:
        """Whether the shapes of the factors belong together."""

    def rows(self) -> Rows:
        """The matrix in fp32, [outputs, inputs]; its factors are read now."""


@dataclass(frozen=True)
class LowRank:
    """LoRA: ``up @ down``; with ``core``, a kernel between the two convolutions (Tucker)."""

    up: Factor
    down: Factor
    core: Factor | None = None

    @property
    def outputs(self) -> int:
        return self.up.shape[0]

    @property
    def inputs(self) -> int:
        return self.down.row_size * _kernel(self.core)

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    @property
    def fits(self) -> bool:
        ranks = self.core.shape[:2] if self.core else (self.rank, self.rank)
        return self.rank > 0 and (self.up.row_size, self.down.shape[0]) == ranks

    def rows(self) -> Rows:
        return _product(self.up.matrix(), self.down.matrix(), self.core)

    def factors(self) -> Factors:
        """The two matrices of which it is the product, in fp32."""
        up, down = self.up.matrix(), self.down.matrix()
        if self.core is None:
            return up, down
        kernels = self.core.values().reshape(self.core.shape[0], len(down), -1)
        return up, np.einsum("oik,ic->ock", kernels, down, optimize=True).reshape(len(kernels), -1)


@dataclass(frozen=True)
class Product:
    """One of LyCORIS's matrices of low rank: ``a @ b``; or of Tucker's form, where ``a`` is [rank, outputs]."""

    a: Factor
    b: Factor
    core: Factor | None = None

    @property
    def outputs(self) -> int:
        return self.a.row_size if self.core else self.a.shape[0]

    @property
    def inputs(self) -> int:
        return self.b.row_size * _kernel(self.core)

    @property
    def rank(self) -> int:
        return self.b.shape[0]

    @property
    def fits(self) -> bool:
        if self.core:
            return self.rank > 0 and self.core.shape[:2] == (self.a.shape[0], self.rank)
        return self.rank > 0 and self.a.row_size == self.rank

    def rows(self) -> Rows:
        return _product(self.a.matrix().T if self.core else self.a.matrix(), self.b.matrix(), self.core)


@dataclass(frozen=True)
class Hadamard:
    """LoHa: the product, element by element, of two matrices of low rank."""

    first: Product
    second: Product

    @property
    def outputs(self) -> int:
        return self.first.outputs

    @property
    def inputs(self) -> int:
        return self.first.inputs

    @property
    def rank(self) -> int:
        return self.first.rank

    @property
    def fits(self) -> bool:
        sizes = {(half.outputs, half.inputs) for half in (self.first, self.second)}
        return len(sizes) == 1 and self.first.fits and self.second.fits

    def rows(self) -> Rows:
        first, second = self.first.rows(), self.second.rows()
        return lambda rows: first(rows) * second(rows)


@dataclass(frozen=True)
class Kronecker:
    """LoKr: the Kronecker product of two matrices, each whole or of low rank."""

    first: Whole | Product
    second: Whole | Product

    @property
    def outputs(self) -> int:
        return self.first.outputs * self.second.outputs

    @property
    def inputs(self) -> int:
        return self.first.inputs * self.second.inputs

    @property
    def rank(self) -> int | None:
        # Both have the same one, if both are of low rank.
        return self.second.rank or self.first.rank

    @property
    def fits(self) -> bool:
        return self.first.fits and self.second.fits

    def rows(self) -> Rows:
        # A convolution's kernel is the inner part of the second one's columns, as it is of the weight's.
        first, second = self.first.rows()(_ALL), self.second.rows()(_ALL)

        def compute(rows: slice) -> Array:
            outer, inner = np.divmod(np.arange(self.outputs)[rows], self.second.outputs)
            product: Array = first[outer][:, :, None] * second[inner][:, None, :]
            return product.reshape(len(outer), -1)

        return compute


@dataclass(frozen=True)
class Whole:
    """The matrix itself: ``diff``, ``diff_b``, ``w_norm``, and what LoKr does not factorise."""

    values: Factor

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    @property
    def inputs(self) -> int:
        return self.values.row_size

    @property
    def rank(self) -> None:
        return None

    @property
    def fits(self) -> bool:
        return True

    def rows(self) -> Rows:
        values = self.values.matrix()
        return lambda rows: values[rows].copy()


@dataclass(frozen=True)
class Table:
    """The difference of an embedding table, which peft stores the other way round: ``(up @ down).T``."""

    product: LowRank

    @property
    def outputs(self) -> int:
        return self.product.inputs

    @property
    def inputs(self) -> int:
        return self.product.outputs

    @property
    def rank(self) -> int:
        return self.product.rank

    @property
    def fits(self) -> bool:
        return self.product.fits

    def rows(self) -> Rows:
        up, down = self.product.up.matrix(), self.product.down.matrix()
        return lambda rows: np.ascontiguousarray((up @ down[:, rows]).T)

    def factors(self) -> Factors:
        """The two matrices of which it is the product, in fp32."""
        up, down = self.product.factors()
        return down.T, up.T


@dataclass(frozen=True)
class Residual:
    """A difference and single numbers beside it: what LyCORIS's extraction leaves over of a low rank.

    ``bias_indices`` are [axes, numbers], ``bias_size`` the shape that they count in, that of the weight
    (``extract_diff`` of LyCORIS, ``network.py`` of stable-diffusion-webui, which scales both by ``alpha / rank``).
    """

    base: Form | None
    indices: Factor
    values: Factor
    size: Factor

    @cached_property
    def _shape(self) -> Shape:
        return tuple(int(side) for side in self.size.integers().reshape(-1))

    @property
    def outputs(self) -> int:
        return self._shape[0]

    @property
    def inputs(self) -> int:
        return math.prod(self._shape[1:])

    @property
    def rank(self) -> int | None:
        return self.base.rank if self.base else None

    @property
    def fits(self) -> bool:
        if len(self.size.shape) != 1 or not 2 <= self.size.shape[0] <= 5 or min(self._shape) < 1:
            return False
        if self.indices.shape != (len(self._shape), *self.values.shape):
            return False
        base = self.base
        return base is None or (base.fits and (base.outputs, base.inputs) == (self.outputs, self.inputs))

    def rows(self) -> Rows:
        indices, values = self.indices.integers(), self.values.values()
        if (indices < 0).any() or (indices >= np.array(self._shape)[:, None]).any():
            raise BadModelError(
                f"the tensor {self.indices.name!r} of {self.indices.stored.path} has places outside of its weight",
                hint="The file is damaged: get another version of it.",
            )
        places = np.ravel_multi_index(tuple(indices), self._shape)
        order = np.argsort(places, kind="stable")
        lines, columns = np.divmod(places[order], self.inputs)
        values, base = values[order], self.base.rows() if self.base else None

        def compute(rows: slice) -> Array:
            start, stop, _ = rows.indices(self.outputs)
            total = base(rows) if base else np.zeros((stop - start, self.inputs), np.float32)
            here = slice(*np.searchsorted(lines, (start, stop)))
            np.add.at(total, (lines[here] - start, columns[here]), values[here])
            return total

        return compute


@dataclass(frozen=True)
class Swapped:
    """A difference whose two halves of rows change places."""

    form: Form

    @property
    def outputs(self) -> int:
        return self.form.outputs

    @property
    def inputs(self) -> int:
        return self.form.inputs

    @property
    def rank(self) -> int | None:
        return self.form.rank

    @property
    def fits(self) -> bool:
        return self.form.fits

    def rows(self) -> Rows:
        inner, half = self.form.rows(), self.outputs // 2

        def compute(rows: slice) -> Array:
            start, stop, _ = rows.indices(self.outputs)
            lower = inner(slice(min(start, half) + half, min(stop, half) + half))
            upper = inner(slice(max(start, half) - half, max(stop, half) - half))
            return np.concatenate([lower, upper])

        return compute


class Difference(Protocol):
    """The difference that is added to a parameter."""

    @property
    def shape(self) -> Shape:
        """The parameter's."""

    @property
    def by_rows(self) -> bool:
        """Whether some rows of it can be computed without the others."""

    def rows(self) -> Callable[[int, Array], Array]:
        """A function as :meth:`Delta.rows` returns it."""

    def factors(self) -> Factors | None:
        """Two matrices whose product it is, as a matrix of the first axis and the others; None where it is none."""


@dataclass(frozen=True)
class Delta:
    """The difference that an adapter of scale 1 adds to a parameter of ``shape``."""

    shape: Shape
    form: Form
    factor: float = 1.0
    """``alpha / rank``, which the form is multiplied by."""
    first_row: int = 0
    """The first of the form's rows that are this parameter's: a fused matrix has those of several."""
    magnitude: Factor | None = None
    """DoRA: the norms of the changed weight, of each output channel, or of each input channel."""
    by_input: bool = False
    """Whether the magnitudes are those of input channels."""

    @property
    def needs_base(self) -> bool:
        """Whether it depends on the weight that it is added to."""
        return self.magnitude is not None

    def array(self, base: Array | None = None) -> Array:
        """The difference in fp32, of ``shape``.

        Args:
            base: the weight that it is for, in fp32; only DoRA needs it.

        Raises:
            BadModelError: the adapter's file cannot be read, or has values that are not finite.
            ValueError: there is no base, and it needs one.
        """
        if base is None:
            if self.needs_base:
                raise ValueError("a DoRA adapter's difference depends on the weight")
            base = np.empty(self.shape, np.float32)
        return self.rows()(0, base)

    def factors(self) -> Factors | None:
        """Two matrices [rows, rank] and [rank, columns] in fp32 whose product it is; None where it is none.

        Raises:
            BadModelError: as :meth:`array`.
        """
        if self.needs_base or not isinstance(self.form, (LowRank, Table)):
            return None
        left, right = self.form.factors()
        return left[self.first_row : self.first_row + self.shape[0]] * np.float32(self.factor), right

    @property
    def by_rows(self) -> bool:
        """Whether some rows of it can be computed without the others: DoRA's norms of input channels go over all."""
        return not self.by_input

    def rows(self) -> Callable[[int, Array], Array]:
        """The difference by rows of the parameter; its factors are read now.

        Returns:
            A function of the number of the first row, and of the rows of the weight itself from there on in fp32, to
            their difference, which is the caller's.

        Raises:
            BadModelError: as :meth:`array`.
        """
        matrix, factor = self.form.rows(), np.float32(self.factor)
        magnitudes = self.magnitude.values().reshape(-1) if self.magnitude else None

        def compute(start: int, base: Array) -> Array:
            rows = slice(self.first_row + start, self.first_row + start + len(base))
            delta = matrix(rows).reshape(base.shape)
            if factor != 1:
                delta *= factor
            if magnitudes is None:
                return delta
            norms = magnitudes if self.by_input else magnitudes[rows]
            return _decomposed(base, delta, norms, int(self.by_input)) - base

        return compute


def _product(outer: Array, inner: Array, core: Factor | None) -> Rows:
    """``outer @ inner``; with a core a convolution's weight of low rank (Tucker), as [outputs, inputs * kernel].

    Args:
        outer: [outputs, r_out]
        inner: [r_in, inputs]
        core: [r_out, r_in, *kernel]
    """
    if core is None:
        return lambda rows: outer[rows] @ inner
    kernels = core.matrix()

    def compute(rows: slice) -> Array:
        left = (outer[rows] @ kernels).reshape(-1, len(inner), _kernel(core))
        product: Array = np.matmul(inner.T, left)  # [outputs, inputs, kernel]
        return product.reshape(len(product), -1)

    return compute


def _decomposed(base: Array, delta: Array, magnitudes: Array, axis: int) -> Array:
    """``magnitudes * (base + delta) / |base + delta|``, with the norms of what lies under each index of ``axis``."""
    changed = base + delta
    others = tuple(other for other in range(changed.ndim) if other != axis)
    norms = np.sqrt(np.square(changed, dtype=np.float64).sum(axis=others))
    ratio = np.divide(magnitudes, norms, out=np.zeros_like(norms), where=norms > 0).astype(np.float32)
    changed *= ratio.reshape([-1 if other == axis else 1 for other in range(changed.ndim)])
    return changed


def _kernel(core: Factor | None) -> int:
    return math.prod(core.shape[2:]) if core else 1
