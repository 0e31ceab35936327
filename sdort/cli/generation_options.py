"""Options of ``sdort run`` that say what is generated: groups of one topic, each a section of the help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from sdort.cli.number_types import Real, Size, Whole
from sdort.cli.options import complete_files, complete_schedulers
from sdort.errors.number_ranges import (
    AESTHETIC_SCORE,
    CLIP_SKIP,
    DEEP_CACHE,
    DEEP_CACHE_DEPTH,
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
    UPSCALE_BY,
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
        help="What the images show. Repeatable: each prompt gets --num-images images, with the same seeds.",
    ),
    click.option(
        "--negative-prompt",
        multiple=True,
        metavar="TEXT",
        help="What the images must not show. Give it once for all prompts, or once for each prompt.",
    ),
    click.option(
        "--prompts",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File of prompts: one a line (# begins a comment), or .jsonl with options for each line.",
    ),
    click.option(
        "--from-image",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Repeat an image that sdort, AUTOMATIC1111 or ComfyUI made. The file (PNG, JPEG, WebP) supplies the "
        "prompt and every option that you do not give.",
    ),
    click.option(
        "--prompt-2",
        multiple=True,
        metavar="TEXT",
        show_default="as --prompt",
        help="Prompt for SDXL's second text encoder.",
    ),
    click.option(
        "--negative-prompt-2",
        multiple=True,
        metavar="TEXT",
        show_default="as --negative-prompt",
        help="Negative prompt for SDXL's second text encoder.",
    ),
    click.option(
        "--clip-skip",
        type=Whole(CLIP_SKIP),
        default=1,
        help="Layer of the text encoder that is read, counted from the last. Many anime models want 2.",
    ),
    click.option(
        "--wildcards",
        type=click.Path(path_type=Path),
        metavar="DIR",
        show_default="the variable SDORT_WILDCARDS",
        help="Folder of text files: __animal__ in a prompt takes a line of animal.txt, drawn by the seed.",
    ),
    click.option(
        "--prompt-weighting",
        type=click.Choice(["a1111", "comfyui", "none"]),
        default="a1111",
        help="How (word:1.2), (word) and [word] in prompts are read: as in AUTOMATIC1111, as in ComfyUI, or as plain "
        "text.",
    ),
    click.option(
        "--size",
        type=Size(),
        metavar="WxH",
        show_default="the model's own",
        help="Width and height in pixels, such as 768x512.",
    ),
    click.option("--height", type=Whole(HEIGHT), show_default="the model's own", help="Height in pixels."),
    click.option("--width", type=Whole(WIDTH), show_default="the model's own", help="Width in pixels."),
    click.option(
        "--seed",
        metavar="INTEGERS",
        show_default="random",
        help="Seed of the noise. The same seed gives the same image. Several seeds, such as 1,5,10-20, give each "
        "prompt that many images. With --num-images, each further image has the next seed.",
    ),
    click.option("--num-images", type=Whole(NUM_IMAGES), default=1, help="Number of images of each prompt."),
)

_SAMPLING: tuple[Option, ...] = (
    click.option(
        "--steps", type=Whole(STEPS), show_default="25, or fewer for a few-step model", help="Denoising steps."
    ),
    click.option(
        "--guidance-scale",
        type=Real(GUIDANCE),
        show_default="7.5, or that of a few-step model",
        help="How closely the images follow the prompt. 1 turns guidance off.",
    ),
    click.option(
        "--scheduler",
        metavar="NAME",
        shell_complete=complete_schedulers,
        show_default="the pipeline's own; without --steps dpm++-2m-karras for a slow one",
        help="Sampler, such as euler-a or dpm++-2m-karras. A short name (ddim, euler, euler-a, dpm++-2m, unipc, lcm, "
        "tcd, ..., also with -karras, -exponential, -beta), A1111's name (\"DPM++ 2M Karras\") or diffusers' class "
        "name.",
    ),
    click.option(
        "--timestep-spacing",
        type=click.Choice(SPACINGS),
        show_default="as the scheduler's config says",
        help="How the scheduler chooses its timesteps. Turbo, Lightning and Hyper models want trailing.",
    ),
    click.option(
        "--eta",
        type=Real(ETA),
        show_default="0 with ddim, 0.3 with tcd",
        help="Share of new noise in each step of ddim or tcd.",
    ),
    click.option(
        "--deep-cache",
        type=Whole(DEEP_CACHE),
        metavar="N",
        show_default="every step computes all",
        help="Compute the deep part of the UNet in every Nth step only (DeepCache). 3 about halves the time of the "
        "steps. The image changes a little.",
    ),
    click.option(
        "--deep-cache-depth",
        type=Whole(DEEP_CACHE_DEPTH),
        show_default="2",
        help="Number of the UNet's skip connections that every step computes. More are slower, and closer to the "
        "image without --deep-cache.",
    ),
)

_PREVIEWS: tuple[Option, ...] = (
    click.option(
        "--preview",
        is_flag=True,
        help="Show in the terminal how the image forms. A terminal without pictures gets a file beside the output "
        "instead.",
    ),
    click.option(
        "--preview-every",
        type=Whole(PREVIEW_EVERY),
        default=5,
        help="Number of UNet calls from one preview to the next.",
    ),
    click.option(
        "--preview-vae",
        type=click.Path(path_type=Path),
        metavar="DIR",
        show_default="the pipeline's folder preview_vae, else none",
        help="Small exported VAE that decodes previews, such as TAESD. Without one, previews are rough.",
    ),
)

_ADAPTERS: tuple[Option, ...] = (
    click.option(
        "--lora",
        multiple=True,
        metavar="FILE[:SCALE]",
        shell_complete=complete_files,
        help="LoRA, LoHa, LoKr or DoRA adapter (repeatable). It changes the UNet and the text encoders.",
    ),
    click.option(
        "--lora-folder",
        type=click.Path(path_type=Path),
        metavar="DIR",
        show_default="the variable SDORT_LORA_FOLDER",
        help="Folder of the adapters that prompts name: <lora:style:0.8> takes style.safetensors.",
    ),
)

_FROM_IMAGE: tuple[Option, ...] = (
    click.option(
        "--init-image",
        metavar="FILE",
        shell_complete=complete_files,
        help="Image to start from. The result has the size of this image unless you give --size.",
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
        shell_complete=complete_files,
        help="Image whose white or transparent part is replaced. It has the size of the init image. The rest of the "
        "init image stays.",
    ),
    click.option(
        "--mask-blur", type=Whole(MASK_BLUR), show_default="4", help="Pixels by which the mask's edge is softened."
    ),
    click.option(
        "--only-masked",
        is_flag=True,
        help="Generate only the masked area and its surroundings, at the full size. The result is put back into the "
        "image.",
    ),
    click.option(
        "--mask-padding",
        type=Whole(MASK_PADDING),
        show_default="32",
        help="Pixels around the mask that --only-masked includes.",
    ),
)

_VARIATIONS: tuple[Option, ...] = (
    click.option(
        "--variation-strength",
        type=Real(VARIATION_STRENGTH),
        show_default="no variations",
        help="Vary the image of --seed: 0 gives that image, 1 the image of --variation-seed.",
    ),
    click.option(
        "--variation-seed",
        type=Whole(VARIATION_SEED),
        show_default="random",
        help="Seed of the first variation. Each further variation has the next seed.",
    ),
)

_LARGER: tuple[Option, ...] = (
    click.option("--hires", type=Real(HIRES), metavar="SCALE", help="Enlarge by this factor, in a second pass."),
    click.option(
        "--hires-upscale",
        type=click.Choice(["latent", "image"]),
        show_default="latent",
        help="What the second pass enlarges: the latents, or the decoded image. The decoded image keeps more of the "
        "first pass.",
    ),
    click.option(
        "--hires-strength",
        type=Real(HIRES_STRENGTH),
        show_default="0.7",
        help="Share of the steps that change the enlarged image.",
    ),
    click.option(
        "--hires-steps", type=Whole(HIRES_STEPS), show_default="--steps", help="Number of steps of the second pass."
    ),
    click.option(
        "--hires-upscaler",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Upscaler that enlarges the decoded image before the second pass.",
    ),
    click.option(
        "--upscale",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Upscaler for each finished image. It is an ESRGAN or one of its kin, as .pth, .safetensors or .onnx.",
    ),
    click.option(
        "--upscale-by",
        type=Real(UPSCALE_BY),
        metavar="SCALE",
        show_default="the upscaler's own factor",
        help="How many times as high and wide --upscale makes the image.",
    ),
)

_REFINER: tuple[Option, ...] = (
    click.option(
        "--refiner",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Second pipeline that takes the last steps: SDXL's refiner, or another model with the same latents.",
    ),
    click.option(
        "--refiner-start",
        type=Real(REFINER_START),
        show_default="0.8",
        help="Share of the schedule that the first pipeline takes.",
    ),
    click.option(
        "--aesthetic-score",
        type=Real(AESTHETIC_SCORE),
        show_default="6",
        help="Image quality that SDXL's refiner aims at.",
    ),
    click.option(
        "--negative-aesthetic-score",
        type=Real(NEGATIVE_AESTHETIC_SCORE),
        show_default="2.5",
        help="Image quality that belongs to the negative prompt.",
    ),
)

_CONTROL: tuple[Option, ...] = (
    click.option(
        "--control",
        multiple=True,
        shell_complete=complete_files,
        metavar="DIR:IMAGE[:SCALE[:START:END]]",
        help="ControlNet or T2I-Adapter, and its control image. The image must be ready for the model: edges, depth or "
        "a pose. START and END are shares of the steps. Repeatable. The pipeline needs the inputs of sdort export "
        "--control.",
    ),
    click.option(
        "--guess-mode",
        is_flag=True,
        help="Let ControlNets act only where the prompt acts, and weaken their first outputs. The ControlNet then "
        "guesses what its image shows.",
    ),
)

_IP_ADAPTER: tuple[Option, ...] = (
    click.option(
        "--ip-adapter-image",
        multiple=True,
        shell_complete=complete_files,
        metavar="IMAGE[:SCALE]",
        help="Image for the pipeline's IP-Adapter, beside the prompt. Repeatable, one for each adapter. The pipeline "
        "needs sdort export --ip-adapter. [scale: 1]",
    ),
)

_SAFETY: tuple[Option, ...] = (
    click.option(
        "--safety",
        type=click.Choice(["on", "off", "replace"]),
        show_default="on, if the pipeline has a safety checker",
        help="What happens to an image that the pipeline's safety checker flags. on: sdort does not write it, writes "
        "the others, and ends with exit code 1. replace: a black image takes its place. off: sdort does not ask the "
        "checker.",
    ),
)

_GROUPS: dict[str, tuple[Option, ...]] = {
    "Prompts and images": _TEXT_TO_IMAGE,
    "Sampling": _SAMPLING,
    "From an image": _FROM_IMAGE,
    "Variations": _VARIATIONS,
    "Larger images": _LARGER,
    "Adapters": _ADAPTERS,
    "Control images": _CONTROL,
    "IP-Adapter": _IP_ADAPTER,
    "Previews": _PREVIEWS,
    "Safety checker": _SAFETY,
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
