"""The ablation as a table, Markdown, CSV or JSON, beside the published rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from sdort.benchmark.ablation import Ablation, MeasuredStep
from sdort.benchmark.conclusion import capitalized, outputs, share_words
from sdort.benchmark.digits import optional_digits, time_ratio
from sdort.benchmark.published import CAPTION, PUBLISHED, published_text
from sdort.benchmark.regression import ratio_interval
from sdort.benchmark.row_table import as_markdown, caption, rows_as_csv
from sdort.benchmark.rows import Row
from sdort.graph.domains import MICROSOFT
from sdort.inspection.description import is_fused
from sdort.tables import Table
from sdort.workload.cases import WHOLE_PIPELINE

MOST_CHANGES = 3
LEFT = ("step", "verify", "graph")
"""Titles of the columns that hold words."""


def verdict(stage: MeasuredStep, batch: int) -> str:
    """Verdict on a step's rows at a batch: the images' median, the worst component, or a problem."""
    if stage.problem:
        return f"FAILED: {stage.problem}"
    rows = [row for row in stage.rows if row.batch_size == batch]
    failed = next((row for row in rows if row.failed), None)
    if failed:
        return f"FAILED: {failed.component}: {failed.status}"
    images = [row.psnr_db for row in rows if row.psnr_db is not None]
    errors = [(row.error, row.component) for row in rows if row.error is not None]
    parts = ["images equal" if math.isinf(min(images)) else f"{min(images):.1f} dB"] if images else []
    if errors:
        error, component = max(errors)
        parts.append(f"{component} {error:.1e}")
    return f"ok: {', '.join(parts)}" if parts else "no reference"


def changes(stage: MeasuredStep) -> str:
    """Changes of the graphs by a step: the operators that came, the most first."""
    if stage.same_as:
        return f"same graphs as {stage.same_as!r}"
    came = sorted(((n, name) for name, n in stage.changes.items() if n > 0), reverse=True)
    fused = [change for change in came if is_fused(change[1])] or came
    return ", ".join(f"+{n} {name.removeprefix(f'{MICROSOFT}.')}" for n, name in fused[:MOST_CHANGES])


def row_of(stage: MeasuredStep, batch: int, component: str) -> Row | None:
    return next((row for row in stage.rows if (row.batch_size, row.component) == (batch, component)), None)


def memory(row: Row | None) -> float | None:
    """MiB at the highest point: of the device where it tells, else of the process."""
    if row is None or row.failed:
        return None
    pairs = ((row.device_first_mib, row.device_later_mib), (row.host_first_mib, row.host_later_mib))
    peaks = next((pair for pair in pairs if pair[0] is not None), None)
    return max(peak for peak in peaks if peak is not None) if peaks else None


def components(ablation: Ablation) -> list[str]:
    """Measured components, the pipeline last."""
    return list(dict.fromkeys(row.component for row in ablation.measured.rows))


def batches(ablation: Ablation) -> list[int]:
    return sorted({row.batch_size for row in ablation.measured.rows})


def titles(ablation: Ablation) -> list[str]:
    times = [f"{name} ms" for name in components(ablation)]
    published = [f"published {device}" for device in PUBLISHED]
    return ["batch", "step", *times, "time / raw", "MiB", "verify", "graph", *published]


def lines(ablation: Ablation) -> list[list[str]]:
    """The table's cells, batch by batch."""
    return [_line(ablation, stage, batch) for batch in batches(ablation) for stage in ablation.stages]


def _line(ablation: Ablation, stage: MeasuredStep, batch: int) -> list[str]:
    names = components(ablation)
    rows = {name: row_of(stage, batch, name) for name in names}
    times = ["=" if stage.same_as else optional_digits(row.median_ms if row else None) for row in rows.values()]
    whole = names[-1]
    first = row_of(ablation.stages[0], batch, whole)
    mine = rows[whole]
    ratio = mine.median_ms / first.median_ms if first and mine and first.median_ms and mine.median_ms else None
    published = [published_text(rows, stage.name, batch) for rows in PUBLISHED.values()]
    return [
        str(batch), stage.name, *times, optional_digits(ratio), optional_digits(memory(mine)),
        verdict(stage, batch), changes(stage), *published,
    ]  # fmt: skip


def ablation_caption(ablation: Ablation) -> str:
    """Model, provider, device and versions, which all rows share."""
    whole = components(ablation)[-1:] or [WHOLE_PIPELINE]
    shared = f"time / raw (fp32 without fusions) and MiB are those of: {whole[0]}. {caption(ablation.measured.rows)}."
    return f"{ablation.original} for {ablation.provider}. {shared}\n{CAPTION}"


def as_text(ablation: Ablation, form: str) -> str:
    """``csv``, which has every field of every row, or ``markdown``."""
    if form == "csv":
        return rows_as_csv([row for stage in ablation.stages for row in stage.rows], _steps(ablation.stages))
    return f"{as_markdown(titles(ablation), lines(ablation))}\n{ablation_caption(ablation)}\n"


def _steps(stages: Sequence[MeasuredStep]) -> list[dict[str, str]]:
    return [{"step": stage.name, "same_as": stage.same_as} for stage in stages for _ in stage.rows]


def as_tables(ablation: Ablation) -> list[Table]:
    """A table for each batch: each step's time as a whole, its share of the first step's, memory and verdict."""
    return [_table(ablation, batch) for batch in batches(ablation)]


def _table(ablation: Ablation, batch: int) -> Table:
    names = components(ablation)
    others = [f">{name} ms" for name in names[:-1]]
    published = [f"published {device}" for device in PUBLISHED]
    headers = ["step", f">{names[-1]} ms", ">time / raw", ">MiB", "output", *others, "verify", "graph", *published]
    details = [header.removeprefix(">") for header in headers[5:]]
    table = Table(f"{ablation.original} for {ablation.provider}, batch {batch}", headers, details)
    for stage in ablation.stages:
        cells = dict(zip(titles(ablation), _line(ablation, stage, batch), strict=True))
        shown = [cells[header.removeprefix(">")] for header in headers if header != "output"]
        table.add_row(*shown[:4], _output(stage, batch), *shown[4:])
    return table


def _output(stage: MeasuredStep, batch: int) -> str:
    """Verdict on a step's outputs in a word or two; the whole one is a detail."""
    if stage.same_as:
        return f"as {stage.same_as}"
    return verdict(stage, batch).partition(":")[0].lower()


def ablation_conclusion(ablation: Ablation) -> str:
    """The last step's share of the first one's time, which step was worth most, and whether outputs are right."""
    name, first, last = components(ablation)[-1:], ablation.stages[0], ablation.stages[-1]
    parts = []
    for batch in batches(ablation):
        rows = [(stage, row_of(stage, batch, name[0])) for stage in ablation.stages]
        timed = [(stage, row) for stage, row in rows if row and row.times_ms]
        if len(timed) > 1 and (timed[0][0], timed[-1][0]) == (first, last):
            ratio, low, high = ratio_interval(timed[0][1].times_ms, timed[-1][1].times_ms)
            share = share_words(ratio, low, high)
            parts.append(f"at batch {batch} {last.name!r} over {first.name!r}: {share}{_worth_most(timed)}")
    return capitalized("; ".join([*parts, outputs(ablation.rows)]))


def _worth_most(timed: Sequence[tuple[MeasuredStep, Row]]) -> str:
    """The step that is certainly faster than the one before it, and by the most; empty if none is."""
    gains = []
    for (_, before), (stage, row) in pairwise(timed):
        ratio, low, high = ratio_interval(before.times_ms, row.times_ms)
        if high < 1:
            gains.append((ratio, low, high, stage.name))
    if not gains:
        return ""
    ratio, low, high, name = min(gains)
    return f", most of it by {name!r}: {time_ratio(ratio, low, high)}"
