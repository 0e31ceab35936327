"""The denoising loop of diffusers' StableDiffusionPipeline, step by step through the host.

For samplers that :mod:`sdort.generation.schedules.recurrence` cannot express in numbers;
:mod:`sdort.generation.denoising.device_loop` has the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sdort.errors import ParityError
from sdort.families.denoiser_arguments import timestep_shape
from sdort.families.known_families import roles_of
from sdort.generation.latents.preview import BatchPreviews
from sdort.generation.latents.start_latents import BatchStart
from sdort.generation.requests.deep_cache import whole_calls
from sdort.generation.schedules.schedule_part import PartSteps
from sdort.generation.schedules.schedulers import steps_of
from sdort.graph.signature import Array
from sdort.pipelines.conditioning import Conditioning
from sdort.runtime.session import Session
from sdort.runtime.step.bound_unet import batch_slices, repeated
from sdort.runtime.step.step_conditions import StepConditions
from sdort.workload.steering_inputs import zero_residuals

if TYPE_CHECKING:
    from sdort.generation.denoising.running_controls import Controls


def embed_guidance(guidance_scale: float, width: int) -> Array:
    """The guidance scale as sines and cosines [1, width], as diffusers embeds it.

    https://github.com/google-research/vdm/blob/dc27b98a554f65cdc654b800da5aa1846545d41b/model_vdm.py#L298
    """
    half = width // 2
    # In fp32, as in training: the angles are in the thousands, so its roundings show.
    exponents = np.arange(half, dtype=np.float32) * np.float32(-(math.log(10000.0) / (half - 1)))
    frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
    angles = (np.float32((guidance_scale - 1) * 1000.0) * frequencies).astype(np.float64)
    return np.concatenate([np.sin(angles), np.cos(angles), np.zeros(width % 2)])[None].astype(np.float32)


def denoise(
    unet: Session,
    steps: PartSteps,
    conditions: StepConditions,
    given: BatchStart,
    draw: Callable[[Sequence[int]], Array],
    guidance: Sequence[float],
    on_step: Callable[[float], None],
    previews: BatchPreviews | None = None,
    controls: Controls | None = None,
    every: int = 1,
) -> tuple[Array, list[float]]:
    """Take every step.

    Args:
        conditions: of every call.
        draw: gives noise [images, *shape], for samplers that add noise of their own.
        guidance: the weight of each copy's output; they sum up to one.
        previews: shown every few steps.
        controls: what fills the UNet's residual inputs; zeros are in them without any.
        every: after how many calls the whole UNet runs again, as :func:`whole_calls` takes it.

    Returns:
        The denoised latents and the seconds of every step.

    Raises:
        ParityError: the UNet returned NaN or infinity.
        UsageError: the sampler cannot take a step with its pipeline's settings.
    """
    noise, image, name = given.noise, given.image, steps.sampler.name
    conditioning: Conditioning = {}
    with steps_of(name):
        latents = steps.begin(noise, image)
    seconds = []
    calls, kept = whole_calls(every, len(steps.timesteps), conditions), dict[int, Array]()
    for number, timestep in enumerate(steps.timesteps):
        started = time.perf_counter()
        if conditions.changes(number):
            conditioning = repeated(conditions.at(number), len(noise))
        with steps_of(name):
            sample = steps.sample(number, latents)
        whole = sample if given.extra is None else np.concatenate([sample, given.extra], axis=1)
        fed = np.concatenate([whole] * len(guidance))
        residuals = zero_residuals(unet.inputs, fed.shape)
        if controls:
            roles = roles_of(unet.inputs)
            shared = {
                roles.sample: np.concatenate([sample] * len(guidance)),
                roles.timestep: timestep,
                **conditioning,
            }
            residuals |= controls.residuals(number, len(steps.timesteps), unet, shared, len(guidance))
        if calls[number]:
            kept.clear()
        predicted = _predict(unet, fed, timestep, {**conditioning, **residuals}, kept)
        if not np.isfinite(predicted).all():
            raise ParityError(
                f"the output has NaN or infinite values at step {number + 1} of {len(steps.timesteps)}",
                component=unet.component,
                hint="An fp16 overflow does this: compare with the fp32 pipeline, or optimize without --fp16.",
            )
        with steps_of(name):
            latents = steps.step(number, _guided(predicted, guidance), latents, lambda: draw(given.noise.shape[1:]))
            if given.mask is not None:
                assert image is not None
                latents = np.where(given.mask, latents, steps.outside(number, noise, image))
        seconds.append(time.perf_counter() - started)
        on_step(len(latents))
        if previews and previews.is_due(number):
            previews.show(number, sample, predicted)
    return latents, seconds


def _guided(predicted: Array, guidance: Sequence[float]) -> Array:
    """The output of an image from those of its copies: without the prompt, and with each of its parts."""
    without, *prompted = np.split(predicted, len(guidance))
    output = without
    for weight, predicted_by in zip(guidance[1:], prompted, strict=True):
        output = output + weight * (predicted_by - without)
    return output


def _predict(
    unet: Session, sample: Array, timestep: Array, conditioning: Conditioning, kept: dict[int, Array] | None = None
) -> Array:
    """The predicted noise, fp32, for ``sample`` [prompts * images, channels, height, width].

    Args:
        kept: what an earlier call gave of the UNet's deep part, by the number of the part of the batch; where there is
            nothing, the deep part runs and its output is put here.
    """
    roles = roles_of(unet.inputs)
    rounded = np.round(timestep) if unet.inputs[roles.timestep].dtype.kind == "i" else timestep
    parts = []
    for number, part in enumerate(batch_slices(unet, roles.sample, len(sample))):
        samples = sample[part]
        feeds = {
            roles.sample: samples,
            roles.timestep: np.broadcast_to(rounded, timestep_shape(unet.inputs, len(samples))),
            **{name: values[part] for name, values in conditioning.items()},
        }
        if unet.shallow and kept and number in kept:
            outputs = unet.shallow.run({**feeds, unet.kept: kept[number]})
        else:
            outputs = unet.run(feeds)
        if unet.shallow and kept is not None and unet.kept in outputs:
            kept[number] = outputs[unet.kept]
        parts.append(outputs[unet.outputs[0].name])
    return np.concatenate(parts).astype(np.float32)
