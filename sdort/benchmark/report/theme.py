"""Style of plots: colours that the colour-blind can tell apart, on white and on dark."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sdort.errors import UsageError
from sdort.machine.distributions import REQUIREMENTS, install_commands
from sdort.verification.report.html import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), less yellow, which white swallows, and black.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
SERIES = (SKY, ORANGE, GREEN, PURPLE, BLUE, RED)
WIDTH = 9.5
"""Inches; the report shows plots at this width."""
NARROW = 4.0
"""Inches of plots on a phone, where those of :data:`WIDTH` would be too small to read."""


ROW, _NARROW_ROW = 0.36, 0.5
"""Inches a bar, at least; names of two lines need more."""


def require_matplotlib() -> None:
    """Fail early.

    Raises:
        UsageError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "--report and --plots need matplotlib, which is not installed",
            hint=f"Install it:\n{install_commands(REQUIREMENTS['report'])}",
        )


@contextmanager
def plain_drawing() -> Iterator[None]:
    """A block in which figures are made and saved: ``$`` in names begins no formula, and ids stay the same."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "sdort", "text.parse_math": False}):
        yield


def new_figure(
    theme: Theme, height: float, columns: int = 1, ratios: tuple[float, ...] = (), width: float = WIDTH
) -> tuple[Figure, list[Axes]]:
    """A figure with its axes beside each other, in a theme; ``height`` and ``width`` in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor=theme.paper)
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=ratios or None)[0]
    for plot in axes:
        plot.set_facecolor(theme.paper)
        plot.tick_params(colors=theme.ink, labelsize=9, length=0)
        plot.spines[["top", "right", "left", "bottom"]].set_visible(False)
    return figure, list(axes)


def horizontal(axes: Axes, theme: Theme, labels: Sequence[str], room: float) -> None:
    """Bars from the top down, named at the left; numbers stand at the bars, so there is no axis to read them from."""
    width = axes.figure.bbox.width / axes.figure.dpi
    axes.set_yticks(range(len(labels)), ["\n".join(label_lines(label, width)) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, room)
    axes.set_xticks([])
    axes.axvline(0, color=theme.faint, linewidth=0.8)


def label_lines(label: str, width: float) -> list[str]:
    """Lines of a bar's name in a plot of ``width`` inches."""
    most = 40 if width >= WIDTH else 16
    lines = textwrap.wrap(label, most, break_on_hyphens=False)
    cut = any(len(word) > most for word in label.split())
    return textwrap.wrap(label, most) if cut else lines


def row_height(width: float, labels: Sequence[str]) -> float:
    """Inches a bar of a plot of ``width`` inches, so that no name reaches into the next."""
    lines = max((len(label_lines(label, width)) for label in labels), default=1)
    return max(ROW if width >= WIDTH else _NARROW_ROW, 0.16 * lines + 0.1)


def legend(figure: Figure, theme: Theme, colours: Mapping[str, str], columns: int) -> None:
    """Names of colours above the plot."""
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(color=colour, label=name) for name, colour in colours.items()], loc="outside upper left",
        ncols=columns, frameon=False, labelcolor=theme.ink, fontsize=9, handlelength=1, handleheight=1,
    )  # fmt: skip


def footnote(figure: Figure, theme: Theme, text: str) -> None:
    """Small print under a plot, in addition to what stands there."""
    above = [figure.get_supxlabel()] if figure.get_supxlabel() else []
    lines = textwrap.wrap(text, int(figure.get_figwidth() * 17), break_on_hyphens=False)
    figure.supxlabel("\n".join([*above, *lines]), x=0.01, ha="left", fontsize=7.5, color=theme.quiet)


def title(axes: Axes, theme: Theme, text: str) -> None:
    """Left over the plot, where reading begins; in lines that fit a narrow one."""
    labels = [line for label in axes.get_yticklabels() for line in label.get_text().split("\n")]
    beside = max(map(len, labels), default=0) * 0.075 + 0.2  # inches of the bars' names
    text = "\n".join(textwrap.wrap(text, int((axes.figure.bbox.width / axes.figure.dpi - beside) * 11)))
    axes.set_title(text, loc="left", color=theme.ink, fontsize=10.5, fontweight="bold")


def text_on(colour: str) -> str:
    """Black or white, whichever is read better on a colour (relative luminance, WCAG 2)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"
