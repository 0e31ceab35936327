"""Plots of times: what an image costs, and one call of each component. Whiskers: 10th to 90th percentile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sdort.benchmark.digits import digits
from sdort.benchmark.labels import bar_label, contender_label
from sdort.benchmark.report.theme import SERIES, WIDTH, horizontal, legend, new_figure, row_height, text_on, title
from sdort.benchmark.rows import Row
from sdort.options.number_ranges import size_words
from sdort.verification.report.html import Theme
from sdort.workload.cases import WHOLE_PIPELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR = 0.66
_INSIDE = 0.07
"""A segment this wide, as a share of the axis, has room for its number."""
WHISKERS = "whiskers: 10th to 90th percentile"
_ENCODE, _DECODE, _REST, _WHOLE = "text encoders", "decoder", "the rest", "not split"
_UNET = "UNet"
STAGE_COLOURS = {_ENCODE: SERIES[1], _UNET: SERIES[0], _DECODE: SERIES[2], _REST: SERIES[3], _WHOLE: "#9aa1a9"}


def whisker(row: Row) -> tuple[float, float]:
    """The 10th and 90th percentile of a row's calls in ms; its median twice where there are no calls."""
    if not row.times_ms:
        return row.median_ms or 0.0, row.median_ms or 0.0
    low, high = np.percentile(row.times_ms, [10, 90])
    return float(low), float(high)


def cost_segments(row: Row) -> dict[str, float]:
    """Milliseconds of each stage of a pipeline's row, per image; all in one where its engine does not tell."""
    whole = row.median_ms or 0.0
    if row.stages is None:
        segments = {_WHOLE: whole}
    else:
        stages = row.stages
        known = stages.encode + stages.denoise + stages.decode
        rest = max(0.0, whole - known)
        segments = {_ENCODE: stages.encode, _UNET: stages.denoise, _DECODE: stages.decode, _REST: rest}
    return {name: value / row.batch_size for name, value in segments.items()}


def cost_words(rows: Sequence[Row]) -> str:
    """The parts of an image's cost: ``20 UNet steps, each on two latents (classifier-free guidance)``."""
    row = next((row for row in rows if row.component == WHOLE_PIPELINE and row.stages), None)
    if row is None or row.stages is None:
        return ""
    guided = row.stages.samples == 2 * row.batch_size
    how = "each on two latents an image (classifier-free guidance)" if guided else "each on one latent an image"
    return f"{row.steps} UNet steps, {how}"


def image_cost(rows: Sequence[Row], theme: Theme, width: float = WIDTH) -> Figure | None:
    """The stages of an image, stacked, a bar for each pipeline and engine; None where no pipeline was timed."""
    timed = [row for row in rows if row.component == WHOLE_PIPELINE and row.median_ms is not None]
    if not timed:
        return None
    labels = [bar_label(row, timed) for row in timed]
    figure, [axes] = new_figure(theme, row_height(width, labels) * len(timed) + 1.3, width=width)
    ends = [whisker(row)[1] / row.batch_size for row in timed]
    room = (1.25 if width >= WIDTH else 1.45) * max(ends)
    horizontal(axes, theme, labels, room)
    for index, (row, end) in enumerate(zip(timed, ends, strict=True)):
        left = 0.0
        for name, value in cost_segments(row).items():
            _segment(axes, index, left, value, STAGE_COLOURS[name], room)
            left += value
        _whisker(axes, index, whisker(row), row.batch_size, theme)
        _number(axes, index, max(left, end), f"{digits((row.median_ms or 0) / row.batch_size)} ms", theme)
    names = [name for name in STAGE_COLOURS if any(cost_segments(row).get(name, 0) > 0 for row in timed)]
    legend(figure, theme, {name: STAGE_COLOURS[name] for name in names}, 2 if width < WIDTH else len(names))
    title(axes, theme, f"One image of {timed[0].steps} steps: median, ms ({WHISKERS})")
    return figure


def component_latency(rows: Sequence[Row], batch: int, theme: Theme, width: float = WIDTH) -> Figure | None:
    """One call of each component, a bar for each pipeline and engine; None where nothing was timed at ``batch``."""
    timed = [
        row for row in rows if row.component != WHOLE_PIPELINE and row.batch_size == batch and row.median_ms is not None
    ]
    if not timed:
        return None
    bars = _named_bars(timed)
    names, contenders = [*dict.fromkeys(bar[0] for bar in bars)], [*dict.fromkeys(bar[1] for bar in bars)]
    colours = dict(zip(contenders, SERIES, strict=False))
    a_bar = 0.38 if width < WIDTH and len(contenders) == 1 else 0.26  # names of two lines
    legend_height = 0.2 * len(contenders) if width < WIDTH else 0
    figure, [axes] = new_figure(theme, a_bar * len(timed) + 0.12 * len(names) + 1.2 + legend_height, width=width)
    horizontal(axes, theme, names, (1.2 if width >= WIDTH else 1.4) * max(whisker(row)[1] for row in timed))
    for name, contender, row in bars:
        index, number = names.index(name), contenders.index(contender)
        thickness = 0.8 / len(contenders)
        y = index + (number - (len(contenders) - 1) / 2) * thickness
        axes.barh(y, row.median_ms or 0.0, 0.9 * thickness, color=colours[contender])
        _whisker(axes, y, whisker(row), 1, theme)
        _number(axes, y, whisker(row)[1], digits(row.median_ms or 0.0), theme)
    if len(contenders) > 1:
        legend(figure, theme, colours, 1 if width < WIDTH else min(4, len(contenders)))
    title(axes, theme, f"One call of each component, batch {batch}: median, ms ({WHISKERS})")
    return figure


def _named_bars(rows: Sequence[Row]) -> list[tuple[str, str, Row]]:
    """Each row with its case, which stands beside it, and its contender, which has a colour.

    Where there are more contenders than colours, they are a part of the case, and the second name is empty.
    """
    sizes = len({(row.height, row.width) for row in rows}) > 1
    cases = [
        row.component.replace("_", " ") + (f", {size_words((row.height, row.width))}" if sizes else "") for row in rows
    ]
    contenders = [contender_label(row, rows) for row in rows]
    if len({*contenders}) > len(SERIES):
        bars = [(f"{case}: {name}", "", row) for case, name, row in zip(cases, contenders, rows, strict=True)]
        return sorted(bars, key=lambda bar: cases.index(bar[0].partition(":")[0]))
    return list(zip(cases, contenders, rows, strict=True))


def _segment(axes: Axes, index: int, left: float, width: float, colour: str, room: float) -> None:
    axes.barh(index, width, BAR, left=left, color=colour)
    if width > _INSIDE * room:
        axes.text(left + width / 2, index, digits(width), ha="center", va="center", color=text_on(colour), fontsize=8.5)


def _whisker(axes: Axes, y: float, ends: tuple[float, float], images: int, theme: Theme) -> None:
    low, high = ends[0] / images, ends[1] / images
    axes.plot([low, high], [y, y], "|-", color=theme.ink, linewidth=1, markersize=6)


def _number(axes: Axes, y: float, x: float, text: str, theme: Theme) -> None:
    axes.annotate(text, (x, y), (6, 0), textcoords="offset points", va="center", color=theme.ink, fontsize=9,
                  fontweight="bold")  # fmt: skip
