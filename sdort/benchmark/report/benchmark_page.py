"""Plots of a benchmark as files, and one HTML file with plots, tables and images in it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sdort.benchmark import regression
from sdort.benchmark import row_table as tables
from sdort.benchmark.ablation import Ablation
from sdort.benchmark.bench_options import BenchOptions
from sdort.benchmark.conclusion import capitalized, conclusion, headline, outputs
from sdort.benchmark.labels import bar_label
from sdort.benchmark.measure import ImagePair, Measurement
from sdort.benchmark.noise import noise_warning
from sdort.benchmark.report import ablation_table, figures, image_maps, latency_plots
from sdort.benchmark.report.ablation_table import ablation_conclusion
from sdort.benchmark.report.roofline_plot import roofline
from sdort.benchmark.report.theme import NARROW, footnote, plain_drawing
from sdort.benchmark.roofline import measure_rooflines
from sdort.benchmark.row_table import caption
from sdort.benchmark.rows import Row, failures
from sdort.console import say
from sdort.errors import OutputError
from sdort.files.staging import staged_output
from sdort.verification.report.html import DARK, LIGHT, THEMES, Drawing, Table, Theme, render, section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATES = Path(__file__).with_name("templates")
PlotFigure = Callable[[Theme], "Figure | None"]


@dataclass(frozen=True)
class Plot:
    """One plot.

    Attributes:
        name: its file's.
        words: a description for those who cannot see it.
        draw: makes it for a theme.
        narrow: makes it for a phone's screen; None where it does not fit one.
    """

    name: str
    words: str
    draw: PlotFigure
    narrow: PlotFigure | None = None


def _bars(name: str, words: str, draw: Callable[..., Figure | None]) -> Plot:
    """A plot of bars, which can be narrow."""
    return Plot(name, words, draw, partial(draw, width=NARROW))


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
        yield self.cost()
        for batch in sorted({row.batch_size for row in self.rows}):
            words = f"Latency of one call of each component at batch {batch}"
            draw = partial(latency_plots.component_latency, self.rows, batch)
            yield _bars(f"latency-batch-{batch}", words, draw)
        if self.ablation:
            for batch in ablation_table.batches(self.ablation):
                words = f"Latency of each step of the ablation at batch {batch}"
                yield Plot(f"ablation-batch-{batch}", words, partial(figures.ablation, self.ablation, batch))
        yield _bars("memory", "Peak memory", partial(figures.memory_use, self.rows))
        yield from self.more

    def cost(self) -> Plot:
        """The cost of an image, by stages."""
        words = "Time of one image by stages: text encoders, UNet steps, decoder"
        return _bars("image-cost", words, partial(latency_plots.image_cost, self.rows))


def benchmark_report(result: Measurement | Ablation, title: str) -> BenchReport:
    """Report of a measurement or an ablation, with the images of the smallest batch: larger ones begin alike."""
    measured = result.measured if isinstance(result, Ablation) else result
    smallest = min((pair.row.batch_size for pair in measured.images), default=0)
    # A baseline that is the reference of the others is shown beside them.
    images = [pair for pair in measured.images if pair.row.batch_size == smallest and pair.image is not pair.reference]
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
                with plain_drawing():
                    figure = plot.draw(theme)
                    if figure is not None:
                        footnote(figure, theme, caption(report.rows))
                        written.append(folder / f"{plot.name}-{theme.name}.png")
                        with staged_output(written[-1]) as file:
                            figure.savefig(file, format="png", dpi=130)
    except OSError as error:
        raise OutputError(f"cannot write plots to {folder}: {error.strerror or error}") from error
    say(f"wrote {len(written)} plots to {folder}")
    return written


def benchmark_page(report: BenchReport) -> str:
    """The report as one HTML file: the answer, what it was measured on, images, plots, then tables."""
    cost, *others = map(_plot, report.plots())
    return render(
        "benchmark.html",
        _TEMPLATES,
        title=report.title,
        report=report,
        facts=_facts(report.rows),
        cost=cost,
        cost_words=latency_plots.cost_words(report.rows),
        plots=[plot for plot in others if plot],
        images=_images(report),
        gain=image_maps.common_gain(report.images),
        **_answer(report),
        **_tables(report),
    )


def _answer(report: BenchReport) -> dict[str, object]:
    """The verdict, what is wrong first, and the one number."""
    verdicts = [ablation_conclusion(report.ablation) if report.ablation else conclusion(report.rows)]
    if any(row.compared for row in report.rows):
        verdicts.insert(0, regression.comparison_conclusion(report.rows))
    failed = [row for row in report.rows if row.failed]
    if failed:
        verdicts.insert(0, capitalized(outputs(report.rows)))
    bad = failed or any(row.compared and row.compared.verdict == regression.SLOWER for row in report.rows)
    checked = any(row.was_compared for row in report.rows)
    number, words = headline(report.rows)
    return {
        "passed": False if bad else True if checked else None,
        "verdicts": [*dict.fromkeys(verdicts)],
        "failures": failures(report.rows),
        "headline": (number, words) if number and not report.ablation else None,
    }


def _facts(rows: Sequence[Row]) -> dict[str, object]:
    return {
        "date": tables.date_text(rows),
        "machine": ", ".join(dict.fromkeys(row.device for row in rows)),
        "execution provider": ", ".join(dict.fromkeys(row.provider for row in rows)),
        "settings": tables.settings(rows),
        "time ratios": tables.legend(rows).removeprefix("time ratio: "),
        "prompt": "; ".join(dict.fromkeys(row.prompt for row in rows if row.prompt)),
        "versions": tables.versions_text(rows),
        "noise": (noise_warning(rows) or "").removeprefix("noisy: "),
    }


@dataclass(frozen=True)
class _ShownImage:
    """An image under its name; ``comparable`` where a reference of its size stands beside it."""

    name: str
    pair: ImagePair
    similarity: str
    comparable: bool


def _images(report: BenchReport) -> list[_ShownImage]:
    return [
        _ShownImage(name, pair, image_maps.similarity(pair), image_maps.comparable(pair))
        for pair, name in zip(report.images, image_labels(report), strict=True)
    ]


def _tables(report: BenchReport) -> dict[str, Table | str]:
    lines, bad = regression.lines(report.rows), ("FAILED", regression.SLOWER)
    compared = section(
        "Against the saved benchmark", regression.TITLES, lines, left=regression.LEFT, wide=("why",), bad=bad
    )
    if report.ablation:
        words = ablation_table.ablation_caption(report.ablation)
        return {"table": _ablation_table(report.ablation), "caption": words, "compared": compared}
    heads, lines = tables.short_cells(report.rows)
    return {
        "table": section("Rows", heads, lines, left=("component", "pipeline", "time ratio", "output")),
        "all_numbers": section("", *tables.cells(report.rows), left=tables.LEFT, wide=("output",)),
        "caption": tables.caption(report.rows),
        "compared": compared,
    }


def _ablation_table(found: Ablation) -> Table:
    batch, *heads = ablation_table.titles(found)
    several = len(ablation_table.batches(found)) > 1
    heads.insert(1, batch)  # on phones the first column stays
    lines = [[step, size if several else "", *rest] for size, step, *rest in ablation_table.lines(found)]
    return section("Ablation", heads, lines, left=ablation_table.LEFT, wide=("verify", "graph"))


def _plot(plot: Plot) -> tuple[str, Drawing, Drawing | None] | None:
    """Its words, and drawings for windows and for phones; None where there is nothing to draw."""
    wide = _drawing(plot.draw)
    return None if wide is None else (plot.words, wide, plot.narrow and _drawing(plot.narrow))


def _drawing(draw: PlotFigure) -> Drawing | None:
    with plain_drawing():
        light, dark = draw(LIGHT), draw(DARK)
        return None if light is None or dark is None else Drawing(_svg(light), _svg(dark))


def _svg(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()
