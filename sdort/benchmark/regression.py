"""Comparison of a benchmark with a saved one, with the noise of both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np

from sdort.benchmark.digits import digits, optional_digits
from sdort.benchmark.labels import case_label, contender_label
from sdort.benchmark.row_table import as_markdown
from sdort.benchmark.rows import Compared, Row
from sdort.benchmark.timing import LEAST, interval, resampled_medians
from sdort.checkpoints.configs import read_config
from sdort.checkpoints.json_schema import (
    NULL,
    any_text,
    list_of,
    mapping_to,
    number,
    one_of,
    positive,
    record,
    shortened,
    whole,
)
from sdort.console import to_json
from sdort.errors import BadModelError, RegressionError, UsageError
from sdort.tables import Table, counted

FORMAT_KEY = "sdort_bench"
FORMAT_VERSION = 1
UNSURE = "the noise allows no other verdict; more --repeat might"
SLOWER, FASTER, SAME, NOT_COMPARABLE = "slower", "faster", "same", "not comparable"
NOISY = "too noisy"
"""The words for a row that is the same because its noise allows no other verdict."""
_VERDICTS = (SLOWER, FASTER, NOT_COMPARABLE, NOISY, SAME)


def as_saved(rows: Sequence[Row]) -> str:
    """The text of a file that :func:`load_rows` reads."""
    return json.dumps(to_json({FORMAT_KEY: FORMAT_VERSION, "rows": rows}), indent=1) + "\n"


def load_rows(path: Path) -> list[Row]:
    """The rows of a saved benchmark.

    Raises:
        UsageError: it is none.
    """
    hint = "Make one with: sdort bench ... --save FILE"
    try:
        content = read_config(path, hint=hint, limit=_MOST_BYTES)
    except BadModelError as error:
        raise UsageError(error.message, hint=error.hint) from error
    if content.get(FORMAT_KEY, FORMAT_VERSION) != FORMAT_VERSION:
        raise UsageError(
            f"{path} was saved in format {shortened(content[FORMAT_KEY])}, not {FORMAT_VERSION}", hint="Save it again."
        )
    if problem := _SCHEMA.problem(content, ""):
        raise UsageError(f"{path} is no saved benchmark: {problem}", hint=hint)
    return [_row(saved) for saved in content["rows"]]


_NOT_READ = {"placement", "compared", "times_ms", "stages", "disturbances", "psnr_db", "lowest_psnr_db"}


def _row(saved: Mapping[str, Any]) -> Row:
    known = {column.name for column in fields(Row)} - _NOT_READ
    row = Row(**{name: value for name, value in saved.items() if name in known})
    row.times_ms = [float(value) for value in saved["times_ms"]]
    return row


_MOST_BYTES = 64 << 20  # each of 10^6 timed calls takes some 20 bytes
_NUMBER_OF = whole(0, 10**9)
_MEASURE = NULL | number(-1e15, 1e15) | one_of("inf", "-inf")
_KINDS = {
    "str": any_text(100_000),
    "int": _NUMBER_OF,
    "int | None": NULL | _NUMBER_OF,
    "float | None": _MEASURE,
    "dict[str, str]": mapping_to(any_text(1000), 100),
}
"""Types that a field of a row may have, by its annotation."""
_ROW = record(
    {column.name: _KINDS[str(column.type)] for column in fields(Row) if column.name not in _NOT_READ}
    | {"times_ms": list_of(positive(1e12), 0, 10**6)},
    (
        *(column.name for column in fields(Row) if column.default is MISSING and column.default_factory is MISSING),
        "times_ms",
    ),
)
_SCHEMA = record({"rows": list_of(_ROW, 0, 100_000)}, (FORMAT_KEY, "rows"))


def compare_with_saved(rows: Sequence[Row], saved: Sequence[Row], margin: float, across: Collection[str] = ()) -> None:
    """Give every row its :class:`Compared`.

    Args:
        margin: the share by which times may differ, such as 0.1, before it counts.
        across: those of ``device``, ``versions`` and ``model`` that may differ.
    """
    before = dict(_keyed(saved))
    for key, row in _keyed(rows):
        row.compared = compare_rows(before.get(key), row, margin, across)


def _keyed(rows: Sequence[Row]) -> Iterator[tuple[tuple[Any, ...], Row]]:
    """Rows by what they measure, an ablation's step too, the last first: a baseline, which one of them may lack, comes
    before the pipeline itself."""
    seen: Counter[tuple[Any, ...]] = Counter()
    for row in reversed(rows):
        key = (row.step, row.engine, row.component, row.batch_size, row.height, row.width, row.steps)
        yield (*key, seen[key]), row
        seen[key] += 1


def compare_rows(before: Row | None, now: Row, margin: float, across: Collection[str] = ()) -> Compared:
    """Compare one row; arguments as for :func:`compare_with_saved`."""
    if before is None:
        return Compared(NOT_COMPARABLE, reason="it was not measured then")
    problem = _obstacle(before, now, across)
    if problem:
        return Compared(NOT_COMPARABLE, before_ms=before.median_ms, reason=problem)
    ratio, low, high = ratio_interval(before.times_ms, now.times_ms)
    most = 1 + margin
    if low > most:
        return Compared(SLOWER, ratio, low, high, before.median_ms, f"by more than {100 * margin:.0f} %")
    if high < 1 / most:
        return Compared(FASTER, ratio, low, high, before.median_ms, f"by more than {100 * margin:.0f} %")
    sure = 1 / most <= low and high <= most
    reason = f"within {100 * margin:.0f} %" if sure else UNSURE
    return Compared(SAME, ratio, low, high, before.median_ms, reason)


def _obstacle(before: Row, now: Row, across: Collection[str]) -> str:
    """The reasons that forbid to compare two rows; empty if there are none."""
    if before.failed or now.failed:
        return f"its check failed {'now' if now.failed else 'then'}"
    differences = []
    if "device" not in across and (before.device, before.provider) != (now.device, now.provider):
        differences.append(f"device: {before.device} ({before.provider}) then, {now.device} ({now.provider}) now")
    if before.engine_settings != now.engine_settings:
        then, here = (row.engine_settings or "other settings" for row in (before, now))
        differences.append(f"{now.engine}: {then} then, {here} now")
    if "versions" not in across and before.versions != now.versions:
        differences.append(f"versions: {_changed(before.versions, now.versions)}")
    if "model" not in across and (before.model_hash, before.dtype) != (now.model_hash, now.dtype):
        differences.append(f"model: {before.dtype} {before.model_hash[:8]} then, {now.dtype} {now.model_hash[:8]} now")
    fewest = min(len(before.times_ms), len(now.times_ms))
    if fewest < LEAST:
        differences.append(f"{counted(fewest, 'timed call')}, and {LEAST} are needed")
    return "; ".join(differences)


def _changed(before: dict[str, str], now: dict[str, str]) -> str:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(f"{name} {before.get(name, 'absent')} then, {now.get(name, 'absent')} now" for name in names)


def ratio_interval(before: Sequence[float], now: Sequence[float]) -> tuple[float, float, float]:
    """The ratio of the medians, now over before, and its 95 % interval.

    Seeded: the same times give the same verdict. It knows the noise within the two runs; what else changes from run to
    run is what the margin is for.
    """
    rng = np.random.default_rng(0)
    medians = [resampled_medians(times, rng) for times in (now, before)]
    return float(np.median(now) / np.median(before)), *interval(medians[0] / medians[1])


def refuse_slower(rows: Sequence[Row]) -> None:
    """Raise if a row is slower than the saved one.

    Raises:
        RegressionError: which ones, and by how much.
    """
    slower = [(row, row.compared) for row in rows if row.compared and row.compared.verdict == SLOWER]
    if slower:
        words = [f"{_what(row, rows)} takes {digits(each.ratio or 0)} times as long" for row, each in slower]
        raise RegressionError(f"slower than the saved benchmark: {'; '.join(words)}")


def refuse_unjudged(rows: Sequence[Row]) -> None:
    """Raise if rows were to be compared, and none could be.

    Raises:
        UsageError: what stands in the way, and what to change.
    """
    compared = [row for row in rows if row.compared]
    if compared and not judged(rows):
        raise UsageError(
            f"no row could be compared with the saved benchmark:{_obstacles(rows)}",
            hint="Measure what was saved, save it again with --save, or compare although something differs, "
            "with --across device, --across versions or --across model.",
        )


def judged(rows: Sequence[Row]) -> list[Row]:
    """The rows that could be compared."""
    return [row for row in rows if row.compared and row.compared.verdict != NOT_COMPARABLE]


def _obstacles(rows: Sequence[Row]) -> str:
    """The reasons that forbade to compare rows, a line each with the number of rows."""
    reasons = Counter(row.compared.reason for row in rows if row.compared and row.compared.verdict == NOT_COMPARABLE)
    return "".join(f"\n  {reason} ({counted(number, 'row')})" for reason, number in reasons.items())


def comparison_conclusion(rows: Sequence[Row]) -> str:
    """The numbers of rows that are slower, faster and the same as the saved ones; of those not compared the reasons."""
    verdicts = Counter(_verdict(row.compared) for row in rows if row.compared)
    parts = [f"{verdicts[verdict]} {verdict}" for verdict in _VERDICTS if verdicts[verdict]]
    text = f"Against the saved benchmark, {counted(sum(verdicts.values()), 'row')}: {', '.join(parts)}"
    return text + (_obstacles(rows) if judged(rows) else "")


def _what(row: Row, rows: Sequence[Row]) -> str:
    """A row's step, case and contender, without what all rows share."""
    several = len({contender_label(other, rows) for other in rows}) > 1 and not row.step
    what = case_label(row, rows) + (f" of {contender_label(row, rows)}" if several else "")
    return f"{row.step}: {what}" if row.step else what


TITLES = ("what", "then ms", "now ms", "time ratio", "95 % interval", "verdict", "why")
LEFT = ("what", "verdict", "why")
"""Titles of the columns that hold words."""


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """The comparison's cells."""
    return [
        [
            _what(row, rows),
            optional_digits(comparison.before_ms),
            optional_digits(row.median_ms),
            *_ratio(comparison),
            _verdict(comparison),
            comparison.reason,
        ]
        for row in rows
        if (comparison := row.compared)
    ]


def _verdict(comparison: Compared) -> str:
    return NOISY if comparison.reason == UNSURE else comparison.verdict


def _ratio(comparison: Compared) -> tuple[str, str]:
    if comparison.ratio is None or comparison.low is None or comparison.high is None:
        return "-", "-"
    return digits(comparison.ratio), f"{digits(comparison.low)} to {digits(comparison.high)}"


def comparison_markdown(rows: Sequence[Row]) -> str:
    """The comparison as a Markdown table."""
    return as_markdown(TITLES, lines(rows))


def comparison_table(rows: Sequence[Row]) -> Table:
    """The comparison for a terminal."""
    headers = ["what", ">then ms", ">now ms", ">time ratio", "95 % interval", "verdict", "why"]
    table = Table("Against the saved benchmark (time ratio: now over then)", headers, details=["why"])
    for line in lines(rows):
        table.add_row(*line)
    return table
