"""A sampler as numbers: every input of the UNet as a weighted sum of the noise and of the UNet's earlier outputs.

The samplers of diffusion models are linear in what they are given: the latents at any step are a sum of the first
noise, the UNet's outputs so far and the noise added on the way, weighted by numbers that depend on the timesteps alone.
Where they begin with an image its latents are one more of these. With a mask every element follows one of two such
sums: the sampler's inside, the image under noise outside.
Those numbers are found by running the sampler once on unit vectors, before anything is generated. The loop itself then
needs no sampler: one small weighted sum between two runs of the UNet, on whatever device the UNet runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sdort.generation.schedules.schedule_part import WHOLE, Part, PartSteps
from sdort.graph.signature import Array
from sdort.samplers.sampler import Sampler

TOLERANCE = 1e-3
"""Allowed difference between a sampler in fp32 and the weighted sums, in standard deviations of the latents; a
sampler that clips is off by far more."""

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
    """Stands for new noise: the unit vectors after the first ``number`` ones."""

    def __init__(self, size: int, number: int) -> None:
        self.size, self.next = size, number

    def __call__(self) -> Array:
        unit = _unit(self.size, self.next)
        self.next += 1
        return unit


def find_recurrence(make: Callable[[], Sampler], part: Part = WHOLE) -> Recurrence | None:
    """The recurrence of a sampler; None if it is not linear, takes its noise in a way of its own, or is too long.

    Args:
        make: gives a new sampler, the same each time.
        part: the steps that are taken, and what they begin with.
    """
    sampler = make()
    if len(sampler.timesteps) > MAX_STEPS:
        return None
    steps = PartSteps(sampler, part)
    try:
        inside, outside, used = _unit_walk(steps)
        rows = inside[:, :used]
        # The image stands last, beyond all noise that a sampler may draw.
        unused = inside[:, used:-1]
        if used >= inside.shape[1] or not np.isfinite(inside).all() or np.any(unused):
            return None
        if part.takes_image:
            rows = np.concatenate([rows, inside[:, -1:]], axis=1)
        blended = outside[:, [0, -1]] if part.masked else None
        recurrence = Recurrence(steps.timesteps, rows[:-1].copy(), rows[-1], part.takes_image, blended)
        return recurrence if sampler.linear or _agrees(recurrence, PartSteps(make(), part)) else None
    except (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError):
        return None


def _unit_walk(steps: PartSteps) -> tuple[Array, Array, int]:
    """Weights of every row in the UNet's inputs and in the result, inside and outside of a mask, [steps + 1, rows]
    each; and the number of rows up to the last noise that was drawn."""
    count = len(steps.timesteps)
    size = 1 + 2 * count + 1 + 1
    draws = _Draws(size, 1 + count)
    noise, image = _unit(size, 0), _unit(size, size - 1)
    latents = around = steps.begin(noise, image)
    inside, outside = [], []
    for number in range(count):
        inside.append(steps.sample(number, latents))
        outside.append(steps.sample(number, around))
        latents = steps.step(number, _unit(size, 1 + number), latents, draws)
        if steps.part.masked:
            around = steps.outside(number, noise, image)
    return _columns([*inside, latents]), _columns([*outside, around]), draws.next


def _columns(weights: Sequence[Array]) -> Array:
    return np.concatenate(weights, axis=1).reshape(len(weights[0]), -1).astype(np.float64).T


def _agrees(recurrence: Recurrence, steps: PartSteps) -> bool:
    """Whether random latents and outputs come out as the sampler itself makes them, in fp32."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((recurrence.inputs.shape[1], 1, 4, 8, 8)).astype(np.float32)
    noise, image = rows[0], rows[-1]
    latents = steps.begin(noise, image)
    draws = iter(rows[1 + recurrence.steps :])
    for number in range(recurrence.steps):
        expected = steps.sample(number, latents)
        if not _close(recurrence.inputs[number], rows, expected):
            return False
        latents = steps.step(number, rows[1 + number], latents, lambda: next(draws))
        if recurrence.outside is not None and number + 1 < recurrence.steps:
            around = steps.sample(number + 1, steps.outside(number, noise, image))
            if not _close(recurrence.outside[number + 1], np.stack([noise, image]), around):
                return False
    return _close(recurrence.result, rows, latents)


def _close(weights: Array, rows: Array, expected: Array) -> bool:
    total = np.tensordot(weights, rows.astype(np.float64), 1)
    difference = np.abs(total - expected).max()
    return bool(difference <= TOLERANCE * max(float(expected.std()), 1.0))


def _unit(size: int, index: int) -> Array:
    """A pixel in each of ``size`` images, 1 in image ``index``: what they hold later are the weights of that one."""
    unit = np.zeros((size, 1, 1, 1))
    unit[index] = 1.0
    return unit
