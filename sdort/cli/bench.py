"""``sdort bench``: latency, memory and parity."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sdort.benchmark.bench_options import ENGINES, TORCH_ENGINES, BenchOptions, BenchResults
from sdort.cli.from_options import given, options_of, sections
from sdort.cli.placement import show_placement
from sdort.cli.sections import SectionedCommand
from sdort.providers.runtime_options import ExecutionOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdort.benchmark.ablation import Ablation
    from sdort.benchmark.bench_options import BenchKeywords
    from sdort.benchmark.measure import Measurement


class Engines(click.ParamType[tuple[str, ...]]):
    """``onnxruntime,torch``."""

    name = "ENGINE,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(str(value).split(",")))
        unknown = [name for name in names if name not in ENGINES]
        if unknown:
            self.fail(f"{unknown[0]!r} is not one of {', '.join(ENGINES)}", param, ctx)
        return names


class Baseline(click.Path):
    """A path that exists, or the name of a torch engine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) in TORCH_ENGINES and not Path(value).exists():
            return Path(value)
        return super().convert(value, param, ctx)


_OWN = sections(BenchOptions, BenchResults, headings=("Measurement", "Comparison", "Regressions", "Results"))
_PRINTED, _WRITTEN = _OWN["Results"][:2], _OWN["Results"][2:]
_SECTIONS = {**sections(ExecutionOptions), **_OWN, "Results": (*_PRINTED, "as_json", *_WRITTEN)}
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
@options_of(
    ExecutionOptions,
    BenchOptions,
    BenchResults,
    forms={"engines": Engines, "baseline": lambda: Baseline(exists=True, path_type=Path)},
)
@click.option(
    "--json", "as_json", is_flag=True, help="The same as --format json. An error is an object that holds the rows."
)
@click.pass_context
def command(ctx: click.Context, pipeline: Path, as_json: bool, **options: Unpack[BenchKeywords]) -> None:
    """Measure a pipeline: each component, and whole images.

    sdort checks outputs before it times them: they must be finite, not constant, repeatable, and equal to the reference
    within a stated tolerance. A row that fails the check has no times, and the exit code is 5.
    """
    from sdort.benchmark.command import as_text, bench
    from sdort.console import show_text, to_json
    from sdort.errors import SdortError

    arguments: tuple[str, ...] = ctx.meta[_ARGUMENTS]
    options = given(options)
    if as_json:
        options["form"] = "json"
    form, output, save = options["form"], options.get("output"), options.get("save")
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
            **options,
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


def _compare_command(arguments: Sequence[str], saved: str | Path) -> str:
    """The same measurement, compared with what was saved; it writes no files, of which some exist by now."""
    words, rest = ["sdort", "bench"], iter(arguments)
    for word in rest:
        if word in _FILES:
            next(rest)
        elif word != "--overwrite" and word.partition("=")[0] not in _FILES:
            words.append(word)
    return shlex.join([*words, "--compare", str(saved)])
