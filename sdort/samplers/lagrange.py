"""Lagrange's polynomials, through which multistep methods lay the outputs that they have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sdort.graph.signature import Array


def lagrange(places: Sequence[float], number: int, points: Array) -> Array:
    """The polynomial that is 1 at ``places[number]`` and 0 at the others, at ``points``."""
    value = np.ones_like(points)
    for other, place in enumerate(places):
        if other != number:
            value = value * ((points - place) / (places[number] - place))
    return value


def lagrange_times_exponential(places: Sequence[float], number: int, start: float, end: float) -> float:
    """The integral of the polynomial times the exponential function from ``start`` to ``end``."""
    roots = [place - places[number] for other, place in enumerate(places) if other != number]
    polynomial = np.polynomial.Polynomial.fromroots(roots) if roots else np.polynomial.Polynomial([1.0])
    # Integration by parts: the antiderivative is exp times p - p' + p'' - ...
    total, derivative, sign = np.polynomial.Polynomial([0.0]), polynomial, 1.0
    for _ in range(len(roots) + 1):
        total, derivative, sign = total + sign * derivative, derivative.deriv(), -sign
    at = [float(np.exp(point) * total(point - places[number])) for point in (start, end)]
    return (at[1] - at[0]) / float(polynomial(0.0))
