"""Options of ``sdort run`` that say what is generated: groups of one topic, each a section of the help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from sdort.cli.number_types import Real, Whole
from sdort.errors.number_ranges import (
    AESTHETIC_SCORE,
    CLIP_SKIP,
    ETA,
    GUIDANCE,
    HEIGHT,
    HIRES,
    HIRES_STEPS,
    HIRES_STRENGTH,
    MASK_BLUR,
    MASK_PADDING,
    NEGATIVE_AESTHETIC_SCORE,
    NUM_IMAGES,
    PREVIEW_EVERY,
    REFINER_START,
    STEPS,
    STRENGTH,
    VARIATION_SEED,
    VARIATION_STRENGTH,
    WIDTH,
)
from sdort.pipelines.scheduler_names import SPACINGS

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

_TEXT_TO_IMAGE: tuple[Option, ...] = (
    click.option(
        "--prompt",
        multiple=True,
        metavar="TEXT",
        help="What the images are to show. Repeatable: each prompt gets --num-images images, of the same seeds.",
    ),
    click.option(
        "--negative-prompt",
        multiple=True,
        metavar="TEXT",
        help="What they are not to show: once for all prompts, or once for each.",
    ),
    click.option(
        "--prompts",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A file of prompts: one a line (# begins a comment), or .jsonl with options of each line.",
    ),
    click.option(
        "--from-image",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Draw an image of sdort's, A1111's or ComfyUI's again (PNG, JPEG, WebP): it says the prompt and all "
        "options that are not given.",
    ),
    click.option(
        "--prompt-2",
        multiple=True,
        metavar="TEXT",
        show_default="as --prompt",
        help="The prompt for SDXL's second text encoder.",
    ),
    click.option(
        "--negative-prompt-2",
        multiple=True,
        metavar="TEXT",
        show_default="as --negative-prompt",
        help="The negative prompt for SDXL's second text encoder.",
    ),
    click.option(
        "--clip-skip",
        type=Whole(CLIP_SKIP),
        default=1,
        help="Which layer of the text encoder to take, counted from the last: 2 is what many anime models want.",
    ),
    click.option(
        "--prompt-weighting",
        type=click.Choice(["a1111", "comfyui", "none"]),
        default="a1111",
        help="How (word:1.2), (word) and [word] in prompts are read: as AUTOMATIC1111, as ComfyUI, or as plain text.",
    ),
    click.option("--height", type=Whole(HEIGHT), show_default="the model's own", help="Pixels."),
    click.option("--width", type=Whole(WIDTH), show_default="the model's own", help="Pixels."),
    click.option(
        "--seed",
        metavar="INTEGERS",
        show_default="random",
        help="The same seed gives the same image; several, such as 1,5,10-20, give each prompt as many. The second "
        "image of --num-images has the seed + 1, and so on.",
    ),
    click.option("--num-images", type=Whole(NUM_IMAGES), default=1, help="Number of images of each prompt."),
)

_SAMPLING: tuple[Option, ...] = (
    click.option(
        "--steps", type=Whole(STEPS), show_default="50, or those of a few-step model", help="Denoising steps."
    ),
    click.option(
        "--guidance-scale",
        type=Real(GUIDANCE),
        show_default="7.5, or that of a few-step model",
        help="How closely to follow the prompt; 1 turns it off.",
    ),
    click.option(
        "--scheduler",
        metavar="NAME",
        show_default="the pipeline's own",
        help="A short name (ddim, euler, euler-a, dpm++-2m, unipc, lcm, tcd, ..., also with -karras, -exponential, "
        "-beta), A1111's name (\"DPM++ 2M Karras\") or diffusers' class name.",
    ),
    click.option(
        "--timestep-spacing",
        type=click.Choice(SPACINGS),
        show_default="as the scheduler's config says",
        help="Of the scheduler: trailing for Turbo, Lightning and Hyper.",
    ),
    click.option(
        "--eta",
        type=Real(ETA),
        show_default="0 with ddim, 0.3 with tcd",
        help="The share of new noise in each step of ddim or tcd.",
    ),
)

_PREVIEWS: tuple[Option, ...] = (
    click.option(
        "--preview",
        is_flag=True,
        help="Show every few steps in the terminal what the image will be, or where it shows no pictures in a file "
        "beside the output.",
    ),
    click.option(
        "--preview-every", type=Whole(PREVIEW_EVERY), default=5, help="Calls of the UNet from a preview to the next."
    ),
    click.option(
        "--preview-vae",
        type=click.Path(path_type=Path),
        metavar="DIR",
        show_default="the pipeline's folder preview_vae, else none",
        help="Decode previews with this exported small VAE, such as TAESD; without one they are rough.",
    ),
)

_ADAPTERS: tuple[Option, ...] = (
    click.option(
        "--lora",
        multiple=True,
        metavar="FILE[:SCALE]",
        help="Adapter that changes the UNet and the text encoders: LoRA, LoHa, LoKr, DoRA. Repeatable.",
    ),
)

_FROM_IMAGE: tuple[Option, ...] = (
    click.option(
        "--init-image",
        metavar="FILE",
        help="An image to start from. The result has its size, unless --height or --width say another.",
    ),
    click.option(
        "--strength",
        type=Real(STRENGTH),
        show_default="0.75, with --mask 1",
        help="Share of the steps that change the init image.",
    ),
    click.option(
        "--mask",
        metavar="FILE",
        help="White, or the hole of a picture, where something new is to be; of the init image's size. The rest stays.",
    ),
    click.option("--mask-blur", type=Whole(MASK_BLUR), show_default="4", help="Pixels that soften the mask's edge."),
    click.option(
        "--only-masked",
        is_flag=True,
        help="Generate the mask's surroundings alone, at the whole size, and put them back into the image.",
    ),
    click.option(
        "--mask-padding",
        type=Whole(MASK_PADDING),
        show_default="32",
        help="Pixels around the mask that --only-masked takes with it.",
    ),
)

_VARIATIONS: tuple[Option, ...] = (
    click.option(
        "--variation-strength",
        type=Real(VARIATION_STRENGTH),
        show_default="no variations",
        help="Variations of the image of --seed: 0 is that image, 1 that of --variation-seed.",
    ),
    click.option(
        "--variation-seed",
        type=Whole(VARIATION_SEED),
        show_default="random",
        help="Of the first variation; the second has this + 1, and so on.",
    ),
)

_LARGER: tuple[Option, ...] = (
    click.option(
        "--hires", type=Real(HIRES), metavar="SCALE", help="Enlarge the image by this factor, in a second pass."
    ),
    click.option(
        "--hires-upscale",
        type=click.Choice(["latent", "image"]),
        show_default="latent",
        help="What is enlarged: latents, or the decoded image, which keeps more of it.",
    ),
    click.option(
        "--hires-strength",
        type=Real(HIRES_STRENGTH),
        show_default="0.7",
        help="Share of the steps that change the enlarged image.",
    ),
    click.option("--hires-steps", type=Whole(HIRES_STEPS), show_default="--steps", help="Steps of the second pass."),
)

_REFINER: tuple[Option, ...] = (
    click.option(
        "--refiner",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="A second pipeline that takes the last steps: SDXL's refiner, or another model of the same latents.",
    ),
    click.option(
        "--refiner-start",
        type=Real(REFINER_START),
        show_default="0.8",
        help="Share of the schedule that the pipeline itself takes.",
    ),
    click.option(
        "--aesthetic-score",
        type=Real(AESTHETIC_SCORE),
        show_default="6",
        help="What SDXL's refiner is told of the image's quality.",
    ),
    click.option(
        "--negative-aesthetic-score",
        type=Real(NEGATIVE_AESTHETIC_SCORE),
        show_default="2.5",
        help="The score that goes with the negative prompt.",
    ),
)

_CONTROL: tuple[Option, ...] = (
    click.option(
        "--control",
        multiple=True,
        metavar="DIR:IMAGE[:SCALE[:START:END]]",
        help="ControlNet or T2I-Adapter and the image that steers it, ready as it wants it (edges, depth, a pose). "
        "START and END are shares of the steps. Repeatable; the pipeline is exported with --control.",
    ),
    click.option(
        "--guess-mode",
        is_flag=True,
        help="Let ControlNets steer the prompt alone, their first outputs weakly: they guess what their image shows.",
    ),
)

_IP_ADAPTER: tuple[Option, ...] = (
    click.option(
        "--ip-adapter-image",
        multiple=True,
        metavar="IMAGE[:SCALE]",
        help="Image that the pipeline's IP-Adapter takes beside the prompt. Repeatable, one for each adapter; the "
        "pipeline is exported with --ip-adapter. [scale: 1]",
    ),
)

_GROUPS: dict[str, tuple[Option, ...]] = {
    "What is generated": _TEXT_TO_IMAGE,
    "Sampling": _SAMPLING,
    "From an image": _FROM_IMAGE,
    "Variations": _VARIATIONS,
    "Larger images": _LARGER,
    "Adapters": _ADAPTERS,
    "Control images": _CONTROL,
    "IP-Adapter": _IP_ADAPTER,
    "Previews": _PREVIEWS,
    "Refiner": _REFINER,
}
"""Heading of the help -> its options, the most used first."""


def _names(options: Sequence[Option]) -> tuple[str, ...]:
    """The parameters that options fill."""

    def command() -> None: ...

    for option in options:
        option(command)
    return tuple(parameter.name for parameter in command.__click_params__)  # type: ignore[attr-defined]


SECTIONS = {heading: _names(options) for heading, options in _GROUPS.items()}
"""Heading -> names of options, for :class:`sdort.cli.sections.SectionedCommand`."""


def generation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of what is generated; the command gets a parameter for each."""
    for option in reversed([option for options in _GROUPS.values() for option in options]):
        command = option(command)
    return command
