"""Clocks and statistics: medians and percentiles, two pipelines in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Statistics:
    """Milliseconds of the timed calls."""

    median: float
    mean: float
    p90: float
    minimum: float
    repeat: int


@dataclass(frozen=True)
class Ratio:
    """Speedup over the baseline: the median over pairs of calls, and their 10th and 90th percentile."""

    median: float
    low: float
    high: float


def statistics(milliseconds: Sequence[float]) -> Statistics:
    """Summarize the timed calls of one row; the 90th percentile is interpolated."""
    values = np.asarray(milliseconds, np.float64)
    return Statistics(
        median=float(np.median(values)),
        mean=float(values.mean()),
        p90=float(np.percentile(values, 90)),
        minimum=float(values.min()),
        repeat=len(values),
    )


def ratio(baseline: Sequence[float], candidate: Sequence[float]) -> Ratio:
    """Baseline over candidate, pair by pair: calls that followed each other saw the same machine."""
    pairs = np.asarray(baseline, np.float64) / np.asarray(candidate, np.float64)
    low, middle, high = np.percentile(pairs, [10, 50, 90])
    return Ratio(float(middle), float(low), float(high))


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
