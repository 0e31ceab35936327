"""Errors as shares of their limits, in words."""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """A share of a limit, 1.0 being all of it: ``97 %``, and from ten on ``12 times``.

    What is within its limit says at most 100 %, what is not at least 101 %.
    """
    if not math.isfinite(share):
        return "no number"
    if 0 < share < 0.01:
        return "< 1 %"
    if share > 10:
        return f"{math.ceil(share)} times" if share < 1e6 else f"{share:.1e} times"
    return f"{math.floor(100 * share) if share <= 1 else math.ceil(100 * share)} %"


def of_the_limit(share: float) -> str:
    """The same for a sentence: ``97 % of the limit``, ``12 times the limit``."""
    words = percent(share)
    return f"{words} the limit" if words.endswith("times") else f"{words} of the limit"
