"""``sdort warm``: compile and tune ahead of time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdort.cli.bench import Numbers, Sizes
from sdort.cli.options import decoding_options, runtime_options
from sdort.cli.tuning import Duration

if TYPE_CHECKING:
    from rich.table import Table

    from sdort.providers.options import RuntimeOptions
    from sdort.warmup.command import Warmed


@click.command(
    epilog="""\b
Examples:
  sdort warm fast --provider rocm
  sdort warm fast --size 512x512,768x768,1024x1024 --batch-size 1,4 --budget 30m
  sdort warm fast --component unet --size 512x768
"""
)
@click.argument("pipeline", type=click.Path(exists=True, path_type=Path))
@click.option("--size", "sizes", type=Sizes(), show_default="the model's own", help="Image sizes in pixels.")
@click.option("--batch-size", "images", type=Numbers(), default="1", help="Images that are drawn at once.")
@click.option(
    "--component",
    "components",
    multiple=True,
    metavar="NAME",
    show_default="all that drawing from text runs",
    help="Only this (repeatable).",
)
@click.option("--budget", type=Duration(), help="Stop after this time: 90s, 30m, 2h. What is left is told.")
@decoding_options
@runtime_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    pipeline: Path,
    sizes: tuple[tuple[int, int], ...] | None,
    images: tuple[int, ...],
    components: tuple[str, ...],
    budget: float | None,
    vae_tiling: bool | None,
    vae_slicing: bool | None,
    runtime: RuntimeOptions,
    as_json: bool,
) -> None:
    """Compile and tune PIPELINE ahead of time, and keep it.

    For every size and batch. Later runs then start at full speed. Tuning is on without --tuning. What is finished is
    not done again, so an interrupted warm-up goes on where it stopped, also after --budget, which is no error: the exit
    code is 0. The decoder is warmed up in the form that sdort run would take: whole, image by image or in tiles, as
    memory allows or as --vae-tiling and --vae-slicing say.
    """
    from sdort.console import emit_json, say, show
    from sdort.errors import SdortError
    from sdort.warmup.command import LEFT, refuse_failed, warm
    from sdort.warmup.plan import Options

    done = warm(pipeline, Options(runtime, sizes or (), images, components, budget, vae_tiling, vae_slicing))
    left = [each for each in done if each.status == LEFT]
    if not as_json:
        show(_table(done))
        if left:
            say(f"the time was up: {len(left)} of {len(done)} are left; the same command goes on with them")
    try:
        refuse_failed(done)
    except SdortError as error:
        error.record = {"items": done, "left": len(left)}
        raise
    if as_json:
        emit_json({"items": done, "left": len(left)})


def _table(done: list[Warmed]) -> Table:
    from rich.table import Table

    table = Table("component", "samples", "size", "", "first run before, s", "after, s")
    for each in done:
        seconds = ("" if value is None else f"{value:.2f}" for value in (each.before_s, each.after_s))
        table.add_row(each.component, str(each.batch), f"{each.height}x{each.width}", each.status, *seconds)
        for what in each.decodes:
            table.add_row("", "", "", f"decodes {what}")
    return table
