"""``sdort bench``: measure, then write the results; bad ones are errors. Output files are checked first."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdort.benchmark import regression, rows
from sdort.benchmark.ablation import Ablation, ablate
from sdort.benchmark.failures import failures, listed, refuse_failed
from sdort.benchmark.measure import Measurement, measure
from sdort.benchmark.regression import as_saved, compare, load, refuse_slower
from sdort.benchmark.report import ablation_table
from sdort.benchmark.report.theme import require_matplotlib
from sdort.benchmark.rows import Row
from sdort.benchmark.setup import BenchOptions
from sdort.console import say, show, show_text, to_json
from sdort.errors import OutputError, ParityError, SdortError
from sdort.staging import write_atomically


@dataclass(frozen=True)
class OutputOptions:
    """Outputs of a benchmark.

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
            UsageError: matplotlib is not installed.
        """
        if self.report or self.plots:
            require_matplotlib()
        for file in (self.output, self.save, self.report, self.plots):
            if file is not None and not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
                raise OutputError(f"cannot write to the folder {file.parent}", hint="Create it, or choose another.")


def run_bench(path: Path, options: BenchOptions, outputs: OutputOptions) -> list[Row]:
    """Measure a pipeline and write its rows.

    Raises:
        OutputError: a result cannot be written.
        ParityError: a row failed its check; everything is written first.
        RegressionError: a row is slower than the saved one.
    """
    outputs.check()
    saved = load(outputs.compare) if outputs.compare else None
    result = measure(path, options)
    _compare_and_save(result.rows, saved, outputs)

    def finish() -> None:
        _write_report(result, outputs, f"sdort bench {path.resolve().name}", options, path)
        refuse_failed(result.rows)
        refuse_slower(result.rows)

    _output(result, outputs, finish)
    return result.rows


def run_ablation(path: Path, options: BenchOptions, outputs: OutputOptions) -> Ablation:
    """Measure an ablation and write it.

    Raises:
        OutputError: a result cannot be written.
        ParityError: a step could not be made or a row failed its check; everything is written first.
        RegressionError: a row is slower than the saved one.
    """
    outputs.check()
    saved = load(outputs.compare) if outputs.compare else None
    result = ablate(path, options)
    _compare_and_save(result.measured.rows, saved, outputs)

    def finish() -> None:
        _write_report(result, outputs, f"sdort bench --ablation {result.original}", options)
        _refuse_unmade(result)
        refuse_failed(result.measured.rows)
        refuse_slower(result.measured.rows)

    _output(result, outputs, finish)
    return result


def _compare_and_save(rows: Sequence[Row], saved: Sequence[Row] | None, outputs: OutputOptions) -> None:
    """Compare with what was saved, and save."""
    if saved is not None:
        compare(rows, saved, outputs.margin, outputs.across)
    if outputs.save:
        write_atomically(outputs.save, as_saved(rows))


def _refuse_unmade(result: Ablation) -> None:
    unmade = [f"the step {stage.name!r} could not be made: {stage.problem}" for stage in result.stages if stage.problem]
    if unmade:
        problems = [*unmade, *failures(result.measured.rows)]
        raise ParityError(f"{len(unmade)} of {len(result.stages)} steps could not be made:{listed(problems)}")


def _output(result: Measurement | Ablation, outputs: OutputOptions, finish: Callable[[], None]) -> None:
    """Write the result; ``finish`` writes the report and raises if a row is bad."""
    together = outputs.whole and outputs.output is None
    if not together:
        _write(result, outputs)
    try:
        finish()
    except SdortError as error:
        if together:
            error.record = to_json(result)
        raise
    if together:
        _write(result, outputs)


def _write(result: Measurement | Ablation, outputs: OutputOptions) -> None:
    text = outputs.form if outputs.form != "table" else "markdown" if outputs.output else ""
    if not text:
        _show_tables(result)
    elif outputs.output is None:
        show_text(_text(result, text))
    else:
        write_atomically(outputs.output, _text(result, text))
        say(f"wrote {outputs.output}")


def _show_tables(result: Measurement | Ablation) -> None:
    measured = _rows(result)
    show(ablation_table.as_table(result) if isinstance(result, Ablation) else rows.as_table(measured))
    if any(row.compared for row in measured):
        show(regression.as_table(measured))


def _text(result: Measurement | Ablation, form: str) -> str:
    measured = _rows(result)
    text = ablation_table.as_text(result, form) if isinstance(result, Ablation) else rows.as_text(measured, form)
    compared = form == "markdown" and any(row.compared for row in measured)
    return f"{text}\n{regression.as_markdown(measured)}" if compared else text


def _rows(result: Measurement | Ablation) -> list[Row]:
    """Measured rows, each once."""
    return result.measured.rows if isinstance(result, Ablation) else result.rows


def _write_report(
    result: Measurement | Ablation, outputs: OutputOptions, title: str, options: BenchOptions, path: Path | None = None
) -> None:
    """Plots and report; ``path`` is the pipeline where it is still there to be profiled."""
    if not (outputs.report or outputs.plots):
        return
    from sdort.benchmark.report.page import add_rooflines, html_report, report_of, write_plots

    report = report_of(result, title)
    if path is not None:
        add_rooflines(report, path, options)
    if outputs.plots:
        write_plots(report, outputs.plots)
    if outputs.report:
        write_atomically(outputs.report, html_report(report))
        say(f"wrote {outputs.report}")
