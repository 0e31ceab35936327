"""The rows as a table for terminals, and as CSV, JSON and Markdown with everything."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence

from sdort.benchmark.digits import optional_digits, time_ratio
from sdort.benchmark.labels import case_label, contender_label, dtype_text
from sdort.benchmark.rows import Row
from sdort.console import to_json
from sdort.errors.plain_text import one_line
from sdort.options.number_ranges import size_words
from sdort.providers import PROVIDERS
from sdort.tables import Table, counted
from sdort.verification.report import html

_NO_COLUMN = ("placement", "times_ms", "compared", "stages", "disturbances", "step")
"""Fields that a CSV has no column for, or another one."""

_FULL: list[tuple[str, Callable[[Row], str]]] = [
    ("pipeline", lambda row: f"{row.pipeline} {row.model_hash[:8]}"),
    ("engine", lambda row: f"{row.engine} {row.provider} {dtype_text(row.dtype)}"),
    ("component", lambda row: row.component),
    ("batch", lambda row: str(row.batch_size)),
    ("size", lambda row: size_words((row.height, row.width))),
    ("median ms", lambda row: optional_digits(row.median_ms)),
    ("mean", lambda row: optional_digits(row.mean_ms)),
    ("p90", lambda row: optional_digits(row.p90_ms)),
    ("min", lambda row: optional_digits(row.min_ms)),
    ("first", lambda row: optional_digits(row.first_ms)),
    ("prepare", lambda row: optional_digits(row.prepare_ms)),
    ("images/s", lambda row: optional_digits(row.images_per_s)),
    ("host MiB", lambda row: _pair(row.host_first_mib, row.host_later_mib)),
    ("device MiB", lambda row: _pair(row.device_first_mib, row.device_later_mib)),
    ("time ratio", lambda row: ratio_text(row)),
    ("output", lambda row: row.parity()),
]

LEFT = ("pipeline", "engine", "component", "output")
"""Titles of the columns that hold words."""

_DETAILS = (
    "mean",
    "p90",
    "min",
    "first",
    "prepare",
    "images/s",
    "host MiB",
    "device MiB",
    "model and engine",
    "compared",
)


def _pair(first: float | None, later: float | None) -> str:
    return "n/a" if first is None else f"{first:,.0f} / {'-' if later is None else f'{later:,.0f}'}"


def ratio_text(row: Row) -> str:
    """A row's time over the baseline's; empty without one."""
    return time_ratio(*row.ratio) if row.ratio else ""


def as_table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal: what, in which pipeline or engine, how long, against the baseline, whether right."""
    title = f"Time of one call on {rows[0].provider}, median" if rows else ""
    titles, lines = short_cells(rows)
    headers = [f">{name}" if name == "median ms" else name for name in titles]
    details = [
        ">mean",
        ">p90",
        ">min",
        ">first",
        ">prepare",
        ">images/s",
        ">host MiB",
        ">device MiB",
        "model and engine",
    ]
    table = Table(title, [*headers, *details, "compared"], _DETAILS)
    full = dict(_FULL)
    for row, line in zip(rows, lines, strict=True):
        more = [full[name](row) for name in _DETAILS[:8]]
        table.add_row(*line, *more, f"{row.model_hash[:8]} {full['engine'](row)}", row.parity())
    return table


def short_cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The titles and the lines of the table with what matters most."""
    several = len({contender_label(row, rows) for row in rows}) > 1
    ratios, compared = any(row.ratio for row in rows), any(row.was_compared for row in rows)
    lines = []
    for row in rows:
        ratio = ratio_text(row) or ("" if not ratios or row.failed else "baseline")
        # Where others were compared, what was not is what they were compared with.
        output = "reference" if compared and row.output == "no reference" else row.output
        pipeline = contender_label(row, rows) if several else ""
        lines.append([case_label(row, rows), pipeline, optional_digits(row.median_ms), ratio, output])
    return ["component", "pipeline", "median ms", "time ratio", "output"], lines


def caption(rows: Sequence[Row]) -> str:
    """Machine, date, versions and settings, which all rows share, and how torch's engines ran."""
    devices = ", ".join(dict.fromkeys(row.device for row in rows))
    parts = [devices, date_text(rows), settings(rows), versions_text(rows)]
    ran = dict.fromkeys((row.engine, row.engine_settings) for row in rows if row.engine_settings)
    parts += [f"{engine}: {how}" for engine, how in ran]
    return "; ".join(part for part in parts if part) + _apart(rows)


def date_text(rows: Sequence[Row]) -> str:
    """``2026-11-22 12:42 UTC+01:00`` where the rows were measured; empty if it is not known."""
    return html.date_text(next((row.measured_at for row in rows if row.measured_at), ""))


def versions_text(rows: Sequence[Row]) -> str:
    """``sdort 0.1.0, python 3.11.7, ...``."""
    return ", ".join(f"{name} {version}" for name, version in (rows[0].versions if rows else {}).items())


def settings(rows: Sequence[Row]) -> str:
    """Batch, size and dtype where all rows share them, denoising steps and calls."""
    shared = {
        f"batch {row.batch_size}": {other.batch_size for other in rows} for row in rows[:1]
    } | {
        size_words((row.height, row.width)): {(other.height, other.width) for other in rows} for row in rows[:1]
    } | {dtype_text(row.dtype): {other.dtype for other in rows} for row in rows[:1]}  # fmt: skip
    parts = [name for name, values in shared.items() if len(values) == 1]
    parts += [counted(row.steps, "step") for row in rows if row.steps][:1]
    parts += [f"{row.warmup} warm-up and {counted(row.repeat, 'timed call')}" for row in rows if row.repeat][:1]
    return ", ".join(parts)


_ON_PROCESSOR = {name for name, provider in PROVIDERS.items() if not provider.on_gpu}


def _apart(rows: Sequence[Row]) -> str:
    """The reason for torch's other precision; empty where it has the same."""
    here = [row for row in rows if row.provider in _ON_PROCESSOR]
    torch = {row.dtype for row in here if row.engine.startswith("torch")}
    beside = {row.dtype for row in here if not row.engine.startswith("torch")} - {"float32"}
    if torch != {"float32"} or not beside:
        return ""
    return "; torch in fp32: on the CPU ONNX Runtime computes in fp32 too, between the casts of an fp16 model"


RATIO_WORDS = "time ratio: time over the baseline's, with its 95 % interval; below 1 is faster"


def legend(rows: Sequence[Row]) -> str:
    """The line that says what the table's ratios are over; empty without ratios."""
    first = next((row for row in rows if not row.ratio), None)
    if first is None or not any(row.ratio for row in rows):
        return ""
    baseline = f"the baseline's ({contender_label(first, rows)})"
    return RATIO_WORDS.replace("the baseline's", baseline)


def cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The titles and the lines of the full table."""
    return [title for title, _ in _FULL], [[cell(row) for _, cell in _FULL] for row in rows]


def as_text(rows: Sequence[Row], form: str) -> str:
    """The rows as ``csv``, which has every field, or ``markdown``."""
    if form == "csv":
        return rows_as_csv(rows)
    explained = "".join(f"\n{text}\n" for text in (caption(rows), legend(rows)) if text)
    return as_markdown(*cells(rows)) + explained


def as_markdown(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    escaped = [titles, ["---"] * len(titles), *(map(_markdown, line) for line in lines)]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def _markdown(cell: str) -> str:
    """Text as a cell of a Markdown table: no markup, link or HTML of its own."""
    return re.sub(r"[\\`<|]|(?<=\])\(", r"\\\g<0>", one_line(cell))


def rows_as_csv(rows: Sequence[Row], first: Sequence[Mapping[str, str]] = ()) -> str:
    """The rows as CSV; ``first`` has columns of sdort's own words to stand before each row's own."""
    text = io.StringIO()
    flat = [
        {
            **before,
            **{name: _csv(value) for name, value in to_json(row).items() if name not in _NO_COLUMN},
            "versions": "; ".join(f"{name} {version}" for name, version in row.versions.items()),
        }
        for before, row in zip(first or [{}] * len(rows), rows, strict=True)
    ]
    writer = csv.DictWriter(text, list(flat[0]) if flat else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _csv(value: object) -> object:
    """A value of a CSV: of text that a spreadsheet would compute (``=...``) with an apostrophe before it."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if re.match(r" *[=+@-].", text) else text
