"""The one judge of an output: finite, of the reference's shape, not constant, and within a stated tolerance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sdort.model.error_measure import Errors, measure_errors
from sdort.model.signature import Array
from sdort.verification.limits import Tolerance


class Judgement(NamedTuple):
    """The verdict on one output."""

    errors: Errors | None
    """None where there is nothing to compare with, or the two cannot be compared."""
    problem: str | None
    """A predicate of the output, such as ``is constant``, or where ``errors`` are there those that are too large; None
    if the output may be trusted."""


def judge_output(value: Array, reference: Array | None, limit: Tolerance, against: str = "the reference") -> Judgement:
    """Judge an output.

    Args:
        reference: of the same output; None if there is none.
        limit: how far the two may be apart.
        against: the reference's name in messages.
    """
    unfit = _unfit(value, reference, against)
    if unfit or reference is None:
        return Judgement(None, unfit)
    errors = measure_errors(value, reference)
    return Judgement(errors, _beyond(errors, limit))


def _unfit(value: Array, reference: Array | None, against: str) -> str | None:
    """The reason why an output cannot be right whatever the tolerance, or cannot be compared."""
    if reference is not None and value.shape != reference.shape:
        return f"has the shape {value.shape}, {against} {reference.shape}"
    if reference is not None and not np.isfinite(reference).all():
        return f"cannot be compared: {against} itself gives NaN or infinite values"
    if not np.isfinite(value).all():
        return f"has NaN or infinite values ({100 * np.mean(~np.isfinite(value)):.0f} % of it)"
    if _is_constant(value) and (reference is None or not _is_constant(reference)):
        return "is constant"
    return None


def _is_constant(value: Array) -> bool:
    """Whether all of several elements are one."""
    return bool(value.size > 1 and value.min() == value.max())


def _beyond(errors: Errors, limit: Tolerance) -> str | None:
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
