"""Clocks and statistics: medians and percentiles, two pipelines in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Values = np.ndarray[Any, np.dtype[np.float64]]
LEAST = 5
"""Timed calls that an interval needs: that of a median of fewer is no more than their range."""
RESAMPLES = 4000
CONFIDENCE = 95.0


@dataclass(frozen=True)
class Statistics:
    """Milliseconds of the timed calls; ``low`` and ``high`` hold the median with 95 %, None of too few calls."""

    median: float
    low: float | None
    high: float | None
    mean: float
    p90: float
    minimum: float
    repeat: int


@dataclass(frozen=True)
class Ratio:
    """Speedup over the baseline: the median over pairs of calls, and its 95 % interval, None of too few pairs."""

    median: float
    low: float | None
    high: float | None


def statistics(milliseconds: Sequence[float]) -> Statistics:
    """Summarize the timed calls of one row; the 90th percentile is interpolated."""
    values = np.asarray(milliseconds, np.float64)
    low, high = median_interval(values) or (None, None)
    return Statistics(
        median=float(np.median(values)),
        low=low,
        high=high,
        mean=float(values.mean()),
        p90=float(np.percentile(values, 90)),
        minimum=float(values.min()),
        repeat=len(values),
    )


def ratio(baseline: Sequence[float], candidate: Sequence[float]) -> Ratio:
    """Baseline over candidate, pair by pair: calls that followed each other saw the same machine."""
    pairs = np.asarray(baseline, np.float64) / np.asarray(candidate, np.float64)
    low, high = median_interval(pairs) or (None, None)
    return Ratio(float(np.median(pairs)), low, high)


def median_interval(values: Sequence[float] | Values) -> tuple[float, float] | None:
    """The 95 % interval of a median, None of fewer than :data:`LEAST` values. Seeded, as :func:`resampled_medians`."""
    if len(values) < LEAST:
        return None
    return interval(resampled_medians(values, np.random.default_rng(0)))


def resampled_medians(values: Sequence[float] | Values, rng: np.random.Generator) -> Values:
    """Medians of samples drawn with replacement: the percentile bootstrap.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """
    array = np.asarray(values, np.float64)
    return np.asarray(np.median(array[rng.integers(0, len(array), (RESAMPLES, len(array)))], axis=1))


def interval(resampled: Values) -> tuple[float, float]:
    """The bounds between which :data:`CONFIDENCE` percent of the values are."""
    low, high = np.percentile(resampled, [50 - CONFIDENCE / 2, 50 + CONFIDENCE / 2])
    return float(low), float(high)


def clock(call: Callable[[], object]) -> float:
    """Milliseconds that ``call`` takes."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def interleave(
    calls: Sequence[Callable[[], object]], repeat: int, advance: Callable[[float], None] = lambda _: None
) -> list[list[float]]:
    """Time every call ``repeat`` times, in turn, the order reversed each time.

    A machine that slows down or speeds up meanwhile does so for all of them alike, and none is always first.

    Returns:
        Milliseconds per call, in the order of ``calls``.
    """
    results: list[list[float]] = [[] for _ in calls]
    for turn in range(repeat):
        order = range(len(calls)) if turn % 2 == 0 else reversed(range(len(calls)))
        for index in order:
            results[index].append(clock(calls[index]))
            advance(1)
    return results
