"""``sdort run``: text to image."""

from __future__ import annotations

from pathlib import Path

import click

from sdort.cli.number_types import Real, Whole
from sdort.cli.options import decoding_options, placement_option, runtime_options, show_placement
from sdort.cli.sections import DECODING, RUNTIME, SectionedCommand
from sdort.errors.number_ranges import GUIDANCE, HEIGHT, NUM_IMAGES, SEED, STEPS, WIDTH

_SECTIONS = {
    "What is generated": (
        "prompt", "negative_prompt", "steps", "guidance_scale", "height", "width", "seed", "num_images", "scheduler",
    ),
    **RUNTIME,
    **DECODING,
    "Results": ("output", "overwrite", "placement", "as_json"),
}  # fmt: skip


@click.command(
    cls=SectionedCommand,
    sections=_SECTIONS,
    epilog="""\b
Examples:
  sdort run fast --prompt "a lighthouse at dusk" -o lighthouse.png
  sdort run fast --prompt "a cat" --seed 7 --num-images 4 --steps 25
  sdort run fast --prompt "a cat" --prompt "a dog" --negative-prompt "blurry"
  sdort run fast --prompt "a cat" --provider rocm --tuning --no-fallback
""",
)
@click.argument("pipeline", type=click.Path(path_type=Path))
@click.option(
    "--prompt",
    required=True,
    multiple=True,
    metavar="TEXT",
    help="What the images are to show. Repeatable: each prompt gets --num-images images, of the same seeds.",
)
@click.option(
    "--negative-prompt",
    multiple=True,
    metavar="TEXT",
    help="What they are not to show: once for all prompts, or once for each.",
)
@click.option("--steps", type=Whole(STEPS), default=50, help="Denoising steps.")
@click.option(
    "--guidance-scale", type=Real(GUIDANCE), default=7.5, help="How closely to follow the prompt; 1 turns it off."
)
@click.option("--height", type=Whole(HEIGHT), show_default="the model's own", help="Pixels.")
@click.option("--width", type=Whole(WIDTH), show_default="the model's own", help="Pixels.")
@click.option(
    "--seed",
    type=Whole(SEED),
    show_default="random",
    help="The same seed gives the same image. The second image of --num-images has the seed + 1, and so on.",
)
@click.option("--num-images", type=Whole(NUM_IMAGES), default=1, help="Number of images of each prompt.")
@click.option(
    "--scheduler",
    metavar="NAME",
    show_default="the pipeline's own",
    help="A short name (ddim, pndm, lms, euler, euler-a, dpm++-2m, unipc, lcm, ...) or diffusers' class name.",
)
@decoding_options
@runtime_options
@placement_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    show_default="sdort-SEED.png",
    help="PNG to write; several images get -1, -2, ... before the suffix. A missing folder is made.",
)
@click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print a record of the run as JSON.")
def command(
    pipeline: Path,
    prompt: tuple[str, ...],
    negative_prompt: tuple[str, ...],
    steps: int,
    guidance_scale: float,
    height: int | None,
    width: int | None,
    seed: int | None,
    num_images: int,
    scheduler: str | None,
    vae_tiling: bool | None,
    vae_slicing: bool | None,
    provider: str,
    tuning: bool,
    graph: bool,
    fallback: bool | None,
    device_id: int,
    provider_options: dict[str, str],
    custom_ops: str,
    check: bool,
    placement: bool,
    output: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Generate images from text with an ONNX pipeline.

    PIPELINE is a folder from sdort export or sdort optimize, from optimum, or from diffusers' conversion script. The
    generation parameters are stored in each PNG. A stage that gives NaN or nothing is done again in fp32; an image that
    still has NaN pixels or one colour is an error and is not written.
    """
    from sdort.console import conclude, emit_json, is_quiet
    from sdort.generation.command import run
    from sdort.generation.last_lines import summarize

    result = run(
        pipeline,
        prompt,
        negative_prompt=negative_prompt,
        steps=steps,
        guidance_scale=guidance_scale,
        height=height,
        width=width,
        seed=seed,
        num_images=num_images,
        scheduler=scheduler,
        vae_tiling=vae_tiling,
        vae_slicing=vae_slicing,
        provider=provider,
        tuning=tuning,
        graph=graph,
        fallback=fallback,
        device_id=device_id,
        provider_options=provider_options,
        custom_ops=custom_ops,
        check=check,
        placement=placement,
        output=output,
        overwrite=overwrite,
    )
    if as_json:
        emit_json(result)
        return
    if result.placement:
        show_placement(result.placement, result.placement_remarks)
    if not is_quiet():
        conclude(summarize(result))
