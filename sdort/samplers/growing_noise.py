"""Samplers whose latents keep a signal of 1 under growing noise: Euler's, Heun's, DPM2 and linear multistep.

The ordinary differential equation of diffusion is ``d latents / d sigma = gaussian``, what the model predicts as noise
(https://arxiv.org/abs/2206.00364, equation 3 for ``sigma(t) = t``); the UNet gets the latents scaled to unit variance.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np

from sdort.graph.signature import Array
from sdort.samplers.lagrange import lagrange
from sdort.samplers.noise_level import Level
from sdort.samplers.sampler import Draw, FormulaSampler
from sdort.samplers.settings import (
    PREDICTION,
    SIGMA_RANGE,
    Settings,
    chosen_sigma_settings,
    clip_settings,
    noise_settings,
    one_of,
    spacing_settings,
)
from sdort.samplers.spacing import SigmaTable, chosen_sigmas, log_sigmas, spaced_timesteps


class _GrowingNoise(FormulaSampler):
    sigmas: list[float]
    """[calls + 1]: the noise of the latents before each call, and after the last."""
    asked: list[float]
    """[calls]: the noise of the UNet's input at each call."""

    def prepare(self) -> None:
        table = SigmaTable(self.shares)
        times = spaced_timesteps(self.values, self.steps, self.steps).astype(np.float32).astype(np.float64)
        sigmas = self.interpolated(table, times)
        if "use_karras_sigmas" in self.settings:
            chosen = chosen_sigmas(self.values, float(sigmas[0]), float(sigmas[-1]), self.steps)
            if chosen is not None:
                sigmas, times = chosen, table.times(chosen)
        self.arrange(table, times, [*sigmas.tolist(), self.final_sigma(table)])

    def interpolated(self, table: SigmaTable, times: Array) -> Array:
        """The sigmas of the steps, where no others are chosen."""
        return table.at(times)

    def final_sigma(self, table: SigmaTable) -> float:
        """The noise after the last step."""
        return 0.0

    def arrange(self, table: SigmaTable, times: Array, sigmas: list[float]) -> None:
        """Set what there is for each call, of the timesteps and sigmas of the steps."""
        self.timesteps = times.astype(np.float32)
        self.sigmas = self.asked = sigmas

    def begin(self, noise: Array) -> Array:
        most = max(self.sigmas)
        # With leading timesteps the noise begins below the last trained level: the variance of an image is missing.
        return noise * (math.hypot(most, 1) if self.values["timestep_spacing"] == "leading" else most)

    def level(self, call: int) -> Level:
        return Level.of_sigma(self.asked[call])

    def noised(self, call: int, image: Array, noise: Array) -> Array:
        return image + self.sigmas[call] * noise

    def sample(self, call: int, latents: Array) -> Array:
        return self.level(call).signal * latents

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        sample = self.sample(call, latents)
        return self.advance(call, self.level(call).gaussian(self.prediction, output, sample), latents, draw)

    @abstractmethod
    def advance(self, call: int, gaussian: Array, latents: Array, draw: Draw) -> Array:
        """The latents after ``call``, at which the model predicted ``gaussian`` as noise."""


class EulerDiscreteScheduler(_GrowingNoise):
    """Euler's method: algorithm 1 of https://arxiv.org/abs/2206.00364 without its second order."""

    settings: ClassVar[Settings] = {
        **noise_settings(),
        **spacing_settings("linspace"),
        **chosen_sigma_settings(),
        "prediction_type": PREDICTION,
        "interpolation_type": one_of("linear", "log_linear"),
        "timestep_type": one_of("discrete"),
        "final_sigmas_type": one_of("zero", "sigma_min"),
    }

    def interpolated(self, table: SigmaTable, times: Array) -> Array:
        if self.values["interpolation_type"] == "linear":
            return table.at(times)
        return log_sigmas(float(table.sigmas[-1]), float(table.sigmas[0]), self.steps + 1)

    def final_sigma(self, table: SigmaTable) -> float:
        return 0.0 if self.values["final_sigmas_type"] == "zero" else float(table.sigmas[0])

    def advance(self, call: int, gaussian: Array, latents: Array, draw: Draw) -> Array:
        return latents + (self.sigmas[call + 1] - self.sigmas[call]) * gaussian


def ancestral_parts(sigma: float, following: float) -> tuple[float, float]:
    """The noise to go down to, and the new noise that makes ``following`` of it: the ancestral step of k-diffusion.

    The new noise has the variance of DDPM's posterior (https://arxiv.org/abs/2006.11239, equation 7).
    """
    up = math.sqrt(following**2 * (sigma**2 - following**2) / sigma**2)
    return following**2 / sigma, up


class EulerAncestralDiscreteScheduler(_GrowingNoise):
    """Euler's method with ancestral noise."""

    settings: ClassVar[Settings] = {
        **noise_settings(),
        **spacing_settings("linspace"),
        "prediction_type": one_of("epsilon", "v_prediction"),
    }

    def advance(self, call: int, gaussian: Array, latents: Array, draw: Draw) -> Array:
        down, up = ancestral_parts(self.sigmas[call], self.sigmas[call + 1])
        return latents + (down - self.sigmas[call]) * gaussian + up * draw()


def _of_calls(sigmas: list[float]) -> list[float]:
    """The sigmas [2 steps] of a sampler that calls the model twice a step, of those [steps + 1] of the steps.

    The first and the last stand once: the last step has one call.
    """
    return [sigmas[0], *(each for sigma in sigmas[1:-1] for each in (sigma, sigma)), sigmas[-1]]


class HeunDiscreteScheduler(_GrowingNoise):
    """Heun's method: algorithm 1 of https://arxiv.org/abs/2206.00364 without added noise."""

    order = 2
    settings: ClassVar[Settings] = {
        **noise_settings(0.00085, 0.012),
        **spacing_settings("linspace"),
        **chosen_sigma_settings(),
        **clip_settings(False),
        "prediction_type": PREDICTION,
    }
    _first: tuple[Array, Array] | None = None
    """The latents before a step, and the noise that was predicted there."""

    def arrange(self, table: SigmaTable, times: Array, sigmas: list[float]) -> None:
        self.timesteps = np.concatenate([times[:1], times[1:].repeat(2)]).astype(np.float32)
        self.sigmas = self.asked = _of_calls(sigmas)

    def advance(self, call: int, gaussian: Array, latents: Array, draw: Draw) -> Array:
        if self._first is None:
            self._first = latents, gaussian
            return latents + (self.sigmas[call + 1] - self.sigmas[call]) * gaussian
        (before, slope), self._first = self._first, None
        return before + (self.sigmas[call] - self.sigmas[call - 1]) / 2 * (slope + gaussian)


class KDPM2DiscreteScheduler(_GrowingNoise):
    """DPM-Solver-2 (https://arxiv.org/abs/2206.00927) in sigmas, as k-diffusion's ``sample_dpm_2``: the slope of a step
    is that at the geometric mean of its ends."""

    order = 2
    settings: ClassVar[Settings] = {
        **noise_settings(0.00085, 0.012),
        **spacing_settings("linspace"),
        **chosen_sigma_settings(),
        "prediction_type": one_of("epsilon", "v_prediction"),
    }
    _before: Array | None = None

    def arrange(self, table: SigmaTable, times: Array, sigmas: list[float]) -> None:
        if self.values["use_karras_sigmas"]:
            times = times.round()
        self._steps = sigmas
        middles = [self.middle(each, sigmas[number + 1]) for number, each in enumerate(sigmas[:-1])]
        between = table.times(np.asarray(middles[:-1]))
        calls = np.empty(2 * len(times) - 1)
        calls[::2], calls[1::2] = times, between
        self.timesteps = calls.astype(np.float32)
        pairs = list(zip(sigmas, middles, strict=False))
        self.asked = [each for pair in pairs for each in pair][:-1]
        # An image's latents get the noise of a step's end before its second call.
        self.sigmas = _of_calls(sigmas)
        self._middles = middles

    def middle(self, sigma: float, following: float) -> float:
        """Where the slope of a step is taken."""
        return math.sqrt(sigma * following)

    def advance(self, call: int, gaussian: Array, latents: Array, draw: Draw) -> Array:
        sigma, middle = self._steps[call // 2], self._middles[call // 2]
        if self._before is None:
            self._before = latents
            return latents + (middle - sigma) * gaussian
        before, self._before = self._before, None
        return self.end(before, gaussian, sigma, self._steps[call // 2 + 1], draw)

    def end(self, latents: Array, gaussian: Array, sigma: float, following: float, draw: Draw) -> Array:
        """The latents after a step whose slope is ``gaussian``."""
        return latents + (following - sigma) * gaussian


class KDPM2AncestralDiscreteScheduler(KDPM2DiscreteScheduler):
    """DPM2 with ancestral noise: k-diffusion's ``sample_dpm_2_ancestral``."""

    def middle(self, sigma: float, following: float) -> float:
        return following  # which is the mean of the step's two ends, sigma and following^2 / sigma

    def end(self, latents: Array, gaussian: Array, sigma: float, following: float, draw: Draw) -> Array:
        down, up = ancestral_parts(sigma, following)
        return latents + (down - sigma) * gaussian + up * draw()


class LMSDiscreteScheduler(_GrowingNoise):
    """The linear multistep method of order 4: Adams and Bashforth's with steps of any length, in sigma.

    The order counts the outputs that there are, as k-diffusion does; diffusers' class counts steps before the first
    one of a part too, whose outputs it has not.
    """

    settings: ClassVar[Settings] = {
        **noise_settings(),
        **spacing_settings("linspace"),
        **chosen_sigma_settings(),
        **dict.fromkeys(SIGMA_RANGE, one_of(None)),
        "prediction_type": PREDICTION,
    }

    def prepare(self) -> None:
        self._slopes: list[Array] = []
        super().prepare()

    def advance(self, call: int, gaussian: Array, latents: Array, draw: Draw) -> Array:
        self._slopes = [gaussian, *self._slopes][:4]
        places = [self.sigmas[call - number] for number in range(len(self._slopes))]
        weights = _integrals(places, self.sigmas[call], self.sigmas[call + 1])
        return latents + sum(weight * slope for weight, slope in zip(weights, self._slopes, strict=True))


def _integrals(places: list[float], start: float, end: float) -> list[float]:
    """The integrals from ``start`` to ``end`` of Lagrange's polynomials at up to four ``places``."""
    nodes, weights = np.polynomial.legendre.leggauss(2)  # exact up to the third degree
    half = (end - start) / 2
    points = (start + end) / 2 + half * nodes
    return [float(half * (weights * lagrange(places, number, points)).sum()) for number in range(len(places))]
