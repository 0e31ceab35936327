"""Warnings about measurements that are too noisy for what they are to show."""

from __future__ import annotations

from collections.abc import Sequence

from sdort.benchmark.digits import digits
from sdort.benchmark.labels import case_label, contender_label
from sdort.benchmark.rows import Row
from sdort.benchmark.timing import LEAST
from sdort.tables import counted

WIDE = 0.1
"""A median is noisy if its 95 % interval reaches this share of it to either side, half of its width: twice the smallest
difference that people usually ask for, 5 %, could hide in it."""


def half_width(row: Row) -> float:
    """Half the width of the 95 % interval of a row's median, as a share of the median; 0 without an interval."""
    if row.median_ms is None or row.low_ms is None or row.high_ms is None:
        return 0.0
    return (row.high_ms - row.low_ms) / 2 / row.median_ms


def noise_warning(rows: Sequence[Row]) -> str | None:
    """The disturbances of a measurement or its uncertainty, and the remedy, in one sentence; None of a quiet one."""
    timed = [row for row in rows if row.median_ms is not None]
    # The steps of an ablation are measured apart: one disturbance of a kind is told.
    disturbances = {each.remedy: each.what for row in timed for each in row.disturbances}
    what, remedies = list(disturbances.values()), list(disturbances)
    repeat = next((row.repeat for row in timed if row.repeat), None)
    noisy = max(timed, key=half_width, default=None)
    if repeat is not None and repeat < LEAST:
        what.append(f"{counted(repeat, 'timed call')} cannot tell how far the median is off")
        remedies.append(f"take --repeat {LEAST} or more")
    elif noisy and half_width(noisy) > WIDE:
        what.append(_widest(noisy, timed))
        remedies.append(f"raise --repeat (now {repeat})")
    if not what:
        return None
    return f"noisy: {'; '.join(what)}: {' or '.join(remedies)}"


def _widest(row: Row, rows: Sequence[Row]) -> str:
    several = len({contender_label(other, rows) for other in rows}) > 1
    name = case_label(row, rows) + (f" of {contender_label(row, rows)}" if several else "")
    return f"the median of {name} may be from {digits(row.low_ms or 0)} to {digits(row.high_ms or 0)} ms"


def save_warnings(rows: Sequence[Row]) -> list[str]:
    """The reasons for which ``--compare`` cannot judge rows that are saved now, a sentence each."""
    warnings = []
    if failed := [row for row in rows if row.failed]:
        warnings.append(f"{len(failed)} of {len(rows)} rows failed their check and have no times to compare with")
    few = [row for row in rows if not row.failed and len(row.times_ms) < LEAST]
    if few:
        fewest = min(len(row.times_ms) for row in few)
        warnings.append(f"--compare needs --repeat {LEAST} or more, not {fewest}")
    noisy = [row for row in rows if half_width(row) > WIDE]
    if noisy:
        widest = max(map(half_width, noisy))
        warnings.append(
            f"{len(noisy)} of {len(rows)} medians are known to ±{100 * widest:.0f} % only: smaller changes hide in it"
        )
    if any("unknown" in row.device for row in rows):
        warnings.append("the device's name is not known, so that --compare cannot tell whether it is the same")
    return warnings
