"""Everything that a benchmark can show: its plots as files, and one HTML file with plots, tables and images in it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from sdort.benchmark import regression
from sdort.benchmark import rows as tables
from sdort.benchmark.ablation import Ablation
from sdort.benchmark.measure import ImagePair, Measurement
from sdort.benchmark.report import ablation_table, figures, image_maps
from sdort.benchmark.report.roofline_plot import roofline
from sdort.benchmark.roofline import measure_rooflines
from sdort.benchmark.rows import Row, caption
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

Draw = Callable[[Theme], "Figure | None"]


@dataclass(frozen=True)
class Plot:
    """One plot; ``name`` is its file's, ``words`` say for those who cannot see it what it is."""

    name: str
    words: str
    draw: Draw


@dataclass
class BenchReport:
    """What there is to show."""

    title: str
    rows: Sequence[Row]
    pictures: Sequence[ImagePair] = ()
    ablation: Ablation | None = None
    remarks: list[str] = field(default_factory=list)
    """Sentences about what could not be shown."""
    more: list[Plot] = field(default_factory=list)

    def plots(self) -> Iterator[Plot]:
        """Those that the data is there for."""
        for batch in sorted({row.batch_size for row in self.rows}):
            words = f"Latency of one call of each component at batch {batch}"
            yield Plot(f"latency-batch-{batch}", words, partial(figures.latency, self.rows, batch))
        found = self.ablation
        if found:
            for batch in ablation_table.batches(found):
                words = f"Latency of each step of the ablation at batch {batch}"
                yield Plot(f"ablation-batch-{batch}", words, partial(figures.ablation, found, batch))
        yield Plot("memory", "Peak memory", partial(figures.memory_use, self.rows))
        yield from self.more


def report_of(found: Measurement | Ablation, title: str) -> BenchReport:
    """What a measurement or an ablation has to show; of images those at the smallest batch, larger ones begin alike."""
    measured = found.measured if isinstance(found, Ablation) else found
    smallest = min((each.row.batch_size for each in measured.pictures), default=0)
    pictures = [each for each in measured.pictures if each.row.batch_size == smallest]
    return BenchReport(title, measured.rows, pictures, found if isinstance(found, Ablation) else None)


def add_rooflines(book: BenchReport, path: Path, options: BenchOptions) -> None:
    """Measure and add the rooflines, or a sentence that says why there are none."""
    found, remarks = measure_rooflines(path, book.rows, options.runtime)
    book.remarks += remarks
    for each in found:
        words = f"Roofline of the hot nodes of {each.component}"
        book.more.append(Plot(f"roofline-{each.component}", words, partial(roofline, each)))


def picture_names(book: BenchReport) -> list[str]:
    """What tells each picture from the others."""
    return [figures.label(picture.row, book.rows) for picture in book.pictures]


def write_plots(book: BenchReport, folder: Path) -> list[Path]:
    """Every plot as a PNG for light and one for dark surroundings.

    Raises:
        OutputError: the folder cannot be written.
    """
    images = Plot("images", "", lambda theme: image_maps.image_figure(book.pictures, picture_names(book), theme))
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for plot in [*book.plots(), images]:
            for theme in THEMES:
                figure = plot.draw(theme)
                if figure is not None:
                    written.append(folder / f"{plot.name}-{theme.name}.png")
                    figure.savefig(written[-1], dpi=130)
    except OSError as error:
        raise OutputError(f"cannot write plots to {folder}: {error.strerror or error}") from error
    say(f"wrote {len(written)} plots to {folder}")
    return written


def html_report(book: BenchReport) -> str:
    """The report as one HTML file."""
    parts = [paragraph(caption(book.rows)), *map(_plot, book.plots()), *map(paragraph, book.remarks)]
    if book.pictures:
        parts += ["<h2>Images</h2>", *map(_picture, book.pictures, picture_names(book))]
    if book.ablation:
        heads, lines = ablation_table.titles(book.ablation), ablation_table.lines(book.ablation)
        parts += [section("Ablation", heads, lines, left=ablation_table.LEFT, wide=("verify", "graph"))]
        parts += [paragraph(ablation_table.explain(book.ablation))]
    else:
        parts += [section("Rows", *tables.cells(book.rows), left=tables.LEFT, wide=("parity",))]
    lines = regression.lines(book.rows)
    bad = ("FAILED", regression.SLOWER)
    parts += [
        section("Against the saved benchmark", regression.TITLES, lines, left=regression.LEFT, wide=("why",), bad=bad)
    ]
    return page(book.title, parts)


def _plot(plot: Plot) -> str:
    light, dark = plot.draw(LIGHT), plot.draw(DARK)
    return "" if light is None or dark is None else html_plot(plot.words, _svg(light), _svg(dark))


def _svg(figure: Figure) -> bytes:
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({"svg.hashsalt": "sdort"}):  # ids that do not change from one report to the next
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def _picture(picture: ImagePair, name: str) -> str:
    figures = [figure(picture.image.pixels, f"this: {image_maps.similarity(picture)}")]
    if picture.reference is not None and image_maps.comparable(picture):
        reference = picture.reference.pixels
        figures = [figure(reference, "reference"), *figures, difference_figure(picture.image.pixels, reference)]
    return f"<h3>{escape(name)}</h3>{beside(figures)}"
