"""A sampler: what is given to the UNet at each of its calls, and what is made of its output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from sdort.graph.signature import Array
from sdort.samplers.noise_level import LEAST_SHARE, Level, trained_shares
from sdort.samplers.settings import FLOW, Settings

Draw = Callable[[], Array]
"""Gives noise of unit variance, of the latents' shape."""


class Sampler(ABC):
    """A schedule of calls of the UNet; one walks through it, or a part of it, once.

    Latents, outputs and noise are arrays [images, channels, height, width].
    """

    linear: bool = True
    """Whether latents are known to be weighted sums of the noise and of outputs."""
    order: int = 1
    """Calls of a step; the last step may have one less."""
    name: str
    """Of diffusers' class."""
    timesteps: Array
    """[calls]: int64, or float32 where they lie between trained ones."""
    trained: int
    """Number of trained timesteps."""
    shares: Array
    """[trained]: the signal's share at every trained timestep, diffusers' ``alphas_cumprod``; samplers of flow matching
    alone have none."""
    prediction: str
    """``epsilon``, ``v_prediction``, ``sample`` or ``flow_prediction``."""

    @property
    def last_time(self) -> int:
        """The highest timestep that was trained."""
        return self.trained - 1

    def level_at(self, timestep: float) -> Level:
        """The level of noise at a timestep, which may lie between trained ones."""
        return Level.of_share(float(np.interp(timestep, np.arange(len(self.shares)), self.shares)))

    def begin_at(self, call: int) -> None:  # noqa: B027 - most need not know
        """Say at which call the walk begins, before it does."""

    @abstractmethod
    def begin(self, noise: Array) -> Array:
        """The latents before the first call, from noise of unit variance."""

    @abstractmethod
    def noised(self, call: int, image: Array, noise: Array) -> Array:
        """An image's latents with as much noise as there is before ``call``."""

    @abstractmethod
    def sample(self, call: int, latents: Array) -> Array:
        """The UNet's input at ``call``."""

    @abstractmethod
    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        """The latents after ``call``, which gave ``output``."""


class FormulaSampler(Sampler):
    """A sampler of sdort's own, by formulas of a paper.

    Args:
        values: of all of the class's :attr:`settings`.
        steps: of the schedule.
        eta: the share of new noise, for samplers with one.

    Raises:
        ValueError: it cannot take so many steps.
    """

    settings: ClassVar[Settings]
    """As diffusers' class of the same name has them."""
    least_share: ClassVar[float] = LEAST_SHARE
    """The last share of a model of zero terminal SNR."""

    def __init__(self, values: Mapping[str, Any], steps: int, eta: float | None = None) -> None:
        self.name = type(self).__name__
        self.values, self.steps, self.eta = values, steps, eta
        self.trained = int(values["num_train_timesteps"])
        self.prediction = str(values.get("prediction_type", FLOW))
        if "beta_schedule" in values:
            self.shares = trained_shares(values, self.least_share)
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Set :attr:`timesteps`, and what :meth:`step` needs."""

    def begin(self, noise: Array) -> Array:
        return noise

    def sample(self, call: int, latents: Array) -> Array:
        return latents

    def noised(self, call: int, image: Array, noise: Array) -> Array:
        return self.level(call).mixed(image, noise)

    @abstractmethod
    def level(self, call: int) -> Level:
        """The level of noise before ``call``."""
