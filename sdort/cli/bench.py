"""``sdort bench``: latency, memory and parity."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sdort.cli.from_options import options_of, sections
from sdort.cli.number_types import NumberList, Real, Whole
from sdort.cli.options import complete_schedulers, placement_option, show_placement, sizes_option
from sdort.cli.sections import SectionedCommand
from sdort.errors.number_ranges import MARGIN, REPEAT, STEPS, WARMUP
from sdort.providers.runtime_options import ExecutionOptions

if TYPE_CHECKING:
    from sdort.benchmark.ablation import Ablation
    from sdort.benchmark.measure import Measurement


class Engines(click.ParamType[tuple[str, ...]]):
    """``onnxruntime,torch``."""

    name = "ENGINE,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(str(value).split(",")))
        unknown = [name for name in names if name not in _ENGINE.choices]
        if unknown:
            self.fail(f"{unknown[0]!r} is not one of {', '.join(_ENGINE.choices)}", param, ctx)
        return names


_TORCH = ("torch", "torch-compile")
_ENGINE = click.Choice(["onnxruntime", *_TORCH])


class Baseline(click.Path):
    """A path that exists, or the name of a torch engine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) in _TORCH and not Path(value).exists():
            return Path(value)
        return super().convert(value, param, ctx)


_SECTIONS = {
    **sections(ExecutionOptions),
    "Measurement": ("components", "batch_sizes", "sizes", "steps", "scheduler", "warmup", "repeat", "preset"),
    "Comparison": (
        "engine", "engines", "checkpoint", "baseline", "baseline_engine", "reference", "ablation",
    ),
    "Regressions": ("save", "compare", "margin", "across"),
    "Results": ("placement", "form", "as_json", "output", "report", "plots", "overwrite"),
}  # fmt: skip
_ARGUMENTS = "sdort.bench.arguments"
"""Key of the command's arguments as they were typed: the report shows them, and the next command begins with them."""


_FILES = ("--save", "--compare", "-o", "--output", "--report", "--plots")
"""Options that name a file or folder of results."""


class _Command(SectionedCommand):
    """The command, which keeps its arguments for :data:`_ARGUMENTS`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)


@click.command(
    cls=_Command,
    sections=_SECTIONS,
    details="Memory is the growth of the process (and of the device) since before the model was opened. The first "
    "number is for loading and the first call, the second for the later warm-up calls.",
    common=(
        "provider",
        "baseline",
        "engines",
        "components",
        "batch_sizes",
        "sizes",
        "steps",
        "save",
        "compare",
        "report",
    ),
    epilog="""\b
Examples:
  sdort bench fast --provider rocm --tuning
  sdort bench fast --baseline model --batch-size 1,2,4 --size 512x512,768x512
  sdort bench fast --baseline torch
  sdort bench fast --baseline checkpoint --baseline-engine torch-compile
  sdort bench fast --ablation --provider rocm        each fusion's worth
  sdort bench fast --engines onnxruntime,torch,torch-compile
  sdort bench fast --save before.json
  sdort bench fast --compare before.json --margin 5  exit code 8 if slower
  sdort bench fast --report fast.html --plots plots
  sdort bench fast --format markdown --output table.md
""",
)
@click.argument("pipeline", type=click.Path(path_type=Path))
@options_of(ExecutionOptions)
@click.option(
    "--engine",
    type=_ENGINE,
    default="onnxruntime",
    help="What runs PIPELINE. The torch engines run the checkpoint behind it.",
)
@click.option(
    "--engines",
    type=Engines(),
    metavar="ENGINE,...",
    help="Engines to measure, one call of each in turn. All get the same noise and scheduler. Ratios are to the "
    "first engine. On the CPU, torch runs in fp32.",
)
@click.option(
    "--checkpoint",
    type=click.Path(exists=True, path_type=Path),
    show_default="from the manifest",
    help="Checkpoint for the torch engines: a diffusers folder or a single file.",
)
@click.option(
    "--baseline",
    type=Baseline(exists=True, path_type=Path),
    metavar="PATH|torch|torch-compile",
    help="Measure this pipeline too, and print ratios. The two pipelines take turns, call by call. A diffusers "
    "folder or a single file runs in torch. torch and torch-compile mean the checkpoint behind PIPELINE.",
)
@click.option("--baseline-engine", type=_ENGINE, show_default="by content", help="What runs the baseline.")
@click.option(
    "--reference",
    type=click.Path(exists=True, path_type=Path),
    show_default="the baseline, else the original that the manifest names",
    help="Compare outputs with this pipeline. Its components run on the CPU in fp32, its images on the provider.",
)
@click.option(
    "--component",
    "components",
    multiple=True,
    metavar="NAME",
    show_default="all, and the pipeline",
    help="Measure only this (repeatable): the name of a component, or pipeline.",
)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=NumberList(),
    show_default="1; 1,8 with --ablation",
    help="Samples per call of a component. For the pipeline: images per run.",
)
@sizes_option
@click.option("--steps", type=Whole(STEPS), default=20, help="Denoising steps of the pipeline.")
@click.option(
    "--scheduler",
    metavar="NAME",
    shell_complete=complete_schedulers,
    show_default="the pipeline's own",
    help="Scheduler; sdort run takes the same names.",
)
@click.option("--warmup", type=Whole(WARMUP), default=3, help="Number of calls after the first that are not timed.")
@click.option("--repeat", type=Whole(REPEAT), default=10, help="Number of timed calls.")
@click.option(
    "--preset",
    type=click.Choice(["mlperf-sdxl"]),
    help="Settings of MLPerf for SDXL, whatever other options say. These are 1024x1024, 20 steps, Euler, batch 1.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep every timed call in a file, for --compare. With --ablation: those of each step.",
)
@click.option(
    "--compare",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare each row with a file of --save. A row is faster, slower, the same or not comparable. The exit "
    "code is 8 if one row is slower, and 2 if none could be compared.",
)
@click.option(
    "--margin",
    type=Real(MARGIN),
    metavar="PERCENT",
    show_default="10",
    help="With --compare: a row is slower if it loses more than this, with 95 % confidence.",
)
@click.option(
    "--across",
    type=click.Choice(["device", "versions", "model"]),
    multiple=True,
    help="With --compare: compare although this differs (repeatable).",
)
@click.option(
    "--ablation",
    is_flag=True,
    help="Measure what each group of fusions gains. The rows are fp32 and fp16 without fusions, then each group "
    "added, made from PIPELINE's original.",
)
@placement_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "markdown"]),
    default="table",
    help="Format of the printed result.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="The same as --format json. An error is an object that holds the rows."
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result to a file.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write one HTML page with plots and images. It needs matplotlib: the extra 'report'.",
)
@click.option(
    "--plots",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the plots as PNG files to this folder, for light and for dark pages.",
)
@click.option("--overwrite", is_flag=True, help="Replace the files of --save, --output, --report and --plots.")
@click.pass_context
def command(
    ctx: click.Context,
    pipeline: Path,
    provider: str,
    tuning: bool,
    graph: bool,
    fallback: bool | None,
    device_id: int,
    provider_options: dict[str, str],
    split: bool,
    custom_ops: str,
    check: bool,
    engine: str,
    engines: tuple[str, ...] | None,
    checkpoint: Path | None,
    baseline: Path | None,
    baseline_engine: str | None,
    reference: Path | None,
    components: tuple[str, ...],
    batch_sizes: tuple[int, ...] | None,
    sizes: tuple[tuple[int, int], ...] | None,
    steps: int,
    scheduler: str | None,
    warmup: int,
    repeat: int,
    preset: str | None,
    save: Path | None,
    compare: Path | None,
    margin: float | None,
    across: tuple[str, ...],
    ablation: bool,
    placement: bool,
    form: str,
    as_json: bool,
    output: Path | None,
    report: Path | None,
    plots: Path | None,
    overwrite: bool,
) -> None:
    """Measure a pipeline: each component, and whole images.

    sdort checks outputs before it times them: they must be finite, not constant, repeatable, and equal to the reference
    within a stated tolerance. A row that fails the check has no times, and the exit code is 5.
    """
    from sdort.benchmark.command import as_text, bench
    from sdort.console import show_text, to_json
    from sdort.errors import SdortError

    arguments: tuple[str, ...] = ctx.meta[_ARGUMENTS]
    form = "json" if as_json else form
    measured: list[Measurement | Ablation] = []
    # An error on stdout holds the result, so that the result is not printed before it.
    together = as_json and output is None

    def show_result(result: Measurement | Ablation) -> None:
        measured.append(result)
        if form == "table" or (output is not None and not as_json):
            _show(result)
        elif not as_json:
            show_text(as_text(result, form))

    try:
        result = bench(
            pipeline,
            provider=provider,
            tuning=tuning,
            graph=graph,
            fallback=fallback,
            device_id=device_id,
            provider_options=provider_options,
            split=split,
            custom_ops=custom_ops,
            check=check,
            engine=engine,
            engines=engines or (),
            checkpoint=checkpoint,
            baseline=baseline,
            baseline_engine=baseline_engine,
            reference=reference,
            components=components,
            batch_sizes=batch_sizes or (),
            sizes=sizes or (),
            steps=steps,
            scheduler=scheduler,
            warmup=warmup,
            repeat=repeat,
            preset=preset,
            save=save,
            compare=compare,
            margin=margin,
            across=across,
            ablation=ablation,
            placement=placement,
            form=form,
            output=output,
            report=report,
            plots=plots,
            overwrite=overwrite,
            command_line=shlex.join(["sdort", "bench", *arguments]),
            on_measured=show_result,
        )
        if form == "table" or (output is not None and not as_json):
            _conclude(result, _compare_command(arguments, save) if save else None)
        result.raise_if_failed()
    except SdortError as error:
        if together and measured:
            error.record = to_json(measured[0])
        raise
    if together:
        show_text(as_text(result, form))


def _show(result: Measurement | Ablation) -> None:
    """Tables, and what all of their rows share."""
    from sdort.benchmark import regression, row_table
    from sdort.benchmark.ablation import Ablation
    from sdort.benchmark.report import ablation_table
    from sdort.console import show

    if isinstance(result, Ablation):
        for table in ablation_table.as_tables(result):
            show(table)
        show(f"\n{ablation_table.ablation_caption(result)}")
    else:
        show(row_table.as_table(result.rows))
        show("\n" + "\n".join(filter(None, (row_table.legend(result.rows), row_table.caption(result.rows)))))
    if any(row.compared for row in result.rows):
        show(regression.comparison_table(result.rows))
    if placements := [row.placement for row in result.rows if row.placement]:
        show_placement(placements, [])


def _conclude(result: Measurement | Ablation, next_command: str | None) -> None:
    from sdort.benchmark.ablation import Ablation
    from sdort.benchmark.conclusion import conclusion
    from sdort.benchmark.regression import comparison_conclusion
    from sdort.benchmark.report.ablation_table import ablation_conclusion
    from sdort.console import conclude

    verdict = ablation_conclusion(result) if isinstance(result, Ablation) else conclusion(result.rows)
    if any(row.compared for row in result.rows):
        verdict += f"\n{comparison_conclusion(result.rows)}"
    conclude(verdict, next_command)


def _compare_command(arguments: Sequence[str], saved: Path) -> str:
    """The same measurement, compared with what was saved; it writes no files, of which some exist by now."""
    words, rest = ["sdort", "bench"], iter(arguments)
    for word in rest:
        if word in _FILES:
            next(rest)
        elif word != "--overwrite" and word.partition("=")[0] not in _FILES:
            words.append(word)
    return shlex.join([*words, "--compare", str(saved)])
