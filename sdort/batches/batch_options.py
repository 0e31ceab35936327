"""Options of a batch, each declared once; those of a run are declared there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from sdort.generation.requests.typed_options import DrawnOptions, JobOptions
from sdort.options.declared_options import declared, option, option_of
from sdort.options.number_ranges import WORKERS
from sdort.providers.runtime_options import LoadOptions, RuntimeOptions

if TYPE_CHECKING:
    from sdort.adapters.adapter_choice import AdapterChoice
    from sdort.generation.pictures.input_image import ImageSource
    from sdort.generation.requests.control_choice import ControlChoice
    from sdort.generation.requests.ip_adapter_choice import IpAdapterChoice


Archive = Literal["parquet", "webdataset"]
ImageFormat = Literal["png", "jpg", "webp"]


@dataclass(frozen=True)
class BatchOptions:
    """Options that a batch has for itself, and those of a run that it says in other words."""

    image_format: ImageFormat = option(
        "png",
        section="Results",
        flags=("--format",),
        choices=get_args(ImageFormat),
        help="Format of the images.",
    )
    archive: Archive | None = option(
        None,
        section="Results",
        choices=get_args(Archive),
        help="Write all images into few files at the end: images.parquet, or images-000000.tar and so on.",
    )
    ray: str | None = option(
        None,
        section="Workers",
        form="address",
        metavar="[ADDRESS]",
        help="Draw with workers of Ray, one a GPU: on this machine, or on the cluster at ADDRESS (auto finds a running "
        "one).",
        doc="Draw with workers of Ray, one a GPU: ``local`` starts a Ray on this machine, ``auto`` or an address takes "
        "a running cluster. By default this process draws.",
    )
    workers: int | None = option(
        None,
        section="Workers",
        within=WORKERS,
        needs="ray",
        unset="one a GPU; without GPUs one a machine",
        help="Number of workers.",
    )
    seed: int | str | Sequence[int] | None = option_of(
        DrawnOptions,
        "seed",
        None,
        unset="one that the line's id decides",
        doc="Seeds of the noise, for lines without their own; by default each line's id decides one.",
    )
    images_at_once: int = option_of(
        DrawnOptions,
        "images_at_once",
        section="Results",
        help="Images that share a call of the UNet.",
    )
    quality: int | None = option_of(JobOptions, "quality")
    size: str | None = option_of(JobOptions, "size")
    lora_folder: Path | None = option_of(JobOptions, "lora_folder")
    wildcards: Path | None = option_of(JobOptions, "wildcards")


OWN = ("image_format", "archive", "ray", "workers")
"""Options that no run has: they say where images go and who draws them."""
OPTIONS = tuple(name for name in declared(DrawnOptions, BatchOptions, RuntimeOptions) if name != "prompt")
"""All options of a batch; those of drawing are for all lines, as far as a line says nothing else."""


def parted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the runtime, and those of drawing.

    Raises:
        TypeError: a batch has no such option.
    """
    if unknown := sorted(options.keys() - {*OPTIONS}):
        raise TypeError(f"there is no option {', '.join(unknown)} of a batch; there are {', '.join(OPTIONS)}")
    runtime = {name: value for name, value in options.items() if name in declared(RuntimeOptions)}
    drawing = {name: value for name, value in options.items() if name not in {*runtime, *OWN}}
    return runtime, drawing


# Written by scripts/option_keywords.py from what is declared above.


class BatchKeywords(LoadOptions, total=False):
    """Options of :func:`sdort.batch`, all optional."""

    negative_prompt: str | Sequence[str]
    """Text of what the images are not to show: one for all prompts, or one for each."""
    prompt_2: str | Sequence[str]
    """The prompt for SDXL's second text encoder, the larger one: one for all prompts, or one for each; by default the
    same."""
    negative_prompt_2: str | Sequence[str]
    """The negative prompt for SDXL's second text encoder; by default the same."""
    clip_skip: int
    """The text encoder's layer that conditions, counted from its last one as A1111 does: 1 (the default) skips none, 2
    takes the last but one. SDXL takes the last but one by itself: 1 and 2 are that."""
    prompt_weighting: str
    """How weights in prompts such as ``(word:1.2)`` are read and applied: ``a1111`` (the default), ``comfyui``, or
    ``none``, which takes prompts as plain text."""
    steps: int | None
    """Denoising steps; by default 25, of a few-step model those that it was made for, and 50 of DDIM, DDPM or PNDM that
    was asked for."""
    guidance_scale: float | None
    """How closely to follow the prompt; 1 turns guidance off. By default 7.5, or what a few-step model was made for."""
    height: int | None
    """Pixels; by default the pipeline's own."""
    width: int | None
    """Pixels; by default the pipeline's own."""
    seed: int | str | Sequence[int] | None
    """Seeds of the noise, for lines without their own; by default each line's id decides one."""
    num_images: int
    """How many images of each prompt; one by default."""
    scheduler: str | None
    """A short name (``ddim``, ``euler-a``, ``dpm++-2m-karras``, ...), A1111's name or the name of a class in diffusers;
    by default the pipeline's own. Without this, ``steps``, ``eta`` and ``timestep_spacing``, ``dpm++-2m-karras`` takes
    the place of DDIM, DDPM and PNDM."""
    timestep_spacing: str | None
    """``leading``, ``linspace`` or ``trailing``; by default as the scheduler's config says."""
    eta: float | None
    """The share of new noise in a step of DDIM (0 by default) or TCD (0.3)."""
    deep_cache: int | None
    """Run all of the UNet in every so many of its calls alone, and in the others its outer part with what the last
    whole call gave of the deep one: faster, and another image."""
    deep_cache_depth: int | None
    """How many of its skip connections that outer part has; by default 2."""
    init_image: ImageSource | None
    """An image to start from: a file, a picture of Pillow, or an array uint8 [height, width, 3]. Its size is the
    images' unless ``height`` or ``width`` say another; one with more than four times the pixels that the model was made
    for is scaled down to these."""
    strength: float | None
    """Share of the steps that change the init image: 1 leaves little of it. 0.75 by default, 1 with a mask."""
    mask: ImageSource | None
    """Where something new is generated: white, or the hole of a picture, of the init image's size. The rest stays."""
    mask_blur: int | None
    """Pixels by which the mask's edge is softened; 4 by default."""
    only_masked: bool
    """Generate what the mask selects and its surroundings alone, at the whole size, and put it back into the image."""
    mask_padding: int | None
    """Pixels around the mask that ``only_masked`` takes as its surroundings; 32 by default."""
    variation_strength: float | None
    """How far the images are from that of ``seed``: from 0, which is that image, to 1, that of ``variation_seed``. Each
    further image is another variation of the one seed."""
    variation_seed: int | None
    """Of the first variation; the second has ``variation_seed + 1``, and so on. By default random."""
    hires: float | None
    """Factor of the size to which the image is enlarged, in a second pass that starts from the first one's image."""
    hires_upscale: str | None
    """Start of the second pass: ``latent`` (interpolated latents, the default) or ``image`` (the decoded image,
    interpolated and encoded, which keeps more of it at a low ``hires_strength``)."""
    hires_strength: float | None
    """Share of the steps that change the enlarged image; 0.7 by default."""
    hires_steps: int | None
    """Steps of the second pass, of which ``hires_strength`` takes its share; by default as many as ``steps``."""
    hires_upscaler: str | Path | None
    """An upscaler's file (``.pth``, ``.safetensors`` or ``.onnx``) that enlarges the decoded image before the second
    pass, in place of interpolation."""
    upscale: str | Path | None
    """An upscaler's file that enlarges each finished image; ESRGAN and its kin, as for :func:`sdort.upscale`."""
    upscale_by: float | None
    """How many times as high and wide ``upscale`` makes an image; by default what the upscaler was made for."""
    refiner: str | Path | None
    """The folder of a second pipeline that takes the last steps: SDXL's refiner, or another model of the same
    latents."""
    refiner_start: float | None
    """Share of the schedule that the pipeline itself takes before ``refiner``; 0.8 by default."""
    aesthetic_score: float | None
    """The image's quality that SDXL's refiner is told, from 0 to 10; 6 by default."""
    negative_aesthetic_score: float | None
    """The score that goes with the negative prompt; 2.5 by default."""
    safety: str | None
    """Fate of an image that the pipeline's safety checker flags. ``on``, the default of a pipeline that has one: its
    pixels are black, :attr:`Image.flagged` is True, and it is not written. ``replace``: the black image is written, so
    that every image has its file. ``off``: no image is judged, which is told. A pipeline without a safety checker
    refuses ``on`` and ``replace``."""
    images_at_once: int
    """How many images share a call of the UNet, also of several prompts; four by default."""
    vae_tiling: bool | None
    """Decode in overlapping tiles; by default where memory asks for it."""
    vae_slicing: bool | None
    """Decode one image at a time; by default where memory asks for it."""
    lora: Sequence[str | AdapterChoice]
    """Adapters (LoRA, LoHa, LoKr, DoRA) as ``FILE`` or ``FILE:SCALE``; none by default. They hold for these images: the
    next call has its own, and switches without loading a model again."""
    control: Sequence[str | ControlChoice]
    """ControlNets and T2I-Adapters with their images, as ``DIR:IMAGE``, ``DIR:IMAGE:SCALE`` or
    ``DIR:IMAGE:SCALE:START:END`` (shares of the steps), or as
    :class:`sdort.generation.requests.control_choice.ControlChoice`, whose image may also be a picture of Pillow or an
    array; none by default."""
    guess_mode: bool
    """Let ControlNets steer the prompt alone, and their first outputs less than the last: with empty prompts a
    ControlNet then guesses what its image shows. Off by default."""
    ip_adapter_image: Sequence[str | IpAdapterChoice]
    """An image for each IP-Adapter of the pipeline, in the order of their export, as ``IMAGE`` or ``IMAGE:SCALE``, or
    as :class:`sdort.generation.requests.ip_adapter_choice.IpAdapterChoice`, whose image may also be a picture of Pillow
    or an array; none by default."""
    image_format: ImageFormat
    """Format of the images."""
    archive: Archive | None
    """Write all images into few files at the end: images.parquet, or images-000000.tar and so on."""
    ray: str | None
    """Draw with workers of Ray, one a GPU: ``local`` starts a Ray on this machine, ``auto`` or an address takes a
    running cluster. By default this process draws."""
    workers: int | None
    """Number of workers."""
    quality: int | None
    """Of JPEG and WebP, from 1 to 100; 95 by default, and 100 of WebP keeps every pixel."""
    size: str | None
    """Width and height in pixels, as ``768x512``, in place of both of these."""
    lora_folder: str | Path | None
    """The folder of the adapters that prompts name, ``<lora:style:0.8>``; by default that of the environment variable
    ``SDORT_LORA_FOLDER``."""
    wildcards: str | Path | None
    """The folder of text files that prompts take lines of, ``__animal__``; by default that of the environment variable
    ``SDORT_WILDCARDS``."""
