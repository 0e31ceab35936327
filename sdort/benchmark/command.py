"""What ``sdort bench`` does around measuring: files are checked first, results are delivered, bad ones are errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdort.benchmark import regression, rows
from sdort.benchmark.ablation import Ablation, ablate
from sdort.benchmark.delivery import failures, listed, refuse_failed, show_text
from sdort.benchmark.measure import Measurement, measure
from sdort.benchmark.regression import as_saved, compare, load, refuse_slower
from sdort.benchmark.report import ablation_table
from sdort.benchmark.report.theme import require_matplotlib
from sdort.benchmark.rows import Row
from sdort.benchmark.setup import BenchOptions
from sdort.console import say, show, to_json
from sdort.errors import OutputError, ParityError, SdortError
from sdort.staging import write_atomically


@dataclass(frozen=True)
class OutputOptions:
    """Where results go.

    Attributes:
        form: ``table``, ``csv``, ``json`` or ``markdown``; a file gets a table as Markdown.
        output: a file for the result, instead of stdout.
        save: a file for :mod:`sdort.benchmark.regression`, to be compared with later.
        report: an HTML file with plots, tables and images.
        plots: a folder for the plots as PNG files.
        compare: such a file, to be compared with now; ``margin`` and ``across`` are for that.
        whole: an error on stdout holds the result, so the result is not printed before it.
    """

    form: str = "table"
    output: Path | None = None
    report: Path | None = None
    plots: Path | None = None
    save: Path | None = None
    compare: Path | None = None
    margin: float = 0.1
    across: Sequence[str] = ()
    whole: bool = False

    def check(self) -> None:
        """Find out before anything is measured what cannot be written.

        Raises:
            OutputError: a folder is missing or not writable.
            UsageError: what draws the plots is not installed.
        """
        if self.report or self.plots:
            require_matplotlib()
        for file in (self.output, self.save, self.report, self.plots):
            if file is not None and not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
                raise OutputError(f"cannot write to the folder {file.parent}", hint="Create it, or choose another.")


def run_bench(path: Path, options: BenchOptions, delivery: OutputOptions) -> list[Row]:
    """Measure a pipeline and deliver its rows.

    Raises:
        OutputError: a result cannot be written.
        ParityError: a row failed its check; everything is delivered first.
        RegressionError: a row is slower than the saved one.
    """
    delivery.check()
    saved = load(delivery.compare) if delivery.compare else None
    found = measure(path, options)
    _compare_and_save(found.rows, saved, delivery)

    def finish() -> None:
        _write_report(found, delivery, f"sdort bench {path.resolve().name}", options, path)
        refuse_failed(found.rows)
        refuse_slower(found.rows)

    _output(found, delivery, finish)
    return found.rows


def run_ablation(path: Path, options: BenchOptions, delivery: OutputOptions) -> Ablation:
    """Measure an ablation and deliver it.

    Raises:
        OutputError: a result cannot be written.
        ParityError: a step could not be made or a row failed its check; everything is delivered first.
        RegressionError: a row is slower than the saved one.
    """
    delivery.check()
    saved = load(delivery.compare) if delivery.compare else None
    found = ablate(path, options)
    _compare_and_save(found.measured.rows, saved, delivery)

    def finish() -> None:
        _write_report(found, delivery, f"sdort bench --ablation {found.original}", options)
        _refuse_unmade(found)
        refuse_failed(found.measured.rows)
        refuse_slower(found.measured.rows)

    _output(found, delivery, finish)
    return found


def _compare_and_save(found: Sequence[Row], saved: Sequence[Row] | None, delivery: OutputOptions) -> None:
    """Compare with what was saved, and save."""
    if saved is not None:
        compare(found, saved, delivery.margin, delivery.across)
    if delivery.save:
        write_atomically(delivery.save, as_saved(found))


def _refuse_unmade(found: Ablation) -> None:
    unmade = [f"the step {stage.name!r} could not be made: {stage.problem}" for stage in found.stages if stage.problem]
    if unmade:
        told = [*unmade, *failures(found.measured.rows)]
        raise ParityError(f"{len(unmade)} of {len(found.stages)} steps could not be made:{listed(told)}")


def _output(found: Measurement | Ablation, delivery: OutputOptions, finish: Callable[[], None]) -> None:
    """Hand over what was measured; ``finish`` draws it and raises if it is not as it should be."""
    together = delivery.whole and delivery.output is None
    if not together:
        _write(found, delivery)
    try:
        finish()
    except SdortError as error:
        if together:
            error.record = to_json(found)
        raise
    if together:
        _write(found, delivery)


def _write(found: Measurement | Ablation, delivery: OutputOptions) -> None:
    text = delivery.form if delivery.form != "table" else "markdown" if delivery.output else ""
    if not text:
        _show_tables(found)
    elif delivery.output is None:
        show_text(_text(found, text))
    else:
        write_atomically(delivery.output, _text(found, text))
        say(f"wrote {delivery.output}")


def _show_tables(found: Measurement | Ablation) -> None:
    measured = _rows(found)
    show(ablation_table.as_table(found) if isinstance(found, Ablation) else rows.as_table(measured))
    if any(row.compared for row in measured):
        show(regression.as_table(measured))


def _text(found: Measurement | Ablation, form: str) -> str:
    measured = _rows(found)
    text = ablation_table.as_text(found, form) if isinstance(found, Ablation) else rows.as_text(measured, form)
    compared = form == "markdown" and any(row.compared for row in measured)
    return f"{text}\n{regression.as_markdown(measured)}" if compared else text


def _rows(found: Measurement | Ablation) -> list[Row]:
    """What was measured, each once."""
    return found.measured.rows if isinstance(found, Ablation) else found.rows


def _write_report(
    found: Measurement | Ablation, delivery: OutputOptions, title: str, options: BenchOptions, path: Path | None = None
) -> None:
    """Plots and report; ``path`` is the pipeline where it is still there to be profiled."""
    if not (delivery.report or delivery.plots):
        return
    from sdort.benchmark.report.page import add_rooflines, html_report, report_of, write_plots

    book = report_of(found, title)
    if path is not None:
        add_rooflines(book, path, options)
    if delivery.plots:
        write_plots(book, delivery.plots)
    if delivery.report:
        write_atomically(delivery.report, html_report(book))
        say(f"wrote {delivery.report}")
