"""``sdort run``: text to image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from sdort.cli.generation_options import SECTIONS, generation_options
from sdort.cli.number_types import Whole
from sdort.cli.options import decoding_options, placement_option, runtime_options, show_placement
from sdort.cli.sections import DECODING, RUNTIME, SectionedCommand
from sdort.errors.number_ranges import QUALITY

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdort.generation.typed_options import RunOptions

_SECTIONS = {
    **SECTIONS,
    **RUNTIME,
    **DECODING,
    "Results": ("output", "quality", "overwrite", "placement", "as_json"),
}
_COMMON = (
    "prompt", "negative_prompt", "seed", "num_images", "size", "steps", "guidance_scale", "scheduler",
    "lora", "init_image", "strength", "mask", "hires", "provider", "output", "overwrite",
)  # fmt: skip


@click.command(
    cls=SectionedCommand,
    sections=_SECTIONS,
    common=_COMMON,
    details="Each image stores its generation parameters. sdort repeats a stage in fp32 if it gives NaN or a constant. "
    "An image that still has NaN pixels, or only one colour, is an error and is not written.",
    epilog="""\b
Examples:
  sdort run fast --prompt "a lighthouse at dusk" -o lighthouse.png
  sdort run fast --prompt "a cat" --seed 7 --num-images 4 --steps 25
  sdort run fast --prompt "a cat" --prompt "a dog" --negative-prompt "blurry"
  sdort run fast --prompt "a cat" --provider rocm --tuning --no-fallback
""",
)
@click.argument("pipeline", type=click.Path(path_type=Path))
@generation_options
@decoding_options
@runtime_options
@placement_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    show_default="sdort-SEED.png",
    help="Image to write: .png, .jpg or .webp. Several images get -1, -2, ... before the suffix, or the names of a "
    "template such as {index:03}-{seed}-{prompt}.png. A missing folder is made.",
)
@click.option(
    "--quality",
    type=Whole(QUALITY),
    show_default="95",
    help="Quality of .jpg and .webp. At 100 .webp keeps every pixel, as .png does.",
)
@click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print a record of the run as JSON.")
def command(
    pipeline: Path, prompt: tuple[str, ...], placement: bool, as_json: bool, **options: Unpack[RunOptions]
) -> None:
    """Generate images from text with an ONNX pipeline.

    PIPELINE is a folder from sdort export or sdort optimize, from optimum, or from diffusers' conversion script.
    """
    from sdort.console import conclude, emit_json, is_quiet, say
    from sdort.generation.command import run
    from sdort.generation.last_lines import summarize

    source = click.get_current_context().get_parameter_source
    # An image says what the command line does not: defaults are the functions' own.
    options = {name: value for name, value in options.items() if source(name) is not ParameterSource.DEFAULT}  # type: ignore[assignment]
    if as_json and options.get("preview"):
        say("no previews beside --json")
        options["preview"], options["preview_vae"] = False, None
    result = run(pipeline, prompt, placement=placement, **options)
    if as_json:
        emit_json(result)
        return
    if result.placement:
        show_placement(result.placement, result.placement_remarks)
    if not is_quiet():
        conclude(summarize(result))
