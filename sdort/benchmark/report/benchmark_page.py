"""Plots of a benchmark as files, and one HTML file with plots, tables and images in it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from sdort.benchmark import regression
from sdort.benchmark import row_table as tables
from sdort.benchmark.ablation import Ablation
from sdort.benchmark.labels import bar_label
from sdort.benchmark.measure import ImagePair, Measurement
from sdort.benchmark.report import ablation_table, figures, image_maps
from sdort.benchmark.report.roofline_plot import roofline
from sdort.benchmark.roofline import measure_rooflines
from sdort.benchmark.row_table import caption
from sdort.benchmark.rows import Row
from sdort.benchmark.setup import BenchOptions
from sdort.console import say
from sdort.errors import OutputError
from sdort.verification.report.html import (
    DARK,
    LIGHT,
    THEMES,
    Theme,
    beside,
    difference_figure,
    figure,
    page,
    paragraph,
    section,
)
from sdort.verification.report.html import plot as html_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PlotFigure = Callable[[Theme], "Figure | None"]


@dataclass(frozen=True)
class Plot:
    """One plot; ``name`` is its file's, ``words`` describe it for those who cannot see it."""

    name: str
    words: str
    draw: PlotFigure


@dataclass
class BenchReport:
    """Contents of a report."""

    title: str
    rows: Sequence[Row]
    images: Sequence[ImagePair] = ()
    ablation: Ablation | None = None
    remarks: list[str] = field(default_factory=list)
    """Sentences about what could not be shown."""
    more: list[Plot] = field(default_factory=list)
    command_line: str = ""

    def plots(self) -> Iterator[Plot]:
        """Those that the data is there for."""
        for batch in sorted({row.batch_size for row in self.rows}):
            words = f"Latency of one call of each component at batch {batch}"
            yield Plot(f"latency-batch-{batch}", words, partial(figures.latency, self.rows, batch))
        if self.ablation:
            for batch in ablation_table.batches(self.ablation):
                words = f"Latency of each step of the ablation at batch {batch}"
                yield Plot(f"ablation-batch-{batch}", words, partial(figures.ablation, self.ablation, batch))
        yield Plot("memory", "Peak memory", partial(figures.memory_use, self.rows))
        yield from self.more


def benchmark_report(result: Measurement | Ablation, title: str) -> BenchReport:
    """Report of a measurement or an ablation, with the images of the smallest batch: larger ones begin alike."""
    measured = result.measured if isinstance(result, Ablation) else result
    smallest = min((pair.row.batch_size for pair in measured.images), default=0)
    images = [pair for pair in measured.images if pair.row.batch_size == smallest]
    return BenchReport(title, measured.rows, images, result if isinstance(result, Ablation) else None)


def add_rooflines(report: BenchReport, path: Path, options: BenchOptions) -> None:
    """Measure and add the rooflines, or a sentence that says why there are none."""
    rooflines, remarks = measure_rooflines(path, report.rows, options.runtime)
    report.remarks += remarks
    for measured in rooflines:
        words = f"Roofline of the hot nodes of {measured.component}"
        report.more.append(Plot(f"roofline-{measured.component}", words, partial(roofline, measured)))


def image_labels(report: BenchReport) -> list[str]:
    """Label of each image, different from the others'."""
    return [bar_label(pair.row, report.rows) for pair in report.images]


def write_plots(report: BenchReport, folder: Path) -> list[Path]:
    """Every plot as a PNG for light and one for dark surroundings.

    Raises:
        OutputError: the folder cannot be written.
    """
    images = Plot("images", "", lambda theme: image_maps.image_figure(report.images, image_labels(report), theme))
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for plot in [*report.plots(), images]:
            for theme in THEMES:
                figure = plot.draw(theme)
                if figure is not None:
                    written.append(folder / f"{plot.name}-{theme.name}.png")
                    figure.savefig(written[-1], dpi=130)
    except OSError as error:
        raise OutputError(f"cannot write plots to {folder}: {error.strerror or error}") from error
    say(f"wrote {len(written)} plots to {folder}")
    return written


def benchmark_page(report: BenchReport) -> str:
    """The report as one HTML file."""
    parts = [paragraph(caption(report.rows)), *map(_plot, report.plots()), *map(paragraph, report.remarks)]
    if report.images:
        gain = image_maps.common_gain(report.images)
        labels = image_labels(report)
        parts += ["<h2>Images</h2>", *(_image(*pair, gain) for pair in zip(report.images, labels, strict=True))]
    if report.ablation:
        heads, lines = ablation_table.titles(report.ablation), ablation_table.lines(report.ablation)
        parts += [section("Ablation", heads, lines, left=ablation_table.LEFT, wide=("verify", "graph"))]
        parts += [paragraph(ablation_table.ablation_caption(report.ablation))]
    else:
        parts += [section("Rows", *tables.cells(report.rows), left=tables.LEFT, wide=("output",))]
    lines = regression.lines(report.rows)
    bad = ("FAILED", regression.SLOWER)
    parts += [
        section("Against the saved benchmark", regression.TITLES, lines, left=regression.LEFT, wide=("why",), bad=bad)
    ]
    return page(report.title, parts)


def _plot(plot: Plot) -> str:
    light, dark = plot.draw(LIGHT), plot.draw(DARK)
    return "" if light is None or dark is None else html_plot(plot.words, _svg(light), _svg(dark))


def _svg(figure: Figure) -> bytes:
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({"svg.hashsalt": "sdort"}):  # ids that do not change from one report to the next
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def _image(pair: ImagePair, name: str, gain: int) -> str:
    figures = [figure(pair.image.pixels, f"this: {image_maps.similarity(pair)}")]
    if pair.reference is not None and image_maps.comparable(pair):
        reference = pair.reference.pixels
        figures = [figure(reference, "reference"), *figures, difference_figure(pair.image.pixels, reference, gain)]
    return f"<h3>{escape(name)}</h3>{beside(figures)}"
