"""The denoising loop of diffusers' StableDiffusionPipeline, with the UNet in an ONNX Runtime session."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from sdort.errors import ParityError, UsageError
from sdort.runtime.session import Session, static_size, timestep_shape
from sdort.runtime.tensors import keep, run_tensors


class UNet:
    """The UNet for one batch of images, its text embeddings already on the device.

    Args:
        embeddings: one tensor [1, tokens, width] per prompt: the negative one first, when there is guidance.
        guidance_scale: what a UNet with the input ``timestep_cond`` (a latent consistency model) embeds.
    """

    def __init__(self, session: Session, embeddings: Sequence[Any], images: int, guidance_scale: float) -> None:
        import torch

        self.session = session
        self.conditions = {}
        if "timestep_cond" in session.inputs:
            width = static_size(session.inputs["timestep_cond"].shape, 1) or 256
            self.conditions = {"timestep_cond": embed_guidance(guidance_scale, width)}
        repeated = torch.cat([each.expand(images, -1, -1) for each in embeddings])
        self.slices = batch_slices(session, "sample", len(repeated))
        self.embeddings = [keep(session, "encoder_hidden_states", repeated[part]) for part in self.slices]

    def __call__(self, sample: Any, timestep: Any) -> Any:
        """The predicted noise, fp32, for ``sample`` [prompts * images, channels, height, width]."""
        import torch

        output = self.session.outputs[0]
        parts = []
        for part, embeddings in zip(self.slices, self.embeddings, strict=True):
            some = sample[part]
            feeds = {
                "sample": some,
                "timestep": timestep.expand(timestep_shape(self.session.inputs, len(some))),
                "encoder_hidden_states": embeddings,
                **{name: value.expand(len(some), -1) for name, value in self.conditions.items()},
            }
            shape = (len(some), static_size(output.shape, 1) or some.shape[1], *some.shape[2:])
            parts.append(run_tensors(self.session, feeds, {output.name: shape})[output.name].float())
        return torch.cat(parts)


def embed_guidance(guidance_scale: float, width: int) -> Any:
    """The guidance scale as sines and cosines [1, width], as diffusers embeds it.

    https://github.com/google-research/vdm/blob/dc27b98a554f65cdc654b800da5aa1846545d41b/model_vdm.py#L298
    """
    import torch

    half = width // 2
    frequencies = torch.exp(torch.arange(half) * -(math.log(10000.0) / (half - 1)))
    angles = (guidance_scale - 1) * 1000.0 * frequencies
    return torch.cat([angles.sin(), angles.cos(), torch.zeros(width % 2)])[None]


def batch_slices(session: Session, name: str, total: int) -> list[slice]:
    """How to run ``total`` samples: at once, or in parts of the batch that a static model has.

    Raises:
        UsageError: the static batch does not divide ``total``.
    """
    size = static_size(session.inputs[name].shape, 0) or total
    if total % size:
        raise UsageError(
            f"{session.component} was exported for {size} samples at once, which does not divide {total}",
            hint="With guidance every image is two samples: change --num-images, or export without --static.",
        )
    return [slice(first, first + size) for first in range(0, total, size)]


def denoise(
    unet: UNet,
    scheduler: Any,
    latents: Any,
    generators: list[Any],
    guidance_scale: float | None,
    on_step: Callable[[float], None],
) -> tuple[Any, list[float]]:
    """Take every step of ``scheduler``, whose timesteps are set.

    Args:
        latents: noise [images, channels, height, width], fp32, times the scheduler's ``init_noise_sigma``.
        generators: one per image, for schedulers that add noise of their own.
        guidance_scale: for classifier-free guidance; None when the UNet runs on the prompt alone.

    Returns:
        The denoised latents and the seconds of every step.

    Raises:
        ParityError: the UNet returned NaN or infinity.
    """
    import torch

    extra = {"generator": generators} if "generator" in inspect.signature(scheduler.step).parameters else {}
    copies = 1 if guidance_scale is None else 2
    seconds = []
    for number, timestep in enumerate(scheduler.timesteps, 1):
        started = time.perf_counter()
        noise = unet(scheduler.scale_model_input(torch.cat([latents] * copies), timestep), timestep)
        if not torch.isfinite(noise).all():
            raise ParityError(
                f"the output has NaN or infinite values at step {number} of {len(scheduler.timesteps)}",
                component="unet",
                hint="An fp16 overflow does this: compare with the fp32 pipeline, or optimize without --fp16.",
            )
        if guidance_scale is not None:
            without, with_prompt = noise.chunk(2)
            noise = without + guidance_scale * (with_prompt - without)
        latents = scheduler.step(noise, timestep, latents, **extra, return_dict=False)[0]
        seconds.append(time.perf_counter() - started)
        on_step(len(latents))
    return latents, seconds
