"""Errors for rows whose check failed."""

from __future__ import annotations

from collections.abc import Sequence

from sdort.benchmark.rows import Row
from sdort.errors import ParityError
from sdort.options.number_ranges import size_words

MOST_LISTED = 12
"""Failures that a message names one by one; the result has them all."""


def refuse_failed(rows: Sequence[Row]) -> None:
    """Raise if a row has no times.

    Raises:
        ParityError: which rows, and why.
    """
    failed = failures(rows)
    if failed:
        unlike = any(row.failed and (row.error is not None or row.psnr_db is not None) for row in rows)
        raise ParityError(
            f"{len(failed)} of {len(rows)} rows were not timed, because they failed:{listed(failed)}",
            hint="sdort verify PIPELINE --bisect tells where and why." if unlike else None,
        )


def failures(rows: Sequence[Row]) -> list[str]:
    """Each row that failed its check, in words: which one, and by how much."""
    return [
        f"{row.pipeline}, {row.component}, batch {row.batch_size}, {size_words((row.height, row.width))}, {row.dtype}: "
        f"{row.status}"
        for row in rows
        if row.failed
    ]


def listed(problems: Sequence[str]) -> str:
    """The first problems for a message, one a line."""
    left = len(problems) - MOST_LISTED
    lines = [*problems[:MOST_LISTED], *([f"and {left} more"] if left > 0 else [])]
    return "".join(f"\n  {line}" for line in lines)
