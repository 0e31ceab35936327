"""``sdort warm``: compile and tune ahead of time."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdort.cli.dry_run import DRY_RUN_HELP, show_plan
from sdort.cli.from_options import given, options_of, sections
from sdort.cli.number_types import Duration
from sdort.cli.sections import SectionedCommand
from sdort.options.declared_options import ranges_of
from sdort.options.number_ranges import size_words
from sdort.providers.runtime_options import ExecutionOptions
from sdort.warmup.warm_options import WarmupOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdort.tables import Table
    from sdort.warmup.warm_options import WarmKeywords
    from sdort.warmup.warm_report import Warmed


_BUDGET = ranges_of(WarmupOptions)["budget"]


@click.command(
    cls=SectionedCommand,
    sections=sections(WarmupOptions, ExecutionOptions, headings=("Selection", "Execution", "Decoding")),
    common=("provider", "sizes", "batch_sizes", "components", "budget", "dry_run"),
    epilog="""\b
Examples:
  sdort warm fast --provider rocm
  sdort warm fast --size 512x512,768x768 --batch-size 1,4 --budget 30m
  sdort warm fast --component unet --size 512x768
""",
)
@click.argument("pipeline", type=click.Path(path_type=Path))
@options_of(WarmupOptions, ExecutionOptions, forms={"time": lambda: Duration(_BUDGET)})
@click.option("--dry-run", is_flag=True, help=DRY_RUN_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(pipeline: Path, dry_run: bool, as_json: bool, **options: Unpack[WarmKeywords]) -> None:
    """Compile and tune a pipeline ahead of time.

    sdort does this for every size and batch, and keeps the results: later runs start at full speed. Tuning is on
    without --tuning. An interrupted warm-up continues where it stopped. So does one that --budget ended, with exit code
    0. The VAE is warmed up as sdort run will use it: whole, image by image, or in tiles.
    """
    from sdort.console import conclude, emit_json, is_quiet, show, to_json
    from sdort.errors import SdortError
    from sdort.warmup.command import plan_warm, warm

    options = given(options)
    if dry_run:
        show_plan(plan_warm(pipeline, **options), as_json=as_json)
        return
    warmup = warm(pipeline, **options)
    if not (as_json or is_quiet()):
        show(_table(warmup.items))
    try:
        warmup.raise_if_failed()
    except SdortError as error:
        error.record = to_json(warmup)
        raise
    if as_json:
        emit_json(warmup)
    elif not is_quiet():
        conclude(warmup.verdict, None if warmup.left else _run_command(pipeline, options))


def _table(items: list[Warmed]) -> Table:
    from sdort.tables import Table

    headers = ("component", ">samples", ">size", "state", ">before, s", ">after, s", "decodes")
    table = Table("First runs, before and after", headers)
    for item in items:
        seconds = ("" if value is None else f"{value:.2f}" for value in (item.before_s, item.after_s))
        size = f"{item.width}x{item.height}"
        table.add_row(item.component, str(item.batch), size, item.status, *seconds, item.decodes)
    return table


def _run_command(pipeline: Path, options: WarmKeywords) -> str:
    """The run that starts at full speed now."""
    from sdort.engines.default_prompts import short_prompt
    from sdort.options.declared_options import command_words, made_of
    from sdort.providers.runtime_options import RuntimeOptions

    words = ["sdort", "run", pipeline, "--prompt", short_prompt(pipeline)]
    words += command_words(made_of(RuntimeOptions, options))
    for size in options.get("sizes", ())[:1]:
        words += ["--size", size_words(size)]
    images = options["batch_sizes"][0]
    words += ["--num-images", images] if images > 1 else []
    return shlex.join(map(str, words))
