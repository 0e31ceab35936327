"""The one judge of an output: finite, of the reference's shape, not constant, and within a stated tolerance.

Errors are measured in fp64 and piece by piece: attention scores may take a GB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from sdort.graph.pieces import split
from sdort.graph.signature import Array


class Limit(Protocol):
    """The largest error, the mean error and the smallest cosine that are allowed, as :class:`Errors` has them."""

    @property
    def largest(self) -> float: ...
    @property
    def mean(self) -> float: ...
    @property
    def cosine(self) -> float: ...


@dataclass(frozen=True)
class Errors:
    """Differences of a tensor from its reference.

    Attributes:
        largest, mean: of the absolute differences.
        cosine: of the angle between the two as vectors; 1 if they are equal, zeros too.
        largest_share, mean_share: ``largest`` and ``mean`` over the :func:`standard_deviation` of the reference.
        largest_relative: the largest of difference / (standard deviation + magnitude of the reference's element).
            Rounding errors follow the magnitude.
    """

    largest: float
    mean: float
    cosine: float
    largest_share: float
    mean_share: float
    largest_relative: float


class Judgement(NamedTuple):
    """The verdict on one output."""

    errors: Errors | None
    """None where there is nothing to compare with, or the two cannot be compared."""
    problem: str | None
    """A predicate of the output, such as ``is constant``, or where ``errors`` are there those that are too large; None
    if the output may be trusted."""


def limit_share(errors: Errors, limit: Limit) -> float:
    """The error that uses most of its limit, as a multiple of that limit; NaN where an error is."""
    turned = (1 - errors.cosine) / (1 - limit.cosine)
    return float(np.max([errors.largest_share / limit.largest, errors.mean_share / limit.mean, turned]))


def judge_output(value: Array, reference: Array | None, limit: Limit, against: str = "the reference") -> Judgement:
    """Judge an output.

    Args:
        reference: of the same output; None if there is none.
        limit: how far the two may be apart.
        against: the reference's name in messages.
    """
    problem = unfit(value, reference, against)
    if problem or reference is None:
        return Judgement(None, problem)
    errors = measure_errors(value, reference)
    return Judgement(errors, _beyond(errors, limit))


def judge_outputs(
    outputs: Mapping[str, Array], reference: Mapping[str, Array] | None, limit: Limit, against: str = "the reference"
) -> dict[str, Judgement]:
    """Judge all outputs of a component, each by :func:`judge_output`; those that the reference lacks without one.

    Args:
        reference: outputs by name, see :func:`pair_outputs`; None if there is none.
    """
    wanted = {name: expected for name, _, expected in pair_outputs(outputs, reference or {})}
    return {name: judge_output(value, wanted.get(name), limit, against) for name, value in outputs.items()}


def unfit(value: Array, reference: Array | None, against: str = "the reference") -> str | None:
    """The reason why an output cannot be right whatever the tolerance, or cannot be compared."""
    if reference is not None and value.shape != reference.shape:
        return f"has the shape {value.shape}, {against} {reference.shape}"
    if reference is not None and not np.isfinite(reference).all():
        return f"cannot be compared: {against} itself gives NaN or infinite values"
    if not value.size:
        return "has no elements"
    if not np.isfinite(value).all():
        return f"has NaN or infinite values ({100 * np.mean(~np.isfinite(value)):.0f} % of it)"
    # Flags of no reference may be all alike.
    if _is_constant(value) and (value.dtype.kind == "f" if reference is None else not _is_constant(reference)):
        return "is constant"
    return None


def _is_constant(value: Array) -> bool:
    """Whether all of several elements are one."""
    return bool(value.size > 1 and value.min() == value.max())


def _beyond(errors: Errors, limit: Limit) -> str | None:
    """The errors that are larger than allowed."""
    reasons = [
        f"{name} {actual:.1e} of the standard deviation, {allowed:.1e} allowed"
        for name, actual, allowed in (
            ("largest error", errors.largest_share, limit.largest),
            ("mean error", errors.mean_share, limit.mean),
        )
        if actual > allowed
    ]
    if errors.cosine < limit.cosine:
        reasons.append(f"1 - cosine {1 - errors.cosine:.1e}, {1 - limit.cosine:.1e} allowed")
    return "; ".join(reasons) or None


def pair_outputs(outputs: Mapping[str, Array], reference: Mapping[str, Array]) -> Iterator[tuple[str, Array, Array]]:
    """By name, or by order where the two share no name. Torch gives outputs that an export may leave out."""
    common = [name for name in outputs if name in reference]
    if common:
        yield from ((name, outputs[name], reference[name]) for name in common)
    else:
        yield from ((name, value, expected) for (name, value), expected in zip(outputs.items(), reference.values()))  # noqa: B905


def measure_errors(value: Array, reference: Array, limit: float = math.inf) -> Errors:
    """Errors of ``value`` against ``reference``, which are finite where ``limit`` is infinite.

    Args:
        limit: elements of both are clipped to this magnitude first.

    Raises:
        ValueError: the shapes differ, or there are no elements.
    """
    if value.shape != reference.shape or not value.size:
        raise ValueError(f"no errors of {value.shape} against {reference.shape}")
    scale = standard_deviation(reference, limit)
    largest = relative = total = product = value_square = reference_square = 0.0
    for actual, expected in zip(_pieces(value, limit), _pieces(reference, limit), strict=True):
        difference = np.abs(actual - expected)
        largest = max(largest, float(difference.max()))
        relative = max(relative, float((difference / (scale + np.abs(expected))).max()))
        total += float(difference.sum())
        product += float(actual @ expected)
        value_square += float(actual @ actual)
        reference_square += float(expected @ expected)
    mean, length = total / value.size, math.sqrt(value_square) * math.sqrt(reference_square)
    cosine = 1.0 if largest == 0 else product / length if length else 0.0
    return Errors(largest, mean, cosine, largest / scale, mean / scale, relative)


def standard_deviation(values: Array, limit: float = math.inf) -> float:
    """Standard deviation of the values clipped to ``limit``; of a constant its magnitude, of zeros 1."""
    ends = [(float(piece.min()), float(piece.max())) for piece in _pieces(values, limit)]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if low == high:
        return abs(low) or 1.0
    mean = sum(float(piece.sum()) for piece in _pieces(values, limit)) / values.size
    return math.sqrt(sum(float(((piece - mean) ** 2).sum()) for piece in _pieces(values, limit)) / values.size)


def magnitude(values: Array) -> float:
    """Largest absolute value; 0 if there are no elements."""
    return max((float(np.abs(piece).max()) for piece in _pieces(values, math.inf)), default=0.0)


def _pieces(values: Array, limit: float) -> Iterator[Array]:
    pieces = (piece.astype(np.float64) for piece in split(values))
    return pieces if limit == math.inf else (np.clip(piece, -limit, limit) for piece in pieces)
