"""The denoising loop of diffusers' StableDiffusionPipeline, step by step through the host.

For schedulers that :mod:`sdort.generation.recurrence` cannot express in numbers; :mod:`sdort.generation.device_loop`
has the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sdort.errors import ParityError
from sdort.generation.beginning import Beginning
from sdort.generation.bound_unet import batch_slices, repeated
from sdort.generation.preview import BatchPreviews
from sdort.generation.recurrence import drawing_from
from sdort.generation.schedule_part import PartSteps
from sdort.generation.schedulers import steps_of
from sdort.generation.step_conditions import StepConditions
from sdort.model.signature import Array, timestep_shape
from sdort.pipelines.families import Conditioning
from sdort.runtime.session import Session
from sdort.workload.residuals import zero_residuals

if TYPE_CHECKING:
    from sdort.generation.running_controls import Controls


def embed_guidance(guidance_scale: float, width: int) -> Array:
    """The guidance scale as sines and cosines [1, width], as diffusers embeds it.

    https://github.com/google-research/vdm/blob/dc27b98a554f65cdc654b800da5aa1846545d41b/model_vdm.py#L298
    """
    import torch

    half = width // 2
    # torch's fp32 arithmetic, as in training: the angles are in the thousands, so its roundings show.
    frequencies = torch.exp(torch.arange(half) * -(math.log(10000.0) / (half - 1)))
    angles = (guidance_scale - 1) * 1000.0 * frequencies
    embedded: Array = torch.cat([angles.sin(), angles.cos(), torch.zeros(width % 2)])[None].numpy()
    return embedded


def denoise(
    unet: Session,
    steps: PartSteps,
    conditions: StepConditions,
    given: Beginning,
    draw: Callable[[Sequence[int]], Array],
    guidance: Sequence[float],
    on_step: Callable[[float], None],
    previews: BatchPreviews | None = None,
    controls: Controls | None = None,
) -> tuple[Array, list[float]]:
    """Take every step.

    Args:
        conditions: of every call.
        draw: gives noise [images, *shape], for schedulers that add noise of their own.
        guidance: the weight of each copy's output; they sum up to one.
        previews: shown every few steps.
        controls: what fills the UNet's residual inputs; zeros are in them without any.

    Returns:
        The denoised latents and the seconds of every step.

    Raises:
        ParityError: the UNet returned NaN or infinity.
    """
    import torch

    scheduler = steps.scheduler
    noise, image, mask, extra = (
        None if each is None else torch.tensor(each) for each in (given.noise, given.image, given.mask, given.extra)
    )

    def drawn(shape: Sequence[int], *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        return torch.from_numpy(draw(shape[1:])).to(dtype)

    conditioning: Conditioning = {}
    with steps_of(scheduler):
        latents = steps.begin(noise, image)
    seconds = []
    for number, timestep in enumerate(steps.timesteps):
        started = time.perf_counter()
        if conditions.changes(number):
            conditioning = repeated(conditions.at(number), len(given.noise))
        with steps_of(scheduler):
            sample = steps.sample(number, latents)
        whole = sample if extra is None else torch.cat([sample, extra], dim=1)
        fed = torch.cat([whole] * len(guidance)).numpy()
        residuals = zero_residuals(unet.inputs, fed.shape)
        if controls:
            shared = {
                "sample": torch.cat([sample] * len(guidance)).numpy(),
                "timestep": timestep.numpy(),
                **conditioning,
            }
            residuals |= controls.residuals(number, len(steps.timesteps), unet, shared, len(guidance))
        predicted = _predict(unet, fed, timestep.numpy(), {**conditioning, **residuals})
        output = torch.from_numpy(predicted)
        if not torch.isfinite(output).all():
            raise ParityError(
                f"the output has NaN or infinite values at step {number + 1} of {len(steps.timesteps)}",
                component="unet",
                hint="An fp16 overflow does this: compare with the fp32 pipeline, or optimize without --fp16.",
            )
        output, *prompted = output.chunk(len(guidance))
        without = output
        for weight, predicted_by in zip(guidance[1:], prompted, strict=True):
            output = output + weight * (predicted_by - without)
        with steps_of(scheduler), drawing_from(drawn, scheduler):
            latents = steps.step(number, output, latents)
            if mask is not None:
                latents = torch.where(mask, latents, steps.outside(number, noise, image))
        seconds.append(time.perf_counter() - started)
        on_step(len(latents))
        if previews and previews.is_due(number):
            previews.show(number, sample.numpy(), predicted)
    return latents.numpy(), seconds


def _predict(unet: Session, sample: Array, timestep: Array, conditioning: Conditioning) -> Array:
    """The predicted noise, fp32, for ``sample`` [prompts * images, channels, height, width]."""
    rounded = np.round(timestep) if unet.inputs["timestep"].dtype.kind == "i" else timestep
    parts = []
    for part in batch_slices(unet, "sample", len(sample)):
        samples = sample[part]
        feeds = {
            "sample": samples,
            "timestep": np.broadcast_to(rounded, timestep_shape(unet.inputs, len(samples))),
            **{name: values[part] for name, values in conditioning.items()},
        }
        parts.append(unet.run(feeds)[unet.outputs[0].name])
    return np.concatenate(parts).astype(np.float32)
