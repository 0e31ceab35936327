"""The roofline plot (Williams, Waterman and Patterson, 2009, https://doi.org/10.1145/1498765.1498785)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdort.benchmark.report.theme import SERIES, new_figure, text_on, title
from sdort.benchmark.roofline import Point, Roofline
from sdort.errors.plain_text import cut, one_line
from sdort.verification.report.html import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS = "osDhpX"


def attainable(measured: Roofline, intensity: float) -> float:
    """Operations a second under both roofs."""
    return min(measured.peak, measured.bandwidth * intensity)


def roofline(measured: Roofline, theme: Theme) -> Figure:
    """The hot nodes under the two roofs; a table beside says which is which, and how near they are."""
    figure, [axes, beside] = new_figure(theme, 4.6, 2, (1.0, 1.15))
    ridge = measured.peak / measured.bandwidth
    ends = [min([point.intensity for point in measured.points] + [ridge]) / 3, ridge * 20]
    xs = [ends[0], ridge, ends[1]]
    axes.plot(xs, [attainable(measured, x) / 1e12 for x in xs], color=theme.ink, linewidth=1.4)
    operators = list(dict.fromkeys(point.operator for point in measured.points))
    for index, point in enumerate(measured.points):
        _mark(axes, point.intensity, point.speed / 1e12, index, operators.index(point.operator))
    _axes(axes, theme, measured)
    _table(beside, theme, measured, operators)
    return figure


def _mark(axes: Axes, x: float, y: float, index: int, kind: int) -> None:
    """The node's number in a mark of its operator's shape and colour."""
    colour = SERIES[kind % len(SERIES)]
    axes.plot(x, y, _MARKS[kind % len(_MARKS)], markersize=13, color=colour, clip_on=False)
    axes.annotate(str(index + 1), (x, y), ha="center", va="center_baseline", fontsize=7.5, color=text_on(colour))


def _axes(axes: Axes, theme: Theme, measured: Roofline) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(color=theme.faint, alpha=0.35, linewidth=0.5)
    title(axes, theme, f"{measured.component}: hot nodes, TFLOP/s")
    words = f"measured roofs: {measured.peak / 1e12:,.3g} TFLOP/s, {measured.bandwidth / 1e9:,.0f} GB/s"
    axes.set_xlabel(f"operations a byte, from shapes\n{words}", color=theme.ink, fontsize=9)


def _table(axes: Axes, theme: Theme, measured: Roofline, operators: list[str]) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlim(0, 1)
    axes.set_ylim(len(measured.points) + 0.5, -1)
    axes.text(0, -0.6, "node (input shapes), how many", fontsize=8.5, color=theme.quiet)
    axes.text(1, -0.6, "ms each, share of the roof", fontsize=8.5, color=theme.quiet, ha="right")
    for index, point in enumerate(measured.points):
        kind = operators.index(point.operator)
        _mark(axes, 0.015, index + 0.25, index, kind)
        axes.text(
            0.06, index + 0.1, one_line(f"{point.operator}, {point.nodes}"), va="center", fontsize=8.5, color=theme.ink
        )
        axes.text(0.06, index + 0.52, cut(point.shape, 46), va="center", fontsize=7, color=theme.quiet)
        axes.text(1, index + 0.25, _how_near(measured, point), va="center", ha="right", fontsize=8.5, color=theme.ink)


def _how_near(measured: Roofline, point: Point) -> str:
    return f"{point.seconds * 1e3:.3f}, {100 * point.speed / attainable(measured, point.intensity):.0f} %"
