"""Numbers in tables and sentences: as many digits as say something, at any size."""

from __future__ import annotations

import math


def digits(value: float) -> str:
    """Three significant digits, two below 1, and never less than that: ``1,234``, ``12.3``, ``1.16``, ``0.0034``.

    What is within one percent of 1 has three decimals: as a ratio, 0.996 is not 1.
    """
    if value >= 99.95:
        return f"{value:,.0f}"
    if 0.99 <= value <= 1.01:
        return f"{value:.3f}"
    if value >= 1:
        return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    return f"{value:.{1 - math.floor(math.log10(value))}f}" if value > 0 else "0"


def optional_digits(value: float | None) -> str:
    """:func:`digits`, or ``-`` where there is no number."""
    return "-" if value is None else digits(value)


def time_ratio(ratio: float, low: float | None, high: float | None) -> str:
    """A ratio of times with its 95 % interval: ``0.86 (0.83 to 0.89)``; ``no difference (0.95 to 1.08)`` if it holds 1.

    Without an interval, of few calls, the ratio alone.
    """
    if low is None or high is None:
        return digits(ratio)
    words = "no difference" if low <= 1 <= high else digits(ratio)
    return f"{words} ({digits(low)} to {digits(high)})"
