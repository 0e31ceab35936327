"""The record of a generation: the parameters and what they ran on, as each PNG keeps it and ``--json`` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from sdort.generation.latents.decode import Plan
from sdort.generation.requests.typed_options import DrawnOptions


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
class GenerationRecord(DrawnOptions):
    """Options of a generation, and what it ran on. An option that had no part in the images is null, such as
    ``hires_strength`` without ``hires``; files are named without their folders."""

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
    scheduler: str
    """The class in diffusers."""
    scheduler_name: str | None
    """The scheduler as it was asked for; None for the pipeline's own."""
    init_image: str | None
    """The name of the init image's file, ``the image`` for a picture in memory; None without one."""
    init_image_hash: str | None
    """A hash of the init image's size and pixels; None without one."""
    mask: str | None
    """The name of the mask's file, ``the image`` for a picture in memory; None without one."""
    mask_hash: str | None
    """A hash of the mask's size and pixels; None without one."""
    hires_upscaler: str | None
    """The name of the upscaler that enlarged the image before the second pass; None without one."""
    upscale: str | None
    """The name of the upscaler that enlarged the finished images; None without one."""
    refiner: str | None
    """The name of the folder of the pipeline that took the last steps; None without one."""
    refiner_hash: str | None
    """Hash of the refiner's files; None without one."""
    lora: list[AdapterRecord]  # type: ignore[assignment]
    """Adapters, in the order in which they were given."""
    control: list[ControlRecord]  # type: ignore[assignment]
    """ControlNets and T2I-Adapters, in the order in which they were given."""
    ip_adapter_image: list[IpAdapterRecord]  # type: ignore[assignment]
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
