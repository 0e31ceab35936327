"""One row of the result, and the table, CSV, JSON and Markdown of all of them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sdort.console import to_json
from sdort.providers import PROVIDERS

if TYPE_CHECKING:
    from rich.table import Table

    from sdort.inspection.profile import Placement


@dataclass
class Row:
    """A component or the pipeline at one batch and size. Times are None when the check failed: ``status`` says why.

    Memory is growth in MiB over what was in use before the model was opened, at the highest point of the first call
    (with loading) and of the later warm-up calls. ``error`` and ``mean_error`` are a component's largest and mean error
    relative to the standard deviation of the reference's output, ``psnr_db`` and ``lowest_psnr_db`` the median and the
    lowest of the pipeline's images. ``speedup`` is the baseline's time over this row's.
    """

    pipeline: str
    engine: str
    provider: str
    device: str
    component: str
    batch_size: int
    height: int
    width: int
    steps: int | None
    dtype: str
    model_hash: str
    status: str = "ok"
    checked_against: str = ""
    error: float | None = None
    mean_error: float | None = None
    psnr_db: float | None = None
    lowest_psnr_db: float | None = None
    load_s: float | None = None
    first_ms: float | None = None
    median_ms: float | None = None
    mean_ms: float | None = None
    p90_ms: float | None = None
    min_ms: float | None = None
    repeat: int | None = None
    warmup: int | None = None
    images_per_s: float | None = None
    host_first_mib: float | None = None
    host_later_mib: float | None = None
    device_first_mib: float | None = None
    device_later_mib: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    step: str = ""
    """Step of an ablation, whose table and CSV have a column for it."""
    versions: dict[str, str] = field(default_factory=dict)
    times_ms: list[float] = field(default_factory=list)
    """Every timed call, in order; a CSV has no place for it."""
    placement: Placement | None = None
    """With ``--placement``; a CSV has no place for it."""
    compared: Compared | None = None
    """With ``--compare``; a CSV has no place for it."""

    @property
    def failed(self) -> bool:
        return self.status != "ok"

    def fail(self, reason: str) -> None:
        """Say why the row has no times, and drop those that it has."""
        self.status = reason
        self.load_s = self.first_ms = self.median_ms = self.mean_ms = self.p90_ms = self.min_ms = None
        self.times_ms = []
        self.images_per_s = self.speedup = self.speedup_low = self.speedup_high = None

    def parity(self) -> str:
        """Result of the check in a few words."""
        if self.failed:
            return f"FAILED: {self.status}"
        if self.psnr_db is not None:
            return f"{self.similarity()} vs {self.checked_against}"
        if self.error is not None:
            return f"{self.error:.1e} vs {self.checked_against}"
        return self.checked_against

    def similarity(self) -> str:
        """``61.6 dB (lowest 41.2)`` of a pipeline's images."""
        median, lowest = self.psnr_db, self.lowest_psnr_db
        text = "equal" if median is None or math.isinf(median) else f"{median:.1f} dB"
        return text if lowest is None or lowest == median else f"{text} (lowest {lowest:.1f})"


def dtype_text(dtype: str) -> str:
    """``fp16`` for ``float16``, ``bf16`` for ``bfloat16``."""
    return dtype.replace("bfloat", "bf").replace("float", "fp")


_NO_COLUMN = ("placement", "times_ms", "compared", "step")
"""Fields that a CSV has no column for, or another one."""

_SHORT: list[tuple[str, Callable[[Row], str]]] = [
    ("pipeline", lambda row: f"{row.pipeline} {row.model_hash[:8]}"),
    ("engine", lambda row: f"{row.engine} {row.provider} {dtype_text(row.dtype)}"),
    ("component", lambda row: row.component),
    ("batch", lambda row: str(row.batch_size)),
    ("size", lambda row: f"{row.height}x{row.width}"),
    ("median ms", lambda row: _number(row.median_ms)),
    ("mean", lambda row: _number(row.mean_ms)),
    ("p90", lambda row: _number(row.p90_ms)),
    ("min", lambda row: _number(row.min_ms)),
    ("first", lambda row: _number(row.first_ms)),
    ("images/s", lambda row: _number(row.images_per_s)),
    ("host MiB", lambda row: _pair(row.host_first_mib, row.host_later_mib)),
    ("device MiB", lambda row: _pair(row.device_first_mib, row.device_later_mib)),
    ("vs baseline", lambda row: _speedup(row)),
    ("parity", lambda row: row.parity()),
]

LEFT = ("pipeline", "engine", "component", "parity")
"""Titles of the columns that hold words."""


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.2f}"


def _pair(first: float | None, later: float | None) -> str:
    return "n/a" if first is None else f"{first:,.0f} / {'-' if later is None else f'{later:,.0f}'}"


def _speedup(row: Row) -> str:
    if row.speedup is None:
        return "-"
    return f"{row.speedup:.2f}x ({row.speedup_low:.2f} to {row.speedup_high:.2f})"


def caption(rows: Sequence[Row]) -> str:
    """Device, versions and calls, which all rows share."""
    devices = ", ".join(dict.fromkeys(row.device for row in rows))
    versions = ", ".join(f"{name} {version}" for name, version in (rows[0].versions if rows else {}).items())
    steps = next((f"; {_counted(row.steps, 'step')}" for row in rows if row.steps), "")
    calls = next((f"; {row.warmup} warm-up and {_counted(row.repeat, 'timed call')}" for row in rows if row.repeat), "")
    return f"{devices}; {versions}{steps}{calls}{_apart(rows)}"


_ON_PROCESSOR = {name for name, provider in PROVIDERS.items() if not provider.on_gpu}


def _apart(rows: Sequence[Row]) -> str:
    """Why torch is in another precision than what it stands beside."""
    here = [row for row in rows if row.provider in _ON_PROCESSOR]
    torch = {row.dtype for row in here if row.engine.startswith("torch")}
    beside = {row.dtype for row in here if not row.engine.startswith("torch")} - {"float32"}
    if torch != {"float32"} or not beside:
        return ""
    return "; torch in fp32: on the CPU ONNX Runtime computes in fp32 too, between the casts of an fp16 model"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The titles and the lines of the short table."""
    return [title for title, _ in _SHORT], [[cell(row) for _, cell in _SHORT] for row in rows]


def as_text(rows: Sequence[Row], form: str) -> str:
    """The rows as ``csv``, which has every field, or ``markdown``."""
    if form == "csv":
        return rows_as_csv(rows)
    titles, table = cells(rows)
    lines = [titles, ["---"] * len(titles)]
    lines += [[cell.replace("|", "\\|") for cell in line] for line in table]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{caption(rows)}\n"


def rows_as_csv(rows: Sequence[Row], first: Sequence[Mapping[str, str]] = ()) -> str:
    """The rows as CSV; ``first`` has columns to stand before each row's own."""
    text = io.StringIO()
    flat = [
        {
            **before,
            **{name: value for name, value in to_json(row).items() if name not in _NO_COLUMN},
            "versions": "; ".join(f"{name} {version}" for name, version in row.versions.items()),
        }
        for before, row in zip(first or [{}] * len(rows), rows, strict=True)
    ]
    writer = csv.DictWriter(text, list(flat[0]) if flat else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def as_table(rows: Sequence[Row]) -> Table:
    """The rows as a rich table."""
    from rich.table import Table

    table = Table(caption=caption(rows), caption_justify="left")
    for title, _ in _SHORT:
        table.add_column(title, justify="left" if title in LEFT else "right")
    for row in rows:
        table.add_row(*(cell(row) for _, cell in _SHORT), style="red" if row.failed else None)
    return table


@dataclass(frozen=True)
class Compared:
    """A row against the saved one. ``ratio`` is the median time now over then; ``low`` and ``high`` hold it with 95 %.

    The verdict is ``slower`` or ``faster`` only where the whole interval is beyond the margin; ``reason`` says what
    else there is to know.
    """

    verdict: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    before_ms: float | None = None
    reason: str = ""
