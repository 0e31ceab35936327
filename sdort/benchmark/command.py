"""The benchmark of a pipeline: :func:`sdort.bench`, which ``sdort bench`` calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sdort.benchmark import regression, row_table
from sdort.benchmark.ablation import Ablation, ablate
from sdort.benchmark.bench_options import BenchKeywords, BenchOptions, BenchResults
from sdort.benchmark.measure import Measurement, measure_pipeline
from sdort.benchmark.noise import noise_warning, save_warnings
from sdort.benchmark.regression import as_saved, load_rows
from sdort.benchmark.report import ablation_table
from sdort.benchmark.report.theme import require_matplotlib
from sdort.benchmark.rows import Row
from sdort.benchmark.setup import apply_preset
from sdort.benchmark.timing import LEAST
from sdort.console import say, to_json, warn
from sdort.errors import UsageError
from sdort.files.staging import check_output_file, check_output_folder, real, write_atomically
from sdort.first_use.find_pipeline import is_checkpoint, named_path, pipeline_folder
from sdort.options.declared_options import made_of
from sdort.options.option_types import typed, with_options
from sdort.providers.runtime_options import ExecutionOptions, RuntimeOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

MARGIN = 10.0
"""Percent by which a row may be slower than the saved one."""


@dataclass(frozen=True)
class Files:
    """Files that a benchmark writes, each None where it is not asked for.

    Attributes:
        form: of ``output``: ``csv``, ``json`` or ``markdown``; ``table`` is written as Markdown.
        output: the result.
        save: every timed call, to be compared with later.
        report: an HTML page with plots, tables and images.
        plots: a folder for the plots as PNG files.
        overwrite: replace those that exist.
        reads: files and folders that are read; none of them is replaced.
    """

    form: str
    output: Path | None
    save: Path | None
    report: Path | None
    plots: Path | None
    overwrite: bool
    reads: Sequence[Path] = ()

    def check(self) -> None:
        """Refuse what cannot be written, before anything is measured.

        Raises:
            OutputError: a folder is missing or not writable, or a file exists that is not to be replaced.
            UsageError: matplotlib is not installed.
        """
        if self.report or self.plots:
            require_matplotlib()
        files = [file for file in (self.output, self.save, self.report, self.plots) if file is not None]
        if len({real(file) for file in files}) < len(files):
            raise UsageError("two of --output, --save, --report and --plots name the same file")
        for file in (self.output, self.save, self.report):
            if file is not None:
                check_output_file(file, self.overwrite, self.reads)
        if self.plots:
            check_output_folder(self.plots, self.overwrite)


@with_options(ExecutionOptions, BenchOptions, BenchResults)
@typed
def bench(
    pipeline: str | Path,
    *,
    command_line: str = "",
    on_measured: Callable[[Measurement | Ablation], None] | None = None,
    **options: Unpack[BenchKeywords],
) -> Measurement | Ablation:
    """Measure a pipeline: latency, memory and correctness of each component and of the whole.

    Outputs are checked before they are timed: finite, not constant, repeatable, and equal to the reference within a
    stated tolerance. A row that fails the check has no times.

    Args:
        pipeline: a folder of ONNX components, a checkpoint as for :func:`sdort.load`, or a diffusers folder for the
            torch engines.
        options: where and how the models run, what is measured, and what is made of it.
        command_line: shown in the report, so that people can measure again.
        on_measured: called with the result before anything is plotted.

    Returns:
        The rows; with ``ablation`` the steps. What failed or is slower is not raised: see ``raise_if_failed()``.

    Raises:
        UsageError: parameters that exclude each other, or a value that the pipeline cannot do.
        BadModelError: there is no pipeline.
        ProviderError: the provider does not load, and ``fallback`` is not True.
        OutputError: a file cannot be written, or exists without ``overwrite``; raised before anything is measured.

    Example:
        >>> result = sdort.bench("fast", provider="cpu", components=["unet"])
        >>> [row.median_ms for row in result.rows]
        [3.1]
    """
    asked = made_of(BenchResults, options)
    batch_sizes = options.get("batch_sizes") or ((1, 8) if asked.ablation else (1,))
    measured = made_of(BenchOptions, {**options, "batch_sizes": batch_sizes}, runtime=made_of(RuntimeOptions, options))
    _refuse_other_pipelines(asked, measured)
    _refuse_unused_limits(asked.compare, asked.across, asked.margin)
    _refuse_few_calls(asked.compare, measured.repeat)
    reads = [Path(read) for read in (pipeline, measured.baseline, measured.reference, measured.checkpoint) if read]
    files = Files(asked.form, asked.output, asked.save, asked.report, asked.plots, asked.overwrite, reads)
    files.check()
    path = _folder(pipeline, measured)
    if asked.preset:
        measured = apply_preset(asked.preset, path, measured)
    saved = load_rows(asked.compare) if asked.compare else None
    if asked.save and measured.repeat < LEAST:  # told now: measuring may take an hour
        enough = f"it needs --repeat {LEAST} or more, not {measured.repeat}"
        warn(f"--compare will not be able to judge what is saved: {enough}")
    result = ablate(path, measured) if asked.ablation else measure_pipeline(path, measured)
    if saved is not None:
        allowed = MARGIN if asked.margin is None else asked.margin
        regression.compare_with_saved(result.rows, saved, allowed / 100, asked.across)
    _write(result, files)
    if on_measured:
        on_measured(result)
    _warn_of_noise(result.rows, files)
    _draw(result, files, path, measured, command_line)
    return result


def _folder(pipeline: str | Path, options: BenchOptions) -> Path:
    """The pipeline's folder; a checkpoint is made ready, unless torch alone runs it."""
    place = named_path(pipeline)
    alone = is_checkpoint(place) and "onnxruntime" not in (options.engines or (options.engine,))
    return Path(place) if alone else pipeline_folder(place, options.runtime)


def _refuse_other_pipelines(asked: BenchResults, measured: BenchOptions) -> None:
    """Raise UsageError where options ask for pipelines beside each other that cannot stand so."""
    other = measured.engine != "onnxruntime"
    if asked.ablation and (measured.baseline or measured.engines or other or measured.placement):
        raise UsageError(
            "--ablation compares variants of one pipeline: no --baseline, --engine, --engines or --placement"
        )
    if measured.engines and (measured.baseline or other):
        raise UsageError("--engines stands alone: no --engine, no --baseline")


def _refuse_unused_limits(compare: object, across: Sequence[str], margin: float | None) -> None:
    """Raise UsageError where it is said how to compare, and not with what."""
    if not compare and (across or margin is not None):
        raise UsageError("--margin and --across say how to judge: they want --compare")


def _refuse_few_calls(compare: object, repeat: int) -> None:
    """Raise UsageError where so few calls are asked for that no comparison can judge them."""
    if compare and repeat < LEAST:
        raise UsageError(f"--compare needs {LEAST} timed calls or more, not --repeat {repeat}")


def _warn_of_noise(rows: Sequence[Row], files: Files) -> None:
    if noisy := noise_warning(rows):
        warn(noisy)
    if files.save:
        for reason in save_warnings(rows):
            warn(f"{files.save}: {reason}")


def _write(result: Measurement | Ablation, files: Files) -> None:
    if files.save:
        write_atomically(files.save, as_saved(result.rows))
        say(f"wrote {files.save}")
    if files.output:
        write_atomically(files.output, as_text(result, "markdown" if files.form == "table" else files.form))
        say(f"wrote {files.output}")


def as_text(result: Measurement | Ablation, form: str) -> str:
    """A result as ``csv``, ``json`` or ``markdown``."""
    if form == "json":
        return json.dumps(to_json(result), indent=2) + "\n"
    measured = result.rows
    text = ablation_table.as_text(result, form) if isinstance(result, Ablation) else row_table.as_text(measured, form)
    compared = form == "markdown" and any(row.compared for row in measured)
    return f"{text}\n{regression.comparison_markdown(measured)}" if compared else text


def _draw(result: Measurement | Ablation, files: Files, path: Path, options: BenchOptions, command_line: str) -> None:
    """Plots and report; of an ablation without rooflines, as its variants are gone by now."""
    if not (files.report or files.plots):
        return
    from sdort.benchmark.report.benchmark_page import add_rooflines, benchmark_page, benchmark_report, write_plots

    if isinstance(result, Ablation):
        page = benchmark_report(result, f"sdort bench --ablation {result.original}")
    else:
        page = benchmark_report(result, f"sdort bench {path.resolve().name}")
        add_rooflines(page, path, options)
    page.command_line = command_line
    if files.plots:
        write_plots(page, files.plots)
    if files.report:
        write_atomically(files.report, benchmark_page(page))
        say(f"wrote {files.report}")
