"""Errors of a tensor against its reference, in fp64 and piece by piece: attention scores may take a GB."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sdort.model.pieces import split
from sdort.model.signature import Array


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
