"""``sdort warm``: compile and tune ahead of time."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sdort.cli.dry_run import DRY_RUN_HELP, show_plan
from sdort.cli.from_options import options_of, sections
from sdort.cli.number_types import Duration, NumberList
from sdort.cli.options import sizes_option
from sdort.cli.sections import SectionedCommand
from sdort.generation.requests.typed_options import DrawnOptions
from sdort.options.number_ranges import BUDGET, size_words
from sdort.providers.runtime_options import ExecutionOptions

if TYPE_CHECKING:
    from sdort.tables import Table
    from sdort.warmup.warm_report import Warmed


_DECODING = ("vae_tiling", "vae_slicing")
_SECTIONS = {
    "Selection": ("sizes", "batch_sizes", "components", "budget"),
    **sections(ExecutionOptions),
    **sections(DrawnOptions, only=_DECODING),
}


@click.command(
    cls=SectionedCommand,
    sections=_SECTIONS,
    common=("provider", "sizes", "batch_sizes", "components", "budget", "dry_run"),
    epilog="""\b
Examples:
  sdort warm fast --provider rocm
  sdort warm fast --size 512x512,768x768 --batch-size 1,4 --budget 30m
  sdort warm fast --component unet --size 512x768
""",
)
@click.argument("pipeline", type=click.Path(path_type=Path))
@sizes_option
@click.option(
    "--batch-size", "batch_sizes", type=NumberList(), default="1", help="Numbers of images that are generated at once."
)
@click.option(
    "--component",
    "components",
    multiple=True,
    metavar="NAME",
    show_default="all that sdort run runs",
    help="Warm up only this component (repeatable).",
)
@click.option("--budget", type=Duration(BUDGET), help="Stop after this time: 90s, 30m, 2h. The rest is listed.")
@options_of(DrawnOptions, only=_DECODING)
@options_of(ExecutionOptions)
@click.option("--dry-run", is_flag=True, help=DRY_RUN_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    pipeline: Path,
    sizes: tuple[tuple[int, int], ...] | None,
    batch_sizes: tuple[int, ...],
    components: tuple[str, ...],
    budget: float | None,
    vae_tiling: bool | None,
    vae_slicing: bool | None,
    provider: str,
    tuning: bool,
    graph: bool,
    fallback: bool | None,
    device_id: int,
    provider_options: dict[str, str],
    split: bool,
    custom_ops: str,
    check: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Compile and tune a pipeline ahead of time.

    sdort does this for every size and batch, and keeps the results: later runs start at full speed. Tuning is on
    without --tuning. An interrupted warm-up continues where it stopped. So does one that --budget ended, with exit code
    0. The VAE is warmed up as sdort run will use it: whole, image by image, or in tiles.
    """
    from sdort.console import conclude, emit_json, is_quiet, show, to_json
    from sdort.errors import SdortError
    from sdort.warmup.command import plan_warm, warm

    options: dict[str, Any] = {
        "sizes": sizes or (),
        "batch_sizes": batch_sizes,
        "components": components,
        "budget": budget,
        "vae_tiling": vae_tiling,
        "vae_slicing": vae_slicing,
        "provider": provider,
        "tuning": tuning,
        "graph": graph,
        "fallback": fallback,
        "device_id": device_id,
        "provider_options": provider_options,
        "split": split,
        "custom_ops": custom_ops,
        "check": check,
    }
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


def _run_command(pipeline: Path, options: Mapping[str, Any]) -> str:
    """The run that starts at full speed now."""
    from dataclasses import fields

    from sdort.engines.default_prompts import short_prompt
    from sdort.options.declared_options import command_words
    from sdort.providers.runtime_options import RuntimeOptions

    runtime = {field.name: options[field.name] for field in fields(RuntimeOptions) if field.name in options}
    words = ["sdort", "run", pipeline, "--prompt", short_prompt(pipeline)]
    words += command_words(RuntimeOptions(**runtime))
    for size in options["sizes"][:1]:
        words += ["--size", size_words(size)]
    images = options["batch_sizes"][0]
    words += ["--num-images", images] if images > 1 else []
    return shlex.join(map(str, words))
