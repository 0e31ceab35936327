"""A scheduler as numbers: every input of the UNet as a weighted sum of the noise and of the UNet's earlier outputs.

The samplers of diffusion models are linear in what they are given: the latents at any step are a sum of the first
noise, the UNet's outputs so far and the noise added on the way, weighted by numbers that depend on the timesteps alone.
Where they begin with an image its latents are one more of these. With a mask every element follows one of two such
sums: the scheduler's inside, the image under noise outside.
Those numbers are found by running diffusers' scheduler once on unit vectors, before anything is generated. The loop
itself then needs no scheduler: one small weighted sum between two runs of the UNet, on whatever device the UNet runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdort.generation.schedule_part import WHOLE, Part, PartSteps
from sdort.model.signature import Array

TOLERANCE = 1e-3
"""Allowed difference between the scheduler in fp32 and the weighted sums, in standard deviations of the latents; a
scheduler that clips is off by far more."""

MAX_STEPS = 4096
"""Upper bound of the UNet's calls that are expressed in numbers: their table grows with the square, to 134 MB here."""


@dataclass(frozen=True)
class Recurrence:
    """``inputs[i] @ rows`` is what the UNet gets at step ``i``, ``result @ rows`` the denoised latents.

    The rows are, in this order: the first noise, the UNet's output (after guidance) at each of ``steps`` calls,
    ``noises`` more arrays of noise, and, where ``takes_image``, the latents of an image.
    """

    timesteps: Array
    """[steps]: the UNet's timestep at each call."""
    inputs: Array
    """[steps, 1 + steps + noises + image], float64."""
    result: Array
    """[1 + steps + noises + image], float64."""
    takes_image: bool = False
    """Whether the last row is an image's latents."""
    outside: Array | None = None
    """[steps + 1, 2], float64: weights of the first noise and the image in the UNet's inputs and in the result, outside
    of a mask; None without one."""

    @property
    def steps(self) -> int:
        return len(self.inputs)

    @property
    def noises(self) -> int:
        return int(self.inputs.shape[1]) - 1 - self.steps - self.takes_image


class _Draws:
    """Stands for diffusers' ``randn_tensor`` in a scheduler's module: unit vectors instead of noise."""

    def __init__(self, first: int) -> None:
        self.next = first

    def __call__(self, shape: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        unit = _unit(shape[0], self.next)
        self.next += 1
        return unit if dtype is None else unit.to(dtype)


def find_recurrence(make: Callable[[], Any], part: Part = WHOLE) -> Recurrence | None:
    """The recurrence of a scheduler; None if it is not linear, takes its noise in a way of its own, or is too long.

    Args:
        make: gives a new scheduler with its timesteps set, the same each time.
        part: the steps that are taken, and what they begin with.
    """
    scheduler = make()
    if len(scheduler.timesteps) > MAX_STEPS:
        return None
    steps = PartSteps(scheduler, part)
    try:
        with drawing_from(draws := _Draws(1 + len(steps.timesteps)), scheduler):
            inside, outside = _unit_walk(steps)
        rows = inside[:, : draws.next]
        # The image stands last, beyond all noise that a scheduler may draw.
        unused = inside[:, draws.next : -1]
        if draws.next >= inside.shape[1] or not np.isfinite(inside).all() or np.any(unused):
            return None
        if part.takes_image:
            rows = np.concatenate([rows, inside[:, -1:]], axis=1)
        blended = outside[:, [0, -1]] if part.masked else None
        recurrence = Recurrence(np.asarray(steps.timesteps), rows[:-1].copy(), rows[-1], part.takes_image, blended)
        return recurrence if _agrees(recurrence, PartSteps(make(), part)) else None
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None


def _unit_walk(steps: PartSteps) -> tuple[Array, Array]:
    """Weights of every row in the UNet's inputs and in the result: [steps + 1, rows], inside and outside of a mask."""
    count = len(steps.timesteps)
    size = 1 + 2 * count + 1 + 1
    noise, image = _unit(size, 0), _unit(size, size - 1)
    latents = around = steps.begin(noise, image)
    inside, outside = [], []
    for number in range(count):
        inside.append(steps.sample(number, latents))
        outside.append(steps.sample(number, around))
        latents = steps.step(number, _unit(size, 1 + number), latents)
        if steps.part.masked:
            around = steps.outside(number, noise, image)
    return _columns([*inside, latents]), _columns([*outside, around])


def _columns(weights: Sequence[Any]) -> Array:
    import torch

    return np.asarray(torch.cat(list(weights), dim=1).reshape(len(weights[0]), -1).double().numpy().T)


def _agrees(recurrence: Recurrence, steps: PartSteps) -> bool:
    """Whether random latents and outputs come out as the scheduler itself makes them, in fp32."""
    import torch

    random = torch.Generator().manual_seed(0)
    rows = torch.randn(recurrence.inputs.shape[1], 1, 4, 8, 8, generator=random)
    noise, image = rows[0], rows[-1]
    latents = steps.begin(noise, image)
    draws = iter(rows[1 + recurrence.steps :])
    with drawing_from(lambda *args, **kwargs: next(draws), steps.scheduler):
        for number in range(recurrence.steps):
            expected = steps.sample(number, latents)
            if not _close(recurrence.inputs[number], rows, expected):
                return False
            latents = steps.step(number, rows[1 + number], latents)
            if recurrence.outside is not None and number + 1 < recurrence.steps:
                around = steps.sample(number + 1, steps.outside(number, noise, image))
                if not _close(recurrence.outside[number + 1], torch.stack([noise, image]), around):
                    return False
    return _close(recurrence.result, rows, latents)


def _close(weights: Array, rows: Any, expected: Any) -> bool:
    total = np.tensordot(weights, rows.double().numpy(), 1)
    difference = np.abs(total - expected.double().numpy()).max()
    return bool(difference <= TOLERANCE * max(float(expected.std()), 1.0))


def _unit(size: int, index: int) -> Any:
    """A pixel in each of ``size`` images, 1 in image ``index``: what they hold later are the weights of that one."""
    import torch

    unit = torch.zeros(size, 1, 1, 1, dtype=torch.float32)
    unit[index] = 1.0
    return unit


@contextmanager
def drawing_from(source: Callable[..., Any], scheduler: Any) -> Iterator[None]:
    """A block in which the scheduler takes its noise from ``source``, called as diffusers' ``randn_tensor``."""
    module: Any = sys.modules[type(scheduler).__module__]
    if not hasattr(module, "randn_tensor"):
        yield
        return
    own, module.randn_tensor = module.randn_tensor, source
    try:
        yield
    finally:
        module.randn_tensor = own
