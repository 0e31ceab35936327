"""The record of a generation: the parameters and what they ran on, as each PNG keeps it and ``--json`` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from sdort.generation.decode import Plan


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of each stage; ``first_step`` is part of ``denoise``."""

    load: float
    """Loading the models."""
    encode: float
    """Text encoders."""
    encode_image: float
    """VAE encoder."""
    denoise: float
    """All steps, the first one included."""
    first_step: float
    """The first step."""
    decode: float
    """VAE decoder."""
    upscale: float = 0.0
    """Upscalers, of finished images and before a second pass."""
    judge: float = 0.0
    """Safety checker."""


@dataclass(frozen=True)
class AdapterRecord:
    """An adapter that changed the pipeline."""

    name: str
    """The name of its file."""
    scale: float
    """How strongly it was applied; 1 is as it was trained."""
    sha256: str
    """The hash of its file."""
    tensors_sha256: str
    """The hash of its file without the header, by which A1111 and model sites know it."""
    text_scale: float | None = None
    """How strongly it was applied to the text encoders; None as ``scale``."""


@dataclass(frozen=True)
class ControlRecord:
    """A ControlNet or T2I-Adapter that steered a generation."""

    name: str
    """The name of its folder."""
    model_hash: str
    """A hash of its model's file and weights."""
    image: str
    """The name of the control image's file; empty for a picture in memory."""
    image_hash: str
    """A hash of the control image's size and pixels."""
    scale: float
    """How strongly it steered; 1 is as it was trained."""
    start: float
    """The share of the steps before it began."""
    end: float
    """The share of the steps after which it ended."""


@dataclass(frozen=True)
class IpAdapterRecord:
    """An image that an IP-Adapter took."""

    name: str
    """The name of the image's file, ``the image`` for a picture in memory."""
    image_hash: str
    """A hash of the image's size and pixels."""
    scale: float
    """How much it counted; 1 is as the adapter was trained."""


@dataclass(frozen=True, kw_only=True)
class GenerationRecord:
    """Parameters of a generation, and what it ran on."""

    prompt: str
    """The prompt."""
    negative_prompt: str
    """The negative prompt; empty if there is none."""
    templates: dict[str, str]
    """Prompt -> the text with ``{a|b}`` or ``__name__`` that the seed drew it from; those alone that were drawn."""
    prompt_2: str
    """The prompt for SDXL's second text encoder; empty if it is the same."""
    negative_prompt_2: str
    """The negative prompt for SDXL's second text encoder; empty if it is the same."""
    clip_skip: int
    """The text encoder's layer that conditioned, counted from the last one, which is 1."""
    prompt_weighting: str
    """How weights in the prompts were read: ``a1111``, ``comfyui`` or ``none``."""
    steps: int
    """Denoising steps."""
    guidance_scale: float
    """Weight of the prompt; 1 is without guidance."""
    height: int
    """Height in pixels that was generated; with ``hires``, before the second pass."""
    width: int
    """Width in pixels that was generated; with ``hires``, before the second pass."""
    seed: int
    """Seed of the first image; each further image's is one higher."""
    num_images: int
    """Number of images."""
    scheduler: str
    """The class in diffusers."""
    scheduler_name: str | None
    """The scheduler as it was asked for; None for the pipeline's own."""
    timestep_spacing: str | None
    """The timestep spacing that was asked for; None as the scheduler's config says."""
    eta: float | None
    """The share of new noise in a step that was asked for; None for the scheduler's default."""
    deep_cache: int | None
    """After how many calls of the UNet all of it ran again; None if that was not asked for."""
    deep_cache_depth: int | None
    """Skip connections of the UNet that ran in every call; None without ``deep_cache``."""
    init_image: str | None
    """The name of the init image's file, ``the image`` for a picture in memory; None without one."""
    init_image_hash: str | None
    """A hash of the init image's size and pixels; None without one."""
    strength: float | None
    """Share of the steps that changed the init image; None without one."""
    mask: str | None
    """The name of the mask's file, ``the image`` for a picture in memory; None without one."""
    mask_hash: str | None
    """A hash of the mask's size and pixels; None without one."""
    mask_blur: int | None
    """Pixels by which the mask was blurred; None without one."""
    only_masked: bool
    """Whether the masked region alone was generated, and put back into the init image."""
    mask_padding: int | None
    """Pixels around the mask that belong to its region; None if there was no region."""
    variation_seed: int | None
    """Seed of the first variation; each further image's is one higher. None without variations."""
    variation_strength: float | None
    """How far the variations are from the seed's image, from 0 to 1; None without variations."""
    hires: float | None
    """Factor of the size that the second pass made; None without one."""
    hires_upscale: str | None
    """What the second pass began with: ``latent`` or ``image``; None without one."""
    hires_strength: float | None
    """Share of the steps that the second pass took; None without one."""
    hires_steps: int | None
    """Steps of the second pass, of which ``hires_strength`` is taken; None without one."""
    hires_upscaler: str | None
    """The name of the upscaler that enlarged the image before the second pass; None without one."""
    upscale: str | None
    """The name of the upscaler that enlarged the finished images; None without one."""
    upscale_by: float | None
    """How many times as high and wide it made them; None without one."""
    refiner: str | None
    """The name of the folder of the pipeline that took the last steps; None without one."""
    refiner_hash: str | None
    """Hash of the refiner's files; None without one."""
    refiner_start: float | None
    """Share of the schedule before it; None without one."""
    aesthetic_score: float | None
    """The aesthetic score that was asked for; None for the refiner's default, and without one."""
    negative_aesthetic_score: float | None
    """The negative prompt's score that was asked for; None for the default, and without a refiner."""
    safety: str | None
    """What becomes of an image that the safety checker flags: ``on`` (it is not written), ``replace`` (it is black) or
    ``off`` (nothing is judged); None of a pipeline without a safety checker."""
    images_at_once: int
    """Images in one batch."""
    vae_tiling: bool | None
    """Whether decoding in tiles was asked for; None if nothing was said."""
    vae_slicing: bool | None
    """Whether decoding one by one was asked for; None if nothing was said."""
    lora: list[AdapterRecord]
    """Adapters, in the order in which they were given."""
    control: list[ControlRecord]
    """ControlNets and T2I-Adapters, in the order in which they were given."""
    guess_mode: bool
    """Whether ControlNets steered the prompt alone, their first outputs weakly."""
    ip_adapter_image: list[IpAdapterRecord]
    """The images of IP-Adapters, in the order of these."""
    model: str
    """The name of the checkpoint that the pipeline was made of; its folder's where nothing tells."""
    checkpoint_sha256: str | None
    """The SHA-256 of the single file that the pipeline was made of on first use; None for others."""
    model_hash: str
    """Hash of the pipeline's files."""
    provider: str
    """The execution provider that ran the UNet."""
    requested_provider: str
    """The execution provider that was asked for, or ``auto``."""
    fallback: str | None
    """Why the provider, or a component's, is not the requested one; None if all are."""
    tuning: bool
    """Whether kernels were searched for."""
    device: str
    """Name of the processor or GPU."""
    custom_ops: str | None
    """A short hash of the library of custom operators; None without one."""
    graph: bool
    """Whether steps were replayed as a HIP or CUDA graph."""
    decoded: Plan | None
    """How the last latents were decoded, in the end."""
    flagged: bool | None
    """Whether the safety checker flagged the image, of several images one of them; None if it was not asked."""
    widened: dict[str, str]
    """Component -> what of it was done again in fp32."""
    seconds: StageSeconds
    """Seconds of each stage."""
    versions: dict[str, str]
    """Package -> version."""
