"""Options of a generation and of loading, by the names that :func:`sdort.run` and ``sdort run`` share.

Each is declared once, here; ``scripts/option_keywords.py`` writes the keyword arguments at the end of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypedDict, get_type_hints

if TYPE_CHECKING:
    from sdort.adapters.adapter_choice import AdapterChoice
    from sdort.generation.latents.preview import OnPreview
    from sdort.generation.pictures.input_image import ImageSource
    from sdort.generation.requests.control_choice import ControlChoice
    from sdort.generation.requests.ip_adapter_choice import IpAdapterChoice

from sdort.errors import UsageError
from sdort.options.declared_options import made_of, option, ranges_of
from sdort.options.number_ranges import (
    CLIP_SKIP,
    HEIGHT,
    NUM_IMAGES,
    QUALITY,
    SEED,
    STEPS,
    WIDTH,
    check_fields,
)
from sdort.options.option_types import check_types
from sdort.providers.runtime_options import LoadOptions, RuntimeOptions

OnProgress = Callable[[float, float], None]
"""Called with the steps that are done and all there are, both times the number of images."""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options of a run that are in no record: where prompts come from, what becomes of images, and who is told."""

    prompts: str | Path | None = option(
        None,
        section="Prompts and images",
        metavar="FILE",
        help="File of prompts: one a line (# begins a comment), or .jsonl with options for each line.",
        doc="A file of prompts, in place of ``prompt``: one a line, or ``.jsonl`` with options of each line.",
        not_replayed="the image has its prompt",
        after="negative_prompt",
    )
    from_image: str | Path | None = option(
        None,
        section="Prompts and images",
        metavar="FILE",
        help="Repeat an image that sdort, AUTOMATIC1111 or ComfyUI made. The file (PNG, JPEG, WebP) supplies the "
        "prompt and every option that you do not give.",
        doc="An image of sdort's, A1111's or ComfyUI's (PNG, JPEG or WebP), to take the prompt and all options from "
        "that are not given.",
        not_replayed="it is this image",
        after="prompts",
    )
    size: str | None = option(
        None,
        section="Prompts and images",
        form="size",
        metavar="WxH",
        unset="the model's own",
        help="Width and height in pixels, such as 768x512.",
        doc="Width and height in pixels, as ``768x512``, in place of both of these.",
        not_replayed="height and width say it",
        after="prompt_weighting",
    )
    lora_folder: str | Path | None = option(
        None,
        section="Adapters",
        metavar="DIR",
        unset="the variable SDORT_LORA_FOLDER",
        help="Folder of the adapters that prompts name: <lora:style:0.8> takes style.safetensors.",
        doc="The folder of the adapters that prompts name, ``<lora:style:0.8>``; by default that of the environment "
        "variable ``SDORT_LORA_FOLDER``.",
        not_replayed="where adapters lie",
        after="lora",
    )
    wildcards: str | Path | None = option(
        None,
        section="Prompts and images",
        metavar="DIR",
        unset="the variable SDORT_WILDCARDS",
        help="Folder of text files: __animal__ in a prompt takes a line of animal.txt, drawn by the seed.",
        doc="The folder of text files that prompts take lines of, ``__animal__``; by default that of the environment "
        "variable ``SDORT_WILDCARDS``.",
        not_replayed="the image has what was drawn",
        after="clip_skip",
    )
    output: str | Path | None = option(
        None,
        section="Results",
        flags=("-o", "--output"),
        form="file",
        unset="sdort-SEED.png",
        help="Image to write: .png, .jpg or .webp. Several images get -1, -2, ... before the suffix, or the names of a "
        "template such as {index:03}-{seed}-{prompt}.png. A missing folder is made.",
        doc="A file to write each image to as soon as it is done, with its parameters inside: ``.png``, ``.jpg``, "
        "``.jpeg`` or ``.webp``. Several images get -1, -2, ... before the suffix, or the names of a template such as "
        "``out/{index:03}-{seed}-{prompt}.png``. Its folder is made where it is missing. By default nothing is "
        "written: see :meth:`Generation.save`.",
        not_replayed="where the image goes",
    )
    grid: bool = option(
        False,
        section="Results",
        help="Also write one picture of all images with their seeds, NAME-grid.",
        doc="Also write one picture of all images, with their seeds: beside ``output`` as ``NAME-grid``. Off by "
        "default.",
        not_replayed="where the image goes",
    )
    quality: int | None = option(
        None,
        section="Results",
        within=QUALITY,
        unset="95",
        help="Quality of .jpg and .webp. At 100 .webp keeps every pixel, as .png does.",
        doc="Of JPEG and WebP, from 1 to 100; 95 by default, and 100 of WebP keeps every pixel.",
        not_replayed="how the file is written",
    )
    overwrite: bool = option(
        False,
        section="Results",
        help="Replace outputs that exist.",
        doc="Replace ``output`` if it exists.",
        not_replayed="where the image goes",
    )
    on_progress: OnProgress | None = option(
        None,
        doc="Called after each step of a batch with the steps done and in all, times images.",
        not_replayed="what is shown meanwhile",
    )
    cancel: Event | None = option(
        None,
        doc="Ends the call with :class:`sdort.errors.CancelledError` soon after another thread has set it: before the "
        "next step or tile, or while the call waits for its turn.",
        not_replayed="when the run ends",
    )


@dataclass(frozen=True, kw_only=True)
class DrawnOptions:
    """Options that say what is drawn, as a caller gives them; the record of an image has all of them."""

    prompt: str | Sequence[str] = option(
        "",
        section="Prompts and images",
        metavar="TEXT",
        help="What the images show. Repeatable: each prompt gets --num-images images, with the same seeds.",
        positional=True,
    )
    negative_prompt: str | Sequence[str] = option(
        "",
        section="Prompts and images",
        metavar="TEXT",
        help="What the images must not show. Give it once for all prompts, or once for each prompt.",
        doc="Text of what the images are not to show: one for all prompts, or one for each.",
    )
    prompt_2: str | Sequence[str] = option(
        "",
        section="Prompts and images",
        metavar="TEXT",
        unset="as --prompt",
        help="Prompt for SDXL's second text encoder.",
        doc="The prompt for SDXL's second text encoder, the larger one: one for all prompts, or one for each; by "
        "default the same.",
    )
    negative_prompt_2: str | Sequence[str] = option(
        "",
        section="Prompts and images",
        metavar="TEXT",
        unset="as --negative-prompt",
        help="Negative prompt for SDXL's second text encoder.",
        doc="The negative prompt for SDXL's second text encoder; by default the same.",
    )
    clip_skip: int = option(
        1,
        section="Prompts and images",
        within=CLIP_SKIP,
        help="Layer of the text encoder that is read, counted from the last. Many anime models want 2.",
        doc="The text encoder's layer that conditions, counted from its last one as A1111 does: 1 (the default) skips "
        "none, 2 takes the last but one. SDXL takes the last but one by itself: 1 and 2 are that.",
        a1111=("Clip skip",),
    )
    prompt_weighting: str = option(
        "a1111",
        section="Prompts and images",
        choices=("a1111", "comfyui", "none"),
        help="How (word:1.2), (word) and [word] in prompts are read: as in AUTOMATIC1111, as in ComfyUI, or as plain "
        "text.",
        doc="How weights in prompts such as ``(word:1.2)`` are read and applied: ``a1111`` (the default), ``comfyui``, "
        "or ``none``, which takes prompts as plain text.",
        a1111=("Prompt weighting",),
    )
    steps: int | None = option(
        None,
        section="Sampling",
        within=STEPS,
        unset="25, or fewer for a few-step model",
        help="Denoising steps.",
        doc="Denoising steps; by default 25, of a few-step model those that it was made for, and 50 of DDIM, DDPM or "
        "PNDM that was asked for.",
        schedule=True,
        a1111=("Steps",),
        comfyui="KSampler.steps",
    )
    guidance_scale: float | None = option(
        None,
        section="Sampling",
        within=(0.0, 1000.0, "the UNet's output is multiplied by it, usual are 1 (no guidance) to 20"),
        unset="7.5, or that of a few-step model",
        help="How closely the images follow the prompt. 1 turns guidance off.",
        doc="How closely to follow the prompt; 1 turns guidance off. By default 7.5, or what a few-step model was made "
        "for.",
        schedule=False,
        a1111=("CFG scale",),
        comfyui="KSampler.cfg",
    )
    height: int | None = option(
        None,
        section="Prompts and images",
        within=HEIGHT,
        unset="the model's own",
        help="Height in pixels.",
        doc="Pixels; by default the pipeline's own.",
        comfyui="EmptyLatentImage.height",
    )
    width: int | None = option(
        None,
        section="Prompts and images",
        within=WIDTH,
        unset="the model's own",
        help="Width in pixels.",
        doc="Pixels; by default the pipeline's own.",
        comfyui="EmptyLatentImage.width",
    )
    seed: int | str | Sequence[int] | None = option(
        None,
        section="Prompts and images",
        within=SEED,
        metavar="INTEGERS",
        unset="random",
        help="Seed of the noise. The same seed gives the same image. Several seeds, such as 1,5,10-20, give each "
        "prompt that many images. With --num-images, each further image has the next seed.",
        doc="Of the first image; the second of ``num_images`` has ``seed + 1``, and so on. The same seed gives the "
        'same image; by default random. Several, as a list or as ``"1,5,10-20"``, each give ``num_images`` images '
        "of each prompt.",
        a1111=("Seed",),
        comfyui="KSampler.seed",
        form="text",
    )
    num_images: int = option(
        1,
        section="Prompts and images",
        within=NUM_IMAGES,
        help="Number of images of each prompt.",
        doc="How many images of each prompt; one by default.",
        not_replayed="an image is one image",
    )
    scheduler: str | None = option(
        None,
        section="Sampling",
        metavar="NAME",
        unset="the pipeline's own; without --steps dpm++-2m-karras for a slow one",
        completes="schedulers",
        help="Sampler, such as euler-a or dpm++-2m-karras. A short name (ddim, euler, euler-a, dpm++-2m, unipc, lcm, "
        "tcd, ..., also with -karras, -exponential, -beta), A1111's name (\"DPM++ 2M Karras\") or diffusers' class "
        "name.",
        doc="A short name (``ddim``, ``euler-a``, ``dpm++-2m-karras``, ...), A1111's name or the name of a class in "
        "diffusers; by default the pipeline's own. Without this, ``steps``, ``eta`` and ``timestep_spacing``, "
        "``dpm++-2m-karras`` takes the place of DDIM, DDPM and PNDM.",
        schedule=True,
        recorded_as="scheduler_name",
    )
    timestep_spacing: str | None = option(
        None,
        section="Sampling",
        choices=("leading", "linspace", "trailing"),
        unset="as the scheduler's config says",
        help="How the scheduler chooses its timesteps. Turbo, Lightning and Hyper models want trailing.",
        doc="``leading``, ``linspace`` or ``trailing``; by default as the scheduler's config says.",
        schedule=True,
    )
    shift: float | None = option(
        None,
        section="Sampling",
        within=(0.001, 100.0, "noise levels are divided by it"),
        unset="as the scheduler's config says",
        help="Shift of the noise levels of a model of flow matching: more for larger images.",
        doc="Shift of the noise levels of a model of flow matching; by default the config's own, which may follow the "
        "size.",
        schedule=True,
    )
    eta: float | None = option(
        None,
        section="Sampling",
        within=(0.0, 1.0, "it is the share of a step's noise that is new"),
        unset="0 with ddim, 0.3 with tcd",
        help="Share of new noise in each step of ddim or tcd.",
        doc="The share of new noise in a step of DDIM (0 by default) or TCD (0.3).",
        schedule=True,
        a1111=("Eta", "Eta DDIM"),
    )
    deep_cache: int | None = option(
        None,
        section="Sampling",
        within=(1, STEPS.high, "it is after how many steps the whole UNet runs again"),
        metavar="N",
        unset="every step computes all",
        help="Compute the deep part of the UNet in every Nth step only (DeepCache). 3 about halves the time of the "
        "steps. The image changes a little.",
        doc="Run all of the UNet in every so many of its calls alone, and in the others its outer part with what the "
        "last whole call gave of the deep one: faster, and another image.",
        schedule=False,
        a1111=("Deep cache",),
    )
    deep_cache_depth: int | None = option(
        None,
        section="Sampling",
        within=(1, 100, "it is a number of a UNet's skip connections, which has 9 to 12"),
        unset="2",
        help="Number of the UNet's skip connections that every step computes. More are slower, and closer to the image "
        "without --deep-cache.",
        doc="How many of its skip connections that outer part has; by default 2.",
        needs="deep_cache",
        schedule=False,
        a1111=("Deep cache depth",),
    )
    patches: int | None = option(
        None,
        section="Sampling",
        within=(2, 16, "it is the number of GPUs that share an image"),
        metavar="N",
        unset="a GPU computes all rows of an image",
        help="Cut each image into N patches for as many GPUs of --devices: each computes some rows, with borders that "
        "are a step old. The image changes a little.",
        doc="Cut each image into so many patches, of which each of as many GPUs (``devices``) computes one, with what "
        "the others' patches were in the step before: faster, and another image.",
        schedule=False,
        a1111=("Patches",),
    )
    exact_steps: int | None = option(
        None,
        section="Sampling",
        within=(1, STEPS.high, "it is a number of steps"),
        metavar="K",
        unset="4",
        help="Number of the first steps that --patches computes whole. More are slower, and closer to the image "
        "without it.",
        doc="How many of the first calls of the UNet are whole with ``patches``; by default 4.",
        needs="patches",
        schedule=False,
        a1111=("Exact steps",),
    )
    init_image: ImageSource | None = option(
        None,
        section="From an image",
        metavar="FILE",
        completes="files",
        help="Image to start from. The result has the size of this image unless you give --size.",
        doc="An image to start from: a file, a picture of Pillow, or an array uint8 [height, width, 3]. Its size is "
        "the images' unless ``height`` or ``width`` say another; one with more than four times the pixels that the "
        "model was made for is scaled down to these.",
        names_file=True,
    )
    strength: float | None = option(
        None,
        section="From an image",
        within=(0.0, 1.0, "it is the share of the steps that change the init image"),
        unset="0.75, with --mask 1",
        help="Share of the steps that change the init image.",
        doc="Share of the steps that change the init image: 1 leaves little of it. 0.75 by default, 1 with a mask.",
        needs="init_image",
    )
    mask: ImageSource | None = option(
        None,
        section="From an image",
        metavar="FILE",
        completes="files",
        help="Image whose white or transparent part is replaced. It has the size of the init image. The rest of the "
        "init image stays.",
        doc="Where something new is generated: white, or the hole of a picture, of the init image's size. The rest "
        "stays.",
        needs="init_image",
        names_file=True,
    )
    mask_blur: int | None = option(
        None,
        section="From an image",
        within=(0, 256, "it is in pixels of the init image"),
        unset="4",
        help="Pixels by which the mask's edge is softened.",
        doc="Pixels by which the mask's edge is softened; 4 by default.",
        needs="mask",
        a1111=("Mask blur",),
    )
    only_masked: bool = option(
        False,
        section="From an image",
        help="Generate only the masked area and its surroundings, at the full size. The result is put back into the "
        "image.",
        doc="Generate what the mask selects and its surroundings alone, at the whole size, and put it back into the "
        "image.",
        needs="mask",
    )
    mask_padding: int | None = option(
        None,
        section="From an image",
        within=(0, 16384, "it is in pixels of the init image"),
        unset="32",
        help="Pixels around the mask that --only-masked includes.",
        doc="Pixels around the mask that ``only_masked`` takes as its surroundings; 32 by default.",
        needs="only_masked",
        a1111=("Masked area padding",),
    )
    variation_strength: float | None = option(
        None,
        section="Variations",
        within=(0.0, 1.0, "0 is the seed's image, 1 is that of --variation-seed"),
        unset="no variations",
        help="Vary the image of --seed: 0 gives that image, 1 the image of --variation-seed.",
        doc="How far the images are from that of ``seed``: from 0, which is that image, to 1, that of "
        "``variation_seed``. Each further image is another variation of the one seed.",
        a1111=("Variation seed strength",),
    )
    variation_seed: int | None = option(
        None,
        section="Variations",
        within=SEED,
        unset="random",
        help="Seed of the first variation. Each further variation has the next seed.",
        doc="Of the first variation; the second has ``variation_seed + 1``, and so on. By default random.",
        needs="variation_strength",
        a1111=("Variation seed",),
    )
    hires: float | None = option(
        None,
        section="Larger images",
        within=(1.0, 8.0, "larger images are made in several turns, from an init image"),
        metavar="SCALE",
        help="Enlarge by this factor, in a second pass.",
        doc="Factor of the size to which the image is enlarged, in a second pass that starts from the first one's "
        "image.",
        a1111=("Hires upscale",),
    )
    hires_upscale: str | None = option(
        None,
        section="Larger images",
        choices=("latent", "image"),
        unset="latent",
        help="What the second pass enlarges: the latents, or the decoded image. The decoded image keeps more of the "
        "first pass.",
        doc="Start of the second pass: ``latent`` (interpolated latents, the default) or ``image`` (the "
        "decoded image, interpolated and encoded, which keeps more of it at a low ``hires_strength``).",
        needs="hires",
    )
    hires_strength: float | None = option(
        None,
        section="Larger images",
        within=(0.0, 1.0, "it is the share of the steps that change the upscaled image"),
        unset="0.7",
        help="Share of the steps that change the enlarged image.",
        doc="Share of the steps that change the enlarged image; 0.7 by default.",
        needs="hires",
    )
    hires_steps: int | None = option(
        None,
        section="Larger images",
        within=STEPS,
        unset="--steps",
        help="Number of steps of the second pass.",
        doc="Steps of the second pass, of which ``hires_strength`` takes its share; by default as many as ``steps``.",
        needs="hires",
        a1111=("Hires steps",),
    )
    hires_upscaler: str | Path | None = option(
        None,
        section="Larger images",
        metavar="FILE",
        help="Upscaler that enlarges the decoded image before the second pass.",
        doc="An upscaler's file (``.pth``, ``.safetensors`` or ``.onnx``) that enlarges the decoded image before the "
        "second pass, in place of interpolation.",
        needs="hires",
        names_file=True,
    )
    upscale: str | Path | None = option(
        None,
        section="Larger images",
        metavar="FILE",
        help="Upscaler for each finished image. It is an ESRGAN or one of its kin, as .pth, .safetensors or .onnx.",
        doc="An upscaler's file that enlarges each finished image; ESRGAN and its kin, as for :func:`sdort.upscale`.",
        names_file=True,
        not_replayed="it is done with the finished image",
    )
    upscale_by: float | None = option(
        None,
        section="Larger images",
        within=(0.1, 32.0, "it is how many times as high and wide the image becomes"),
        metavar="SCALE",
        unset="the upscaler's own factor",
        help="How many times as high and wide --upscale makes the image.",
        doc="How many times as high and wide ``upscale`` makes an image; by default what the upscaler was made for.",
        needs="upscale",
        not_replayed="it is done with the finished image",
    )
    refiner: str | Path | None = option(
        None,
        section="Refiner",
        metavar="DIR",
        help="Second pipeline that takes the last steps: SDXL's refiner, or another model with the same latents.",
        doc="The folder of a second pipeline that takes the last steps: SDXL's refiner, or another model of the same "
        "latents.",
        names_file=True,
    )
    refiner_start: float | None = option(
        None,
        section="Refiner",
        within=(0.0, 1.0, "it is the share of the schedule that the base takes"),
        unset="0.8",
        help="Share of the schedule that the first pipeline takes.",
        doc="Share of the schedule that the pipeline itself takes before ``refiner``; 0.8 by default.",
        needs="refiner",
        a1111=("Refiner switch at",),
    )
    aesthetic_score: float | None = option(
        None,
        section="Refiner",
        within=(0.0, 10.0, "SDXL's refiner was trained on scores from 0 to 10"),
        unset="6",
        help="Image quality that SDXL's refiner aims at.",
        doc="The image's quality that SDXL's refiner is told, from 0 to 10; 6 by default.",
    )
    negative_aesthetic_score: float | None = option(
        None,
        section="Refiner",
        within=(0.0, 10.0, "SDXL's refiner was trained on scores from 0 to 10"),
        unset="2.5",
        help="Image quality that belongs to the negative prompt.",
        doc="The score that goes with the negative prompt; 2.5 by default.",
    )
    safety: str | None = option(
        None,
        section="Safety checker",
        choices=("on", "off", "replace"),
        unset="on, if the pipeline has a safety checker",
        help="What happens to an image that the pipeline's safety checker flags. on: sdort does not write it, writes "
        "the others, and ends with exit code 1. replace: a black image takes its place. off: sdort does not ask the "
        "checker.",
        doc="Fate of an image that the pipeline's safety checker flags. ``on``, the default of a pipeline that "
        "has one: its pixels are black, :attr:`Image.flagged` is True, and it is not written. ``replace``: the black "
        "image is written, so that every image has its file. ``off``: no image is judged, which is told. A pipeline "
        "without a safety checker refuses ``on`` and ``replace``.",
        not_replayed="whoever draws decides it",
    )
    images_at_once: int = option(
        4,
        within=(1, 1024, "more of them gain no speed"),
        doc="How many images share a call of the UNet, also of several prompts; four by default.",
        not_replayed="each image is what it is alone",
    )
    vae_tiling: bool | None = option(
        None,
        section="Decoding",
        negated=True,
        unset="when memory asks for it",
        help="Decode in overlapping tiles. A large image then needs the memory of a small one.",
        doc="Decode in overlapping tiles; by default where memory asks for it.",
    )
    vae_slicing: bool | None = option(
        None,
        section="Decoding",
        negated=True,
        unset="on CUDA, elsewhere when memory asks for it",
        help="Decode several images one by one.",
        doc="Decode one image at a time; by default on CUDA, and elsewhere where memory asks for it.",
    )
    lora: Sequence[str | AdapterChoice] = option(
        (),
        section="Adapters",
        metavar="FILE[:SCALE]",
        completes="files",
        help="LoRA, LoHa, LoKr or DoRA adapter (repeatable). It changes the UNet and the text encoders.",
        doc="Adapters (LoRA, LoHa, LoKr, DoRA) as ``FILE`` or ``FILE:SCALE``; none by default. They hold for these "
        "images: the next call has its own, and switches without loading a model again.",
        names_file=True,
    )
    control: Sequence[str | ControlChoice] = option(
        (),
        section="Control images",
        metavar="DIR:IMAGE[:SCALE[:START:END]]",
        completes="files",
        help="ControlNet or T2I-Adapter, and its control image. The image must be ready for the model: edges, depth or "
        "a pose. START and END are shares of the steps. Repeatable. The pipeline needs the inputs of sdort export "
        "--control.",
        doc="ControlNets and T2I-Adapters with their images, as ``DIR:IMAGE``, ``DIR:IMAGE:SCALE`` or "
        "``DIR:IMAGE:SCALE:START:END`` (shares of the steps), or as "
        ":class:`sdort.generation.requests.control_choice.ControlChoice`, whose image may also be a picture of Pillow "
        "or an array; none by default.",
        names_file=True,
    )
    guess_mode: bool = option(
        False,
        section="Control images",
        help="Let ControlNets act only where the prompt acts, and weaken their first outputs. The ControlNet then "
        "guesses what its image shows.",
        doc="Let ControlNets steer the prompt alone, and their first outputs less than the last: with empty prompts a "
        "ControlNet then guesses what its image shows. Off by default.",
    )
    ip_adapter_image: Sequence[str | IpAdapterChoice] = option(
        (),
        section="IP-Adapter",
        metavar="IMAGE[:SCALE]",
        completes="files",
        help="Image for the pipeline's IP-Adapter, beside the prompt. Repeatable, one for each adapter. The pipeline "
        "needs sdort export --ip-adapter. [scale: 1]",
        doc="An image for each IP-Adapter of the pipeline, in the order of their export, as ``IMAGE`` or "
        "``IMAGE:SCALE``, or as :class:`sdort.generation.requests.ip_adapter_choice.IpAdapterChoice`, whose image may "
        "also be a picture of Pillow or an array; none by default.",
        names_file=True,
    )


@dataclass(frozen=True)
class PreviewOptions:
    """Options of previews.

    Raises:
        UsageError: a value that cannot be.
    """

    preview: bool = option(
        False,
        section="Previews",
        help="Show in the terminal how the image forms. A terminal without pictures gets a file beside the output "
        "instead.",
        doc="Show every few steps in the terminal what the images will be, or where it shows no pictures in a file "
        "beside the output.",
        not_replayed="what is shown meanwhile",
    )
    on_preview: OnPreview | None = option(
        None,
        doc="Called every few steps with a :class:`sdort.generation.latents.preview.Preview`, also without "
        "``preview``.",
        not_replayed="what is shown meanwhile",
    )
    preview_every: int = option(
        5,
        section="Previews",
        within=(1, 1000, "there are no more steps"),
        help="Number of UNet calls from one preview to the next.",
        doc="Calls of the UNet from a preview to the next, 5 by default.",
        not_replayed="what is shown meanwhile",
    )
    preview_vae: str | Path | None = option(
        None,
        section="Previews",
        metavar="DIR",
        unset="the pipeline's folder preview_vae, else none",
        help="Small exported VAE that decodes previews, such as TAESD. Without one, previews are rough.",
        doc="The folder of a small exported VAE that decodes previews, such as TAESD; by default the pipeline's own "
        "folder ``preview_vae``, and without one three weighted sums of the latents' channels, an eighth of the size.",
        not_replayed="what is shown meanwhile",
    )

    def __post_init__(self) -> None:
        check_fields(self, *ranges_of(PreviewOptions).values())
        if not self.wanted and self.preview_vae:
            raise UsageError("--preview-vae needs --preview")

    @property
    def wanted(self) -> bool:
        """Whether anybody looks at previews."""
        return self.preview or self.on_preview is not None


GENERATION = (JobOptions, DrawnOptions, PreviewOptions)
"""The declarations of a generation's options."""


def annotations_of(options: type) -> dict[str, Any]:
    """The types of options by their names, for :func:`sdort.options.option_types.check_types`.

    Args:
        options: one of this module's tables.
    """
    from sdort.adapters.adapter_choice import AdapterChoice
    from sdort.generation.requests.control_choice import ControlChoice
    from sdort.generation.requests.ip_adapter_choice import IpAdapterChoice

    choices = {choice.__name__: choice for choice in (AdapterChoice, ControlChoice, IpAdapterChoice)}
    # Whether something is an image is seen where it is read.
    return get_type_hints(options, localns={**choices, "ImageSource": object, "OnPreview": Callable[[Any], None]})


def runtime_options(options: LoadOptions, **more: Any) -> RuntimeOptions:
    """The runtime's options that these are, and ``more`` of them.

    Raises:
        TypeError: there is no option of that name.
        UsageError: a value is of another type than its option's.
    """
    check_types(options, annotations_of(LoadOptions), ranges_of(RuntimeOptions))
    return made_of(RuntimeOptions, options, **more)


# Written by scripts/option_keywords.py from what is declared above.


class DrawnKeywords(TypedDict, total=False):
    """Options that say what is drawn, all optional."""

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
    num_images: int
    """How many images of each prompt; one by default."""
    scheduler: str | None
    """A short name (``ddim``, ``euler-a``, ``dpm++-2m-karras``, ...), A1111's name or the name of a class in diffusers;
    by default the pipeline's own. Without this, ``steps``, ``eta`` and ``timestep_spacing``, ``dpm++-2m-karras`` takes
    the place of DDIM, DDPM and PNDM."""
    timestep_spacing: str | None
    """``leading``, ``linspace`` or ``trailing``; by default as the scheduler's config says."""
    shift: float | None
    """Shift of the noise levels of a model of flow matching; by default the config's own, which may follow the size."""
    eta: float | None
    """The share of new noise in a step of DDIM (0 by default) or TCD (0.3)."""
    deep_cache: int | None
    """Run all of the UNet in every so many of its calls alone, and in the others its outer part with what the last
    whole call gave of the deep one: faster, and another image."""
    deep_cache_depth: int | None
    """How many of its skip connections that outer part has; by default 2."""
    patches: int | None
    """Cut each image into so many patches, of which each of as many GPUs (``devices``) computes one, with what the
    others' patches were in the step before: faster, and another image."""
    exact_steps: int | None
    """How many of the first calls of the UNet are whole with ``patches``; by default 4."""
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
    """Decode one image at a time; by default on CUDA, and elsewhere where memory asks for it."""
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


class GenerationOptions(DrawnKeywords, total=False):
    """Options of :meth:`sdort.Pipeline.generate`, all optional."""

    prompts: str | Path | None
    """A file of prompts, in place of ``prompt``: one a line, or ``.jsonl`` with options of each line."""
    from_image: str | Path | None
    """An image of sdort's, A1111's or ComfyUI's (PNG, JPEG or WebP), to take the prompt and all options from that are
    not given."""
    size: str | None
    """Width and height in pixels, as ``768x512``, in place of both of these."""
    lora_folder: str | Path | None
    """The folder of the adapters that prompts name, ``<lora:style:0.8>``; by default that of the environment variable
    ``SDORT_LORA_FOLDER``."""
    wildcards: str | Path | None
    """The folder of text files that prompts take lines of, ``__animal__``; by default that of the environment variable
    ``SDORT_WILDCARDS``."""
    output: str | Path | None
    """A file to write each image to as soon as it is done, with its parameters inside: ``.png``, ``.jpg``, ``.jpeg`` or
    ``.webp``. Several images get -1, -2, ... before the suffix, or the names of a template such as
    ``out/{index:03}-{seed}-{prompt}.png``. Its folder is made where it is missing. By default nothing is written: see
    :meth:`Generation.save`."""
    grid: bool
    """Also write one picture of all images, with their seeds: beside ``output`` as ``NAME-grid``. Off by default."""
    quality: int | None
    """Of JPEG and WebP, from 1 to 100; 95 by default, and 100 of WebP keeps every pixel."""
    overwrite: bool
    """Replace ``output`` if it exists."""
    on_progress: OnProgress | None
    """Called after each step of a batch with the steps done and in all, times images."""
    cancel: Event | None
    """Ends the call with :class:`sdort.errors.CancelledError` soon after another thread has set it: before the next
    step or tile, or while the call waits for its turn."""
    seed: int | str | Sequence[int] | None
    """Of the first image; the second of ``num_images`` has ``seed + 1``, and so on. The same seed gives the same image;
    by default random. Several, as a list or as ``"1,5,10-20"``, each give ``num_images`` images of each prompt."""
    preview: bool
    """Show every few steps in the terminal what the images will be, or where it shows no pictures in a file beside the
    output."""
    on_preview: OnPreview | None
    """Called every few steps with a :class:`sdort.generation.latents.preview.Preview`, also without ``preview``."""
    preview_every: int
    """Calls of the UNet from a preview to the next, 5 by default."""
    preview_vae: str | Path | None
    """The folder of a small exported VAE that decodes previews, such as TAESD; by default the pipeline's own folder
    ``preview_vae``, and without one three weighted sums of the latents' channels, an eighth of the size."""


class RunOptions(GenerationOptions, LoadOptions, total=False):
    """Options of :func:`sdort.run`."""
