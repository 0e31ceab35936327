"""A scheduler as numbers: every input of the UNet as a weighted sum of the noise and of the UNet's earlier outputs.

The samplers of diffusion models are linear in what they are given: the latents at any step are a sum of the first
noise, the UNet's outputs so far and the noise added on the way, weighted by numbers that depend on the timesteps alone.
Those numbers are found by running diffusers' scheduler once on unit vectors, before anything is generated. The loop
itself then needs no scheduler: one small weighted sum between two runs of the UNet, on whatever device the UNet runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from sdort.model.signature import Array

TOLERANCE = 1e-3
"""Allowed difference between the scheduler in fp32 and the weighted sums, in standard deviations of the latents; a
scheduler that clips is off by far more."""

MAX_STEPS = 4096
"""Upper bound of the UNet's calls that are expressed in numbers: their table grows with the square, to 134 MB here."""


@dataclass(frozen=True)
class Recurrence:
    """``inputs[i] @ rows`` is what the UNet gets at step ``i``, ``result @ rows`` the denoised latents.

    The rows are, in this order: the first noise, the UNet's output (after guidance) at each of ``steps`` calls, and
    ``noises`` more arrays of noise.
    """

    timesteps: Array
    """[steps]: the UNet's timestep at each call."""
    inputs: Array
    """[steps, 1 + steps + noises], float64."""
    result: Array
    """[1 + steps + noises], float64."""

    @property
    def steps(self) -> int:
        return len(self.inputs)

    @property
    def noises(self) -> int:
        return int(self.inputs.shape[1]) - 1 - self.steps


class _Draws:
    """Stands for diffusers' ``randn_tensor`` in a scheduler's module: unit vectors instead of noise."""

    def __init__(self, first: int) -> None:
        self.next = first

    def __call__(self, shape: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        unit = _unit(shape[0], self.next)
        self.next += 1
        return unit if dtype is None else unit.to(dtype)


def find_recurrence(make: Callable[[], Any]) -> Recurrence | None:
    """The recurrence of a scheduler; None if it is not linear, takes its noise in a way of its own, or is too long.

    Args:
        make: gives a new scheduler with its timesteps set, the same each time.
    """
    import torch

    scheduler = make()
    steps = len(scheduler.timesteps)
    if steps > MAX_STEPS:
        return None
    size = 1 + 2 * steps + 1
    latents = _unit(size, 0) * float(scheduler.init_noise_sigma)
    inputs = []
    try:
        with _drawing(scheduler, draws := _Draws(1 + steps)):
            for number, timestep in enumerate(scheduler.timesteps):
                inputs.append(scheduler.scale_model_input(latents, timestep))
                latents = _step(scheduler, _unit(size, 1 + number), timestep, latents)
        columns = draws.next
        rows = torch.cat([*inputs, latents], dim=1).reshape(size, steps + 1).double().numpy().T
        if columns > size or not np.isfinite(rows).all() or np.any(rows[:, columns:]):
            return None
        recurrence = Recurrence(np.asarray(scheduler.timesteps), rows[:-1, :columns].copy(), rows[-1, :columns].copy())
        return recurrence if _agrees(recurrence, make()) else None
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None


def _agrees(recurrence: Recurrence, scheduler: Any) -> bool:
    """Whether random latents and outputs come out as the scheduler itself makes them, in fp32."""
    import torch

    random = torch.Generator().manual_seed(0)
    rows = torch.randn(recurrence.inputs.shape[1], 1, 4, 8, 8, generator=random)
    latents = rows[0] * float(scheduler.init_noise_sigma)
    draws = iter(rows[1 + recurrence.steps :])
    with _drawing(scheduler, lambda *args, **kwargs: next(draws)):
        for number, timestep in enumerate(scheduler.timesteps):
            expected = scheduler.scale_model_input(latents, timestep)
            if not _close(recurrence.inputs[number], rows, expected):
                return False
            latents = _step(scheduler, rows[1 + number], timestep, latents)
    return _close(recurrence.result, rows, latents)


def _close(weights: Array, rows: Any, expected: Any) -> bool:
    total = np.tensordot(weights, rows.double().numpy(), 1)
    difference = np.abs(total - expected.double().numpy()).max()
    return bool(difference <= TOLERANCE * max(float(expected.std()), 1.0))


def _step(scheduler: Any, output: Any, timestep: Any, latents: Any) -> Any:
    return scheduler.step(output, timestep, latents, return_dict=False)[0]


def _unit(size: int, index: int) -> Any:
    """A pixel in each of ``size`` images, 1 in image ``index``: what they hold later are the weights of that one."""
    import torch

    unit = torch.zeros(size, 1, 1, 1, dtype=torch.float32)
    unit[index] = 1.0
    return unit


@contextmanager
def _drawing(scheduler: Any, source: Any) -> Iterator[None]:
    """Let the scheduler take its noise from ``draw``."""
    module = sys.modules[type(scheduler).__module__]
    if not hasattr(module, "randn_tensor"):
        yield
        return
    with mock.patch.object(module, "randn_tensor", source):
        yield
