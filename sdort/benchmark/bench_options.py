"""Options of a benchmark, each declared once; ``scripts/option_keywords.py`` writes the keyword arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sdort.options.declared_options import option, option_of, ranges_of
from sdort.options.number_ranges import BATCH_SIZE, STEPS, check_fields, check_sizes
from sdort.providers.runtime_options import ExecutionKeywords, RuntimeOptions
from sdort.workload.size_options import SizeOptions

TORCH_ENGINES = ("torch", "torch-compile")
ENGINES = ("onnxruntime", *TORCH_ENGINES)
PRESETS = ("mlperf-sdxl",)


@dataclass(frozen=True)
class BenchOptions:
    """Options of the measurement.

    Raises:
        UsageError: a number is out of its range.
    """

    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    engine: str = option(
        "onnxruntime",
        section="Comparison",
        choices=ENGINES,
        help="What runs PIPELINE. The torch engines run the checkpoint behind it.",
        doc="``onnxruntime``, ``torch`` or ``torch-compile``; torch engines run the checkpoint behind the pipeline.",
    )
    engines: Sequence[str] = option(
        (),
        section="Comparison",
        form="engines",
        metavar="ENGINE,...",
        help="Engines to measure, one call of each in turn. All get the same noise and scheduler. Ratios are to the "
        "first engine. On the CPU, torch runs in fp32.",
        doc="Measure in all of these, call by call in turn; ratios are to the first.",
    )
    checkpoint: Path | None = option(
        None,
        section="Comparison",
        form="existing",
        unset="from the manifest",
        help="Checkpoint for the torch engines: a diffusers folder or a single file.",
        doc="Checkpoint of torch engines, a diffusers folder or a single file; by default as the manifest says.",
    )
    baseline: Path | None = option(
        None,
        section="Comparison",
        form="baseline",
        metavar="PATH|torch|torch-compile",
        help="Measure this pipeline too, and print ratios. The two pipelines take turns, call by call. A diffusers "
        "folder or a single file runs in torch. torch and torch-compile mean the checkpoint behind PIPELINE.",
        doc="A pipeline to measure too, call by call in turn; ``torch`` and ``torch-compile`` stand for the checkpoint "
        "behind ``pipeline``.",
    )
    baseline_engine: str | None = option(
        None,
        section="Comparison",
        choices=ENGINES,
        unset="by content",
        help="What runs the baseline.",
        doc="Engine of the baseline; by default as its content demands.",
    )
    reference: Path | None = option(
        None,
        section="Comparison",
        form="existing",
        unset="the baseline, else the original that the manifest names",
        help="Compare outputs with this pipeline. Its components run on the CPU in fp32, its images on the provider.",
        doc="The pipeline whose outputs are right; by default the baseline, else the original of the manifest.",
    )
    components: Sequence[str] = option(
        (),
        section="Measurement",
        flags=("--component",),
        metavar="NAME",
        unset="all, and the pipeline",
        help="Measure only this (repeatable): the name of a component, or pipeline.",
        doc="Names of components, or ``pipeline``; all if empty.",
    )
    batch_sizes: Sequence[int] = option_of(
        SizeOptions,
        "batch_sizes",
        (),
        section="Measurement",
        unset="1; 1,8 with --ablation",
        help="Samples per call of a component. For the pipeline: images per run.",
        doc="Samples of a component, images of the pipeline; 1 if empty, 1 and 8 with ``ablation``.",
    )
    sizes: Sequence[tuple[int, int]] = option_of(SizeOptions, "sizes", section="Measurement")
    steps: int = option(
        20,
        section="Measurement",
        within=STEPS,
        help="Denoising steps of the pipeline.",
        doc="Denoising steps of the pipeline.",
    )
    scheduler: str | None = option(
        None,
        section="Measurement",
        metavar="NAME",
        unset="the pipeline's own",
        completes="schedulers",
        help="Scheduler; sdort run takes the same names.",
        doc="As for :meth:`Pipeline.generate`.",
    )
    warmup: int = option(
        3,
        section="Measurement",
        within=(0, 100_000, "more calls change nothing"),
        help="Number of calls after the first that are not timed.",
        doc="Calls after the first that are not timed.",
    )
    repeat: int = option(
        10,
        section="Measurement",
        within=(1, 100_000, "more calls make no result more certain, and each is kept"),
        help="Number of timed calls.",
        doc="Timed calls.",
    )
    placement: bool = option(
        False,
        section="Results",
        help="Show which operators run on which execution provider, and how long.",
        doc="Also measure which operators run on which execution provider.",
    )

    def __post_init__(self) -> None:
        check_fields(self, *ranges_of(BenchOptions).values())
        object.__setattr__(self, "batch_sizes", BATCH_SIZE.check_all(self.batch_sizes or (1,)))
        object.__setattr__(self, "sizes", check_sizes(self.sizes))


@dataclass(frozen=True)
class BenchResults:
    """Options of the outputs that are made of the measurements."""

    preset: str | None = option(
        None,
        section="Measurement",
        choices=PRESETS,
        help="Settings of MLPerf for SDXL, whatever other options say. These are 1024x1024, 20 steps, Euler, batch 1.",
        doc="``mlperf-sdxl``: MLPerf's settings for SDXL, whatever other parameters say.",
    )
    ablation: bool = option(
        False,
        section="Comparison",
        help="Measure what each group of fusions gains. The rows are fp32 and fp16 without fusions, then each group "
        "added, made from PIPELINE's original.",
        doc="Measure fp32 and fp16 without fusions, then each group of fusions added.",
    )
    save: Path | None = option(
        None,
        section="Regressions",
        form="file",
        help="Keep every timed call in a file, for --compare. With --ablation: those of each step.",
        doc="A file that keeps every timed call, for ``compare``.",
    )
    compare: Path | None = option(
        None,
        section="Regressions",
        form="existing file",
        help="Compare each row with a file of --save. A row is faster, slower, the same or not comparable. The exit "
        "code is 8 if one row is slower, and 2 if none could be compared.",
        doc="Such a file; each row is then faster, slower, same or not comparable.",
    )
    margin: float | None = option(
        None,
        section="Regressions",
        within=(0.0, 1000.0, "it is in percent"),
        metavar="PERCENT",
        unset="10",
        help="With --compare: a row is slower if it loses more than this, with 95 % confidence.",
        doc="With ``compare``: percent by which a row may be slower; by default 10.",
    )
    across: Sequence[str] = option(
        (),
        section="Regressions",
        choices=("device", "versions", "model"),
        help="With --compare: compare although this differs (repeatable).",
        doc="With ``compare``: compare although this differs: ``device``, ``versions``, ``model``.",
    )
    form: str = option(
        "table",
        section="Results",
        flags=("--format",),
        choices=("table", "csv", "json", "markdown"),
        help="Format of the printed result.",
        doc="The form of ``output``: ``markdown`` (also for ``table``), ``csv`` or ``json``.",
    )
    output: Path | None = option(
        None,
        section="Results",
        flags=("-o", "--output"),
        form="file",
        help="Write the result to a file.",
        doc="A file for the result.",
    )
    report: Path | None = option(
        None,
        section="Results",
        form="file",
        help="Write one HTML page with plots and images. It needs matplotlib: the extra 'report'.",
        doc="An HTML page to write, with plots, tables and images (needs matplotlib).",
    )
    plots: Path | None = option(
        None,
        section="Results",
        form="folder",
        help="Write the plots as PNG files to this folder, for light and for dark pages.",
        doc="A folder for the plots as PNG files (needs matplotlib).",
    )
    overwrite: bool = option(
        False,
        section="Results",
        help="Replace the files of --save, --output, --report and --plots.",
        doc="Replace ``output``, ``save``, ``report`` and ``plots`` where they exist.",
    )


# Written by scripts/option_keywords.py from what is declared above.


class BenchKeywords(ExecutionKeywords, total=False):
    """Options of :func:`sdort.bench`, all optional."""

    engine: str
    """``onnxruntime``, ``torch`` or ``torch-compile``; torch engines run the checkpoint behind the pipeline."""
    engines: Sequence[str]
    """Measure in all of these, call by call in turn; ratios are to the first."""
    checkpoint: str | Path | None
    """Checkpoint of torch engines, a diffusers folder or a single file; by default as the manifest says."""
    baseline: str | Path | None
    """A pipeline to measure too, call by call in turn; ``torch`` and ``torch-compile`` stand for the checkpoint behind
    ``pipeline``."""
    baseline_engine: str | None
    """Engine of the baseline; by default as its content demands."""
    reference: str | Path | None
    """The pipeline whose outputs are right; by default the baseline, else the original of the manifest."""
    components: Sequence[str]
    """Names of components, or ``pipeline``; all if empty."""
    batch_sizes: Sequence[int]
    """Samples of a component, images of the pipeline; 1 if empty, 1 and 8 with ``ablation``."""
    sizes: Sequence[tuple[int, int]]
    """Heights and widths of images in pixels; the model's own if empty."""
    steps: int
    """Denoising steps of the pipeline."""
    scheduler: str | None
    """As for :meth:`Pipeline.generate`."""
    warmup: int
    """Calls after the first that are not timed."""
    repeat: int
    """Timed calls."""
    placement: bool
    """Also measure which operators run on which execution provider."""
    preset: str | None
    """``mlperf-sdxl``: MLPerf's settings for SDXL, whatever other parameters say."""
    ablation: bool
    """Measure fp32 and fp16 without fusions, then each group of fusions added."""
    save: str | Path | None
    """A file that keeps every timed call, for ``compare``."""
    compare: str | Path | None
    """Such a file; each row is then faster, slower, same or not comparable."""
    margin: float | None
    """With ``compare``: percent by which a row may be slower; by default 10."""
    across: Sequence[str]
    """With ``compare``: compare although this differs: ``device``, ``versions``, ``model``."""
    form: str
    """The form of ``output``: ``markdown`` (also for ``table``), ``csv`` or ``json``."""
    output: str | Path | None
    """A file for the result."""
    report: str | Path | None
    """An HTML page to write, with plots, tables and images (needs matplotlib)."""
    plots: str | Path | None
    """A folder for the plots as PNG files (needs matplotlib)."""
    overwrite: bool
    """Replace ``output``, ``save``, ``report`` and ``plots`` where they exist."""
