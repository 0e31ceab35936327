"""The ablation as a table, Markdown, CSV or JSON, beside the published rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sdort.benchmark.ablation import Ablation, MeasuredStep
from sdort.benchmark.published import CAPTION, PUBLISHED, published_text
from sdort.benchmark.rows import Row, caption, rows_as_csv
from sdort.workload.cases import WHOLE_PIPELINE

if TYPE_CHECKING:
    from rich.table import Table

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
    came = sorted(((n, name.rpartition(".")[2]) for name, n in stage.changes.items() if n > 0), reverse=True)
    fused = [change for change in came if f"com.microsoft.{change[1]}" in stage.changes] or came
    return ", ".join(f"+{n} {name}" for n, name in fused[:MOST_CHANGES])


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
    return ["batch", "step", *times, "vs raw", "MiB", "verify", "graph", *published]


def lines(ablation: Ablation) -> list[list[str]]:
    """The table's cells, batch by batch."""
    return [_line(ablation, stage, batch) for batch in batches(ablation) for stage in ablation.stages]


def _line(ablation: Ablation, stage: MeasuredStep, batch: int) -> list[str]:
    names = components(ablation)
    rows = {name: row_of(stage, batch, name) for name in names}
    times = ["=" if stage.same_as else _number(row.median_ms if row else None) for row in rows.values()]
    whole = names[-1]
    first = row_of(ablation.stages[0], batch, whole)
    mine = rows[whole]
    faster = first.median_ms / mine.median_ms if first and mine and first.median_ms and mine.median_ms else None
    published = [published_text(rows, stage.name, batch) for rows in PUBLISHED.values()]
    return [
        str(batch), stage.name, *times, f"{faster:.2f}x" if faster else "-", _number(memory(mine)),
        verdict(stage, batch), changes(stage), *published,
    ]  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def ablation_caption(ablation: Ablation) -> str:
    """Model, provider, device and versions, which all rows share."""
    whole = components(ablation)[-1:] or [WHOLE_PIPELINE]
    shared = f"vs raw and MiB are of: {whole[0]}. {caption(ablation.measured.rows)}."
    return f"{ablation.original} for {ablation.provider}. {shared}\n{CAPTION}"


def as_text(ablation: Ablation, form: str) -> str:
    """``csv``, which has every field of every row, or ``markdown``."""
    if form == "csv":
        return rows_as_csv([row for stage in ablation.stages for row in stage.rows], _steps(ablation.stages))
    cells = [titles(ablation), ["---"] * len(titles(ablation)), *lines(ablation)]
    table = "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in cells)
    return f"{table}\n{ablation_caption(ablation)}\n"


def _steps(stages: Sequence[MeasuredStep]) -> list[dict[str, str]]:
    return [{"step": stage.name, "same_as": stage.same_as} for stage in stages for _ in stage.rows]


def as_table(ablation: Ablation) -> Table:
    """A rich table."""
    from rich.table import Table

    table = Table(caption=ablation_caption(ablation), caption_justify="left")
    for title in titles(ablation):
        table.add_column(title, justify="left" if title in LEFT else "right")
    before = ""
    for line in lines(ablation):
        if before and line[0] != before:
            table.add_section()
        before = line[0]
        table.add_row(*line, style="red" if any(cell.startswith("FAILED") for cell in line) else None)
    return table
