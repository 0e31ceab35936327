"""Errors as shares of their limits, in words."""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """A share of a limit, 1.0 being all of it: ``97 %``.

    What is within its limit says at most 100 %, what is not at least 101 %.
    """
    if not math.isfinite(share):
        return "no number"
    if 0 < share < 0.01:
        return "< 1 %"
    value = 100 * share
    return f"{math.floor(value) if share <= 1 else math.ceil(value)} %" if share < 100 else f"{value:.1e} %"
