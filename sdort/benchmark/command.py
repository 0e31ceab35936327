"""The benchmark of a pipeline: :func:`sdort.bench`, which ``sdort bench`` calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdort.benchmark import regression, row_table
from sdort.benchmark.ablation import Ablation, ablate
from sdort.benchmark.measure import Measurement, measure_pipeline
from sdort.benchmark.noise import noise_warning, save_warnings
from sdort.benchmark.regression import as_saved, load_rows
from sdort.benchmark.report import ablation_table
from sdort.benchmark.report.theme import require_matplotlib
from sdort.benchmark.rows import Row
from sdort.benchmark.setup import BenchOptions, apply_preset
from sdort.benchmark.timing import LEAST
from sdort.console import say, to_json, warn
from sdort.errors import UsageError
from sdort.errors.number_ranges import MARGIN as PERCENT
from sdort.errors.option_types import typed
from sdort.first_use.find_pipeline import is_checkpoint, named_path, pipeline_folder
from sdort.providers import AUTO
from sdort.providers.runtime_options import RuntimeOptions
from sdort.staging import check_output_file, check_output_folder, real, write_atomically

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


@typed
def bench(
    pipeline: str | Path,
    *,
    provider: str = AUTO,
    tuning: bool = False,
    graph: bool = False,
    fallback: bool | None = None,
    device_id: int = 0,
    provider_options: Mapping[str, str] | None = None,
    split: bool = True,
    custom_ops: str = "auto",
    check: bool = True,
    engine: str = "onnxruntime",
    engines: Sequence[str] = (),
    checkpoint: str | Path | None = None,
    baseline: str | Path | None = None,
    baseline_engine: str | None = None,
    reference: str | Path | None = None,
    components: Sequence[str] = (),
    batch_sizes: Sequence[int] = (),
    sizes: Sequence[tuple[int, int]] = (),
    steps: int = 20,
    scheduler: str | None = None,
    warmup: int = 3,
    repeat: int = 10,
    preset: str | None = None,
    save: str | Path | None = None,
    compare: str | Path | None = None,
    margin: float | None = None,
    across: Sequence[str] = (),
    ablation: bool = False,
    placement: bool = False,
    form: str = "table",
    output: str | Path | None = None,
    report: str | Path | None = None,
    plots: str | Path | None = None,
    overwrite: bool = False,
    command_line: str = "",
    on_measured: Callable[[Measurement | Ablation], None] | None = None,
) -> Measurement | Ablation:
    """Measure a pipeline: latency, memory and correctness of each component and of the whole.

    Outputs are checked before they are timed: finite, not constant, repeatable, and equal to the reference within a
    stated tolerance. A row that fails the check has no times.

    Args:
        pipeline: a folder of ONNX components, a checkpoint as for :func:`sdort.load`, or a diffusers folder for the
            torch engines.
        provider: as for :func:`sdort.load`, and so are ``tuning``, ``graph``, ``fallback``, ``device_id``,
            ``provider_options``, ``split``, ``custom_ops`` and ``check``.
        engine: ``onnxruntime``, ``torch`` or ``torch-compile``; torch engines run the checkpoint behind the pipeline.
        engines: measure in all of these, call by call in turn; ratios are to the first.
        checkpoint: what torch engines run, a diffusers folder or a single file; by default as the manifest says.
        baseline: a pipeline to measure too, call by call in turn; ``torch`` and ``torch-compile`` stand for the
            checkpoint behind ``pipeline``.
        baseline_engine: what runs the baseline; by default as its content demands.
        reference: the pipeline whose outputs are right; by default the baseline, else the original of the manifest.
        components: names of components, or ``pipeline``; all if empty.
        batch_sizes: samples of a component, images of the pipeline; 1 if empty, 1 and 8 with ``ablation``.
        sizes: heights and widths of images in pixels; the model's own if empty.
        steps: denoising steps of the pipeline.
        scheduler: as for :meth:`Pipeline.generate`.
        warmup: calls after the first that are not timed.
        repeat: timed calls.
        preset: ``mlperf-sdxl``: MLPerf's settings for SDXL, whatever other parameters say.
        save: a file that keeps every timed call, for ``compare``.
        compare: such a file; each row is then faster, slower, same or not comparable.
        margin: with ``compare``: percent by which a row may be slower; by default 10.
        across: with ``compare``: compare although this differs: ``device``, ``versions``, ``model``.
        ablation: measure fp32 and fp16 without fusions, then each group of fusions added.
        placement: also measure which operators run on which execution provider.
        form: the form of ``output``: ``markdown`` (also for ``table``), ``csv`` or ``json``.
        output: a file for the result.
        report: an HTML page to write, with plots, tables and images (needs matplotlib).
        plots: a folder for the plots as PNG files (needs matplotlib).
        overwrite: replace ``output``, ``save``, ``report`` and ``plots`` where they exist.
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
    _refuse_other_pipelines(ablation, placement, baseline, engine, engines)
    _refuse_unused_limits(compare, across, margin)
    allowed = MARGIN if margin is None else PERCENT.check(margin)
    _refuse_few_calls(compare, repeat)
    options = BenchOptions(
        runtime=RuntimeOptions(
            provider=provider,
            tuning=tuning,
            graph=graph,
            fallback=fallback,
            device_id=device_id,
            provider_options=provider_options or {},
            split=split,
            custom_ops=custom_ops,
            check=check,
        ),
        engine=engine,
        engines=engines,
        checkpoint=_path(checkpoint),
        baseline=_path(baseline),
        baseline_engine=baseline_engine,
        reference=_path(reference),
        components=components,
        batch_sizes=batch_sizes or ((1, 8) if ablation else (1,)),
        sizes=sizes,
        steps=steps,
        scheduler=scheduler,
        warmup=warmup,
        repeat=repeat,
        placement=placement,
    )
    reads = [Path(read) for read in (pipeline, baseline, reference, checkpoint) if read]
    files = Files(form, _path(output), _path(save), _path(report), _path(plots), overwrite, reads)
    files.check()
    path = _folder(pipeline, options)
    if preset:
        options = apply_preset(preset, path, options)
    saved = load_rows(Path(compare)) if compare else None
    if save and repeat < LEAST:  # told now: measuring may take an hour
        warn(f"--compare will not be able to judge what is saved: it needs --repeat {LEAST} or more, not {repeat}")
    result = ablate(path, options) if ablation else measure_pipeline(path, options)
    if saved is not None:
        regression.compare_with_saved(result.rows, saved, allowed / 100, across)
    _write(result, files)
    if on_measured:
        on_measured(result)
    _warn_of_noise(result.rows, files)
    _draw(result, files, path, options, command_line)
    return result


def _folder(pipeline: str | Path, options: BenchOptions) -> Path:
    """The pipeline's folder; a checkpoint is made ready, unless torch alone runs it."""
    place = named_path(pipeline)
    alone = is_checkpoint(place) and "onnxruntime" not in (options.engines or (options.engine,))
    return Path(place) if alone else pipeline_folder(place, options.runtime)


def _refuse_other_pipelines(
    ablation: bool, placement: bool, baseline: object, engine: str, engines: Sequence[str]
) -> None:
    """Raise UsageError where parameters ask for pipelines beside each other that cannot stand so."""
    if ablation and (baseline or engines or engine != "onnxruntime" or placement):
        raise UsageError(
            "--ablation compares variants of one pipeline: no --baseline, --engine, --engines or --placement"
        )
    if engines and (baseline or engine != "onnxruntime"):
        raise UsageError("--engines stands alone: no --engine, no --baseline")


def _refuse_unused_limits(compare: object, across: Sequence[str], margin: float | None) -> None:
    """Raise UsageError where it is said how to compare, and not with what."""
    if not compare and (across or margin is not None):
        raise UsageError("--margin and --across say how to judge: they want --compare")


def _refuse_few_calls(compare: object, repeat: int) -> None:
    """Raise UsageError where so few calls are asked for that no comparison can judge them."""
    if compare and repeat < LEAST:
        raise UsageError(f"--compare needs {LEAST} timed calls or more, not --repeat {repeat}")


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


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
