"""Style of plots: colours that the colour-blind can tell apart, on white and on dark."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from sdort.errors import UsageError
from sdort.verification.report.html import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), less yellow, which white swallows, and black.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
SERIES = (SKY, ORANGE, GREEN, PURPLE, BLUE, RED)
WIDTH = 9.5
"""Inches; the report shows plots at this width."""


def require_matplotlib() -> None:
    """Fail early.

    Raises:
        UsageError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "--report and --plots need matplotlib, which is not installed",
            hint="Install it: pip install 'sdort[report]'.",
        )


def new_figure(
    theme: Theme, height: float, columns: int = 1, ratios: tuple[float, ...] = ()
) -> tuple[Figure, list[Axes]]:
    """A figure with its axes beside each other, in a theme; ``height`` in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor=theme.paper)
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=ratios or None)[0]
    for plot in axes:
        plot.set_facecolor(theme.paper)
        plot.tick_params(colors=theme.ink, labelsize=9, length=0)
        plot.spines[["top", "right", "left", "bottom"]].set_visible(False)
    return figure, list(axes)


def title(axes: Axes, theme: Theme, text: str) -> None:
    """Left over the plot, where reading begins."""
    axes.set_title(text, loc="left", color=theme.ink, fontsize=10.5, fontweight="bold")


def text_on(colour: str) -> str:
    """Black or white, whichever is read better on a colour (relative luminance, WCAG 2)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"
