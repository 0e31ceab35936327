"""Options of a generation and of loading, by the names that :func:`sdort.run` and ``sdort run`` share.

Defaults are those of :class:`sdort.generation.request.Request` and of :func:`sdort.load`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypedDict, get_type_hints

if TYPE_CHECKING:
    from sdort.generation.control_choice import ControlChoice
    from sdort.generation.ip_adapter_choice import IpAdapterChoice
    from sdort.generation.preview import OnPreview
    from sdort.pipelines.adapters.adapter_choice import AdapterChoice

from sdort.errors.option_types import check_types
from sdort.generation.input_image import ImageSource
from sdort.providers.runtime_options import RuntimeOptions

OnProgress = Callable[[float, float], None]
"""Called with the steps that are done and all there are, both times the number of images."""


class GenerationOptions(TypedDict, total=False):
    """Options of :meth:`sdort.Pipeline.generate`, all optional."""

    prompts: str | Path | None
    """A file of prompts, in place of ``prompt``: one a line, or ``.jsonl`` with options of each line."""
    from_image: str | Path | None
    """An image of sdort's, A1111's or ComfyUI's (PNG, JPEG or WebP), to take the prompt and all options from that are
    not given."""
    negative_prompt: str | Sequence[str]
    """What the images are not to show: one for all prompts, or one for each."""
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
    size: str | None
    """Width and height in pixels, as ``768x512``, in place of both of these."""
    height: int | None
    """Pixels; by default the pipeline's own."""
    width: int | None
    """Pixels; by default the pipeline's own."""
    seed: int | str | Sequence[int] | None
    """Of the first image; the second of ``num_images`` has ``seed + 1``, and so on. The same seed gives the same image;
    by default random. Several, as a list or as ``"1,5,10-20"``, each give ``num_images`` images of each prompt."""
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
    lora: Sequence[str | AdapterChoice]
    """Adapters (LoRA, LoHa, LoKr, DoRA) as ``FILE`` or ``FILE:SCALE``; none by default. They hold for these images: the
    next call has its own, and switches without loading a model again."""
    lora_folder: str | Path | None
    """The folder of the adapters that prompts name, ``<lora:style:0.8>``; by default that of the environment variable
    ``SDORT_LORA_FOLDER``."""
    wildcards: str | Path | None
    """The folder of text files that prompts take lines of, ``__animal__``; by default that of the environment variable
    ``SDORT_WILDCARDS``."""
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
    """What the second pass starts from: ``latent`` (interpolated latents, the default) or ``image`` (the decoded image,
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
    """What SDXL's refiner is told of the image's quality, from 0 to 10; 6 by default."""
    negative_aesthetic_score: float | None
    """The score that goes with the negative prompt; 2.5 by default."""
    control: Sequence[str | ControlChoice]
    """ControlNets and T2I-Adapters with their images, as ``DIR:IMAGE``, ``DIR:IMAGE:SCALE`` or
    ``DIR:IMAGE:SCALE:START:END`` (shares of the steps), or as :class:`sdort.generation.control_choice.ControlChoice`,
    whose image may also be a picture of Pillow or an array; none by default."""
    ip_adapter_image: Sequence[str | IpAdapterChoice]
    """An image for each IP-Adapter of the pipeline, in the order of their export, as ``IMAGE`` or ``IMAGE:SCALE``, or
    as :class:`sdort.generation.ip_adapter_choice.IpAdapterChoice`, whose image may also be a picture of Pillow or an
    array; none by default."""
    guess_mode: bool
    """Let ControlNets steer the prompt alone, and their first outputs less than the last: with empty prompts a
    ControlNet then guesses what its image shows. Off by default."""
    images_at_once: int
    """How many images share a call of the UNet, also of several prompts; four by default."""
    vae_tiling: bool | None
    """Decode in overlapping tiles; by default where memory asks for it."""
    vae_slicing: bool | None
    """Decode one image at a time; by default where memory asks for it."""
    safety: str | None
    """What becomes of an image that the pipeline's safety checker flags. ``on``, the default of a pipeline that has
    one: its pixels are black, :attr:`Image.flagged` is True, and it is not written. ``replace``: the black image is
    written, so that every image has its file. ``off``: no image is judged, which is told. A pipeline without a safety
    checker refuses ``on`` and ``replace``."""
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
    preview: bool
    """Show every few steps in the terminal what the images will be, or where it shows no pictures in a file beside the
    output."""
    on_preview: OnPreview | None
    """Called every few steps with a :class:`sdort.generation.preview.Preview`, also without ``preview``."""
    preview_every: int
    """Calls of the UNet from a preview to the next, 5 by default."""
    preview_vae: str | Path | None
    """The folder of a small exported VAE that decodes previews, such as TAESD; by default the pipeline's own folder
    ``preview_vae``, and without one three weighted sums of the latents' channels, an eighth of the size."""


class LoadOptions(TypedDict, total=False):
    """Options of :func:`sdort.load`, which says what each is."""

    provider: str
    tuning: bool
    graph: bool
    fallback: bool | None
    device_id: int
    provider_options: Mapping[str, str] | None
    split: bool
    custom_ops: str
    adapters: bool
    check: bool
    memory: str | None


def annotations_of(options: type) -> dict[str, Any]:
    """The types of options by their names, for :func:`sdort.errors.option_types.check_types`.

    Args:
        options: one of this module's tables.
    """
    from sdort.generation.control_choice import ControlChoice
    from sdort.generation.ip_adapter_choice import IpAdapterChoice
    from sdort.pipelines.adapters.adapter_choice import AdapterChoice

    choices = {choice.__name__: choice for choice in (AdapterChoice, ControlChoice, IpAdapterChoice)}
    # Whether something is an image is seen where it is read.
    return get_type_hints(options, localns={**choices, "ImageSource": object, "OnPreview": Callable[[Any], None]})


def runtime_options(options: LoadOptions, **more: Any) -> RuntimeOptions:
    """The runtime's options that these are, and ``more`` of them.

    Raises:
        TypeError: there is no option of that name.
        UsageError: a value is of another type than its option's.
    """
    check_types(options, annotations_of(LoadOptions))
    given: dict[str, Any] = {**options, "provider_options": options.get("provider_options") or {}}
    return RuntimeOptions(**given, **more)


class RunOptions(GenerationOptions, LoadOptions, total=False):
    """Options of :func:`sdort.run`."""
