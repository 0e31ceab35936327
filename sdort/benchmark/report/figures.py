"""Plots of a benchmark: latency by component, ablation, memory, images. Each is a function of its data and a theme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sdort.benchmark.ablation import Ablation, MeasuredStep
from sdort.benchmark.digits import digits
from sdort.benchmark.labels import bar_label
from sdort.benchmark.published import PUBLISHED, Published, PublishedRows
from sdort.benchmark.report.ablation_table import components, memory, row_of, verdict
from sdort.benchmark.report.theme import ORANGE, RED, SERIES, SKY, new_figure, text_on, title
from sdort.benchmark.rows import Row
from sdort.model.component_names import DECODER, ENCODER
from sdort.verification.report.html import Theme
from sdort.workload.cases import WHOLE_PIPELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = 0.66
_ROW = 0.36
"""Inches a bar."""
_ROOM = 1.45
"""The axis ends here, in multiples of the longest bar: labels stand behind the bars."""
_ALPHA = {False: 1.0, True: 0.45}
"""Bars of steps that were not measured again are paler."""
_INSIDE = 0.06
"""A segment this wide, as a share of the axis, has room for its number."""
COMPONENT_COLOURS = {
    "text_encoder": SERIES[1],
    "text_encoder_2": SERIES[4],
    "unet": SERIES[0],
    DECODER: SERIES[2],
    ENCODER: SERIES[3],
}


def latency(rows: Sequence[Row], batch: int, theme: Theme) -> Figure | None:
    """One call of each component, stacked, a bar for each pipeline and engine; None where there are none."""
    timed = [
        row for row in rows if row.component != WHOLE_PIPELINE and row.batch_size == batch and row.median_ms is not None
    ]
    if not timed:
        return None
    bars: dict[str, dict[str, float]] = {}
    for row in timed:
        bars.setdefault(bar_label(row, timed), {})[row.component] = row.median_ms or 0.0
    names = [name for name in COMPONENT_COLOURS if any(name in bar for bar in bars.values())]
    figure, [axes] = new_figure(theme, _ROW * len(bars) + 1.3)
    room = 1.2 * max(sum(bar.values()) for bar in bars.values())
    _horizontal(axes, theme, list(bars), room)
    for index, bar in enumerate(bars.values()):
        left = 0.0
        for name in names:
            _segment(axes, index, left, bar.get(name, 0.0), COMPONENT_COLOURS[name], room)
            left += bar.get(name, 0.0)
        axes.text(left, index, f"  {digits(left)} ms", va="center", color=theme.ink, fontsize=9, fontweight="bold")
    _legend(figure, theme, {name.replace("_", " "): COMPONENT_COLOURS[name] for name in names})
    title(axes, theme, f"One call of each component at batch {batch}: median, ms")
    return figure


def _segment(axes: Axes, index: int, left: float, width: float, colour: str, room: float) -> None:
    axes.barh(index, width, _BAR, left=left, color=colour)
    if width > _INSIDE * room:
        axes.text(left + width / 2, index, digits(width), ha="center", va="center", color=text_on(colour), fontsize=8.5)


def _horizontal(axes: Axes, theme: Theme, labels: Sequence[str], room: float) -> None:
    """Bars from the top down, named at the left; numbers stand at the bars, so there is no axis to read them from."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, room)
    axes.set_xticks([])
    axes.axvline(0, color=theme.faint, linewidth=0.8)


def _legend(figure: Figure, theme: Theme, colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(color=colour, label=name) for name, colour in colours.items()], loc="outside lower left",
        ncols=len(colours), frameon=False, labelcolor=theme.ink, fontsize=9, handlelength=1, handleheight=1,
    )  # fmt: skip


def ablation(ablated: Ablation, batch: int, theme: Theme) -> Figure:
    """A bar for each step with its verdict, and beside it the published rows, each on its own scale."""
    published = {device: rows for device, rows in PUBLISHED.items() if any(batch in at for at in rows.values())}
    ratios = (2.6, *(1.0,) * len(published))
    figure, axes = new_figure(theme, _ROW * len(ablated.stages) + 1.1, len(ratios), ratios)
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
    _horizontal(axes, theme, [stage.name for stage in ablated.stages], 2.1 * longest)
    for index, (stage, milliseconds) in enumerate(zip(ablated.stages, times, strict=True)):
        words, colour = _verdict(stage, batch, theme)
        axes.barh(
            index, milliseconds, _BAR, color=theme.faint if stage.same_as else SKY, alpha=_ALPHA[bool(stage.same_as)]
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
    _horizontal(axes, theme, [""] * len(steps), _ROOM * longest)
    for index, cell in enumerate(published):
        if cell is not None:
            axes.barh(index, cell.seconds or 0, _BAR, color=theme.faint)
            axes.text(cell.seconds or 0, index, f" {_seconds(cell)}", va="center", color=theme.ink, fontsize=8.5)


def _seconds(cell: Published) -> str:
    return "OOM" if cell.seconds is None else f"{cell.seconds:.1f}{'*' if cell.suspicious else ''}"


def memory_use(rows: Sequence[Row], theme: Theme) -> Figure | None:
    """The highest point of each row of the pipeline, or of every component where no pipeline was measured."""
    whole = [row for row in rows if row.component == WHOLE_PIPELINE] or list(rows)
    whole.sort(key=lambda row: row.batch_size)
    peaks = [(row, value) for row in whole if (value := memory(row)) is not None]
    if not peaks:
        return None
    figure, [axes] = new_figure(theme, _ROW * len(peaks) + 0.9)
    names = [
        bar_label(row, rows) + ("" if row.component == WHOLE_PIPELINE else f", {row.component}") for row, _ in peaks
    ]
    longest = max(value for _, value in peaks) or 1.0
    _horizontal(axes, theme, names, 1.2 * longest)
    for index, (row, value) in enumerate(peaks):
        axes.barh(index, value, _BAR, color=ORANGE if row.device_first_mib is not None else SKY)
        axes.text(value, index, f"  {digits(value)} MiB", va="center", color=theme.ink, fontsize=9, fontweight="bold")
    device = any(row.device_first_mib is not None for row, _ in peaks)
    title(axes, theme, f"Peak memory of the {'device' if device else 'process'} above what was in use before, MiB")
    return figure
