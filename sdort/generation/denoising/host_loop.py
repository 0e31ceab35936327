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
from sdort.generation.latents.preview import BatchPreviews
from sdort.generation.latents.start_latents import BatchStart
from sdort.generation.requests.deep_cache import whole_calls
from sdort.generation.schedules.schedule_part import PartSteps
from sdort.generation.schedules.schedulers import steps_of
from sdort.graph.signature import Array
from sdort.runtime.step.bound_unet import BoundBuffers, repeated
from sdort.runtime.step.step_conditions import StepConditions

if TYPE_CHECKING:
    from sdort.generation.denoising.running_controls import Controls


def embed_guidance(guidance_scale: float, width: int) -> Array:
    """The guidance scale as sines and cosines [1, width], as diffusers embeds it, or at a width of 0 itself, [1].

    https://github.com/google-research/vdm/blob/dc27b98a554f65cdc654b800da5aa1846545d41b/model_vdm.py#L298
    """
    if width == 0:
        return np.array([guidance_scale], np.float32)
    half = width // 2
    # In fp32, as in training: the angles are in the thousands, so its roundings show.
    exponents = np.arange(half, dtype=np.float32) * np.float32(-(math.log(10000.0) / (half - 1)))
    frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
    angles = (np.float32((guidance_scale - 1) * 1000.0) * frequencies).astype(np.float64)
    return np.concatenate([np.sin(angles), np.cos(angles), np.zeros(width % 2)])[None].astype(np.float32)


def denoise(
    unet: BoundBuffers,
    steps: PartSteps,
    conditions: StepConditions,
    given: BatchStart,
    draw: Callable[[Sequence[int]], Array],
    guidance: Sequence[float],
    on_step: Callable[[float], None],
    previews: BatchPreviews | None = None,
    controls: Controls | None = None,
    every: int = 1,
    exact: int | None = None,
) -> tuple[Array, list[float]]:
    """Take every step.

    Args:
        unet: bound for the batch; its residual inputs are zeros, or what ``controls`` leave there.
        conditions: of every call.
        draw: gives noise [images, *shape], for samplers that add noise of their own.
        guidance: the weight of each copy's output; they sum up to one.
        previews: shown every few steps.
        controls: what fills the UNet's residual inputs.
        every, exact: which calls run the whole UNet, as :func:`whole_calls` takes them.

    Returns:
        The denoised latents and the seconds of every step.

    Raises:
        ParityError: the UNet returned NaN or infinity.
        UsageError: the sampler cannot take a step with its pipeline's settings.
    """
    noise, image, name, count = given.noise, given.image, steps.sampler.name, len(steps.timesteps)
    with steps_of(name):
        latents = steps.begin(noise, image)
    rows, seconds = unet.step_rows(steps.timesteps, conditions), []
    unet.begin(conditions)
    for number, whole in enumerate(whole_calls(every, count, conditions, exact)):
        started = time.perf_counter()
        if conditions.changes(number):
            unet.write_conditioning(repeated(conditions.at(number), len(noise)))
        with steps_of(name):
            sample = steps.sample(number, latents)
        unet.write_sample(sample, given.extra)
        unet.row.words.write(rows[number])
        if controls:
            controls.prepare(number, count, unet)
        unet.run(number, whole)
        predicted = unet.output.read().astype(np.float32)
        if not np.isfinite(predicted).all():
            raise ParityError(
                f"the output has NaN or infinite values at step {number + 1} of {count}",
                component=unet.session.component,
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
