"""Plots of a benchmark: ablation and memory. Each is a function of its data and a theme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sdort.benchmark.ablation import Ablation, MeasuredStep
from sdort.benchmark.digits import digits
from sdort.benchmark.labels import bar_label
from sdort.benchmark.published import PUBLISHED, Published, PublishedRows
from sdort.benchmark.report.ablation_table import components, memory, row_of, verdict
from sdort.benchmark.report.latency_plots import BAR
from sdort.benchmark.report.theme import ORANGE, RED, ROW, SKY, WIDTH, horizontal, new_figure, row_height, title
from sdort.benchmark.rows import Row
from sdort.verification.report.html import Theme
from sdort.workload.cases import WHOLE_PIPELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROOM = 1.45
"""The axis ends here, in multiples of the longest bar: labels stand behind the bars."""
_ALPHA = {False: 1.0, True: 0.45}
"""Bars of steps that were not measured again are paler."""


def ablation(ablated: Ablation, batch: int, theme: Theme) -> Figure:
    """A bar for each step with its verdict, and beside it the published rows, each on its own scale."""
    published = {device: rows for device, rows in PUBLISHED.items() if any(batch in at for at in rows.values())}
    ratios = (2.6, *(1.0,) * len(published))
    figure, axes = new_figure(theme, ROW * len(ablated.stages) + 1.1, len(ratios), ratios)
    whole = components(ablated)[-1]
    _here(axes[0], ablated, batch, whole, theme)
    title(axes[0], theme, f"{ablated.original} on {ablated.provider}: {whole}, batch {batch}, ms")
    for beside, (device, rows) in zip(axes[1:], published.items(), strict=True):
        _beside(beside, [stage.name for stage in ablated.stages], rows, batch, theme)
        beside.set_title(f"published:\n{device}, s", loc="left", color=theme.quiet, fontsize=9)
    if published:
        figure.supxlabel(
            "Published: another device and library, SD 1.5, 512x512, 50 steps; for orientation only."
            " * with suspicious images",
            x=0.01, ha="left", fontsize=8, color=theme.quiet,
        )  # fmt: skip
    return figure


def _here(axes: Axes, ablated: Ablation, batch: int, component: str, theme: Theme) -> None:
    rows = [row_of(stage, batch, component) for stage in ablated.stages]
    times = [(row.median_ms if row else None) or 0.0 for row in rows]
    longest = max(times, default=0) or 1.0
    horizontal(axes, theme, [stage.name for stage in ablated.stages], 2.1 * longest)
    for index, (stage, milliseconds) in enumerate(zip(ablated.stages, times, strict=True)):
        words, colour = _verdict(stage, batch, theme)
        axes.barh(
            index, milliseconds, BAR, color=theme.faint if stage.same_as else SKY, alpha=_ALPHA[bool(stage.same_as)]
        )
        value = f"{digits(milliseconds)}  " if milliseconds else ""
        axes.annotate(value, (milliseconds, index), (4, 0), textcoords="offset points", va="center", color=theme.ink,
                      fontsize=9, fontweight="bold")  # fmt: skip
        axes.annotate(words, (milliseconds, index), (44 if milliseconds else 4, 0), textcoords="offset points",
                      va="center", color=colour, fontsize=8.5)  # fmt: skip


def _verdict(stage: MeasuredStep, batch: int, theme: Theme) -> tuple[str, str]:
    words = verdict(stage, batch)
    if words.startswith("FAILED"):
        return (words if len(words) < 48 else f"{words[:45]}..."), RED
    return (f"same graphs as {stage.same_as}", theme.quiet) if stage.same_as else (words, theme.ink)


def _beside(axes: Axes, steps: Sequence[str], rows: PublishedRows, batch: int, theme: Theme) -> None:
    published = [rows.get(step, {}).get(batch) for step in steps]
    longest = max((cell.seconds or 0 for cell in published if cell), default=0) or 1.0
    horizontal(axes, theme, [""] * len(steps), _ROOM * longest)
    for index, cell in enumerate(published):
        if cell is not None:
            axes.barh(index, cell.seconds or 0, BAR, color=theme.faint)
            axes.text(cell.seconds or 0, index, f" {_seconds(cell)}", va="center", color=theme.ink, fontsize=8.5)


def _seconds(cell: Published) -> str:
    return "OOM" if cell.seconds is None else f"{cell.seconds:.1f}{'*' if cell.suspicious else ''}"


def memory_use(rows: Sequence[Row], theme: Theme, width: float = WIDTH) -> Figure | None:
    """The highest point of each row of the pipeline, or of every component where no pipeline was measured."""
    whole = [row for row in rows if row.component == WHOLE_PIPELINE] or list(rows)
    whole.sort(key=lambda row: row.batch_size)
    peaks = [(row, value) for row in whole if (value := memory(row)) is not None]
    if not peaks:
        return None
    names = [
        bar_label(row, rows) + ("" if row.component == WHOLE_PIPELINE else f", {row.component}") for row, _ in peaks
    ]
    figure, [axes] = new_figure(theme, row_height(width, names) * len(peaks) + 0.9, width=width)
    longest = max(value for _, value in peaks) or 1.0
    horizontal(axes, theme, names, (1.2 if width >= WIDTH else 1.5) * longest)
    for index, (row, value) in enumerate(peaks):
        axes.barh(index, value, BAR, color=ORANGE if row.device_first_mib is not None else SKY)
        axes.text(value, index, f"  {digits(value)} MiB", va="center", color=theme.ink, fontsize=9, fontweight="bold")
    device = any(row.device_first_mib is not None for row, _ in peaks)
    title(axes, theme, f"Peak memory of the {'device' if device else 'process'} above what was in use before, MiB")
    return figure
