"""The record of a generation: the parameters and what they ran on, as each PNG keeps it and ``--json`` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from sdort.generation.decode import Plan


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of each stage; ``first_step`` is part of ``denoise``."""

    load: float
    encode: float
    denoise: float
    first_step: float
    decode: float


@dataclass(frozen=True, kw_only=True)
class GenerationRecord:
    """Parameters of a generation, and what it ran on."""

    prompt: str
    negative_prompt: str
    steps: int
    guidance_scale: float
    height: int
    width: int
    seed: int
    num_images: int
    scheduler: str
    """The class in diffusers."""
    images_at_once: int
    vae_tiling: bool | None
    vae_slicing: bool | None
    model: str
    """The name of the pipeline's folder."""
    model_hash: str
    provider: str
    """The execution provider that ran the UNet."""
    requested_provider: str
    fallback: str | None
    """Why the provider, or a component's, is not the requested one; None if all are."""
    tuning: bool
    device: str
    custom_ops: str | None
    """A short hash of the library of custom operators; None without one."""
    graph: bool
    decoded: Plan | None
    """How the last latents were decoded, in the end."""
    widened: dict[str, str]
    """Component -> what of it was done again in fp32."""
    seconds: StageSeconds
    versions: dict[str, str]
