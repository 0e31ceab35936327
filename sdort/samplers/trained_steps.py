"""Samplers that go from one trained timestep to another: DDIM, DDPM, PNDM, and those of distilled models.

Latents have unit variance, of level ``signal * image + noise * gaussian``.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sdort.graph.signature import Array
from sdort.samplers.noise_level import LEAST_SHARE, Level
from sdort.samplers.sampler import Draw, FormulaSampler
from sdort.samplers.settings import (
    PREDICTION,
    Settings,
    clip_settings,
    flag,
    noise_settings,
    one_of,
    real,
    spacing_settings,
    threshold_settings,
    unread,
    whole,
)
from sdort.samplers.spacing import spaced_timesteps


class _TrainedSteps(FormulaSampler):
    least_share: ClassVar[float] = 0.0
    final_share: float = 1.0
    """The signal's share after the last step."""

    def prepare(self) -> None:
        self.timesteps = spaced_timesteps(self.values, self.steps, self.steps).round().astype(np.int64)
        if not self.values.get("set_alpha_to_one", True):
            self.final_share = float(self.shares[0])

    def share(self, time: int) -> float:
        """The signal's share at a timestep; below 0 that after the last step."""
        return float(self.shares[time]) if time >= 0 else self.final_share

    def at(self, time: int) -> Level:
        """The level of noise at a timestep."""
        return Level.of_share(self.share(time))

    def level(self, call: int) -> Level:
        return self.at(int(self.timesteps[call]))


class DDIMScheduler(_TrainedSteps):
    """DDIM: equations 12 and 16 of https://arxiv.org/abs/2010.02502."""

    settings: ClassVar[Settings] = {
        **noise_settings(),
        **spacing_settings("leading"),
        **clip_settings(True),
        **threshold_settings(),
        "set_alpha_to_one": flag(True),
        "prediction_type": PREDICTION,
    }

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        time = int(self.timesteps[call])
        share, following = self.share(time), self.share(time - self.trained // self.steps)
        level = Level.of_share(share)
        image, gaussian = (predict(self.prediction, output, latents) for predict in (level.image, level.gaussian))
        variance = self.variance(share, following) if self.eta else 0.0
        result = math.sqrt(following) * image + math.sqrt(1 - following - variance) * gaussian
        return result + math.sqrt(variance) * draw() if self.eta else result

    def variance(self, share: float, following: float) -> float:
        """The variance of new noise."""
        return (self.eta or 0.0) ** 2 * (1 - following) / (1 - share) * (1 - share / following)


class DDPMScheduler(_TrainedSteps):
    """The ancestral sampler: equations 6 and 7 of https://arxiv.org/abs/2006.11239."""

    settings: ClassVar[Settings] = {
        **noise_settings(),
        **spacing_settings("leading"),
        **clip_settings(True),
        **threshold_settings(),
        "prediction_type": PREDICTION,
        "variance_type": one_of("fixed_small", "fixed_small_log", "fixed_large", None),
    }

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        following = self.share(int(self.timesteps[call + 1])) if call + 1 < len(self.timesteps) else 1.0
        share = self.share(int(self.timesteps[call]))
        kept = share / following
        image = Level.of_share(share).image(self.prediction, output, latents)
        mean = math.sqrt(following) * (1 - kept) / (1 - share) * image
        mean = mean + math.sqrt(kept) * (1 - following) / (1 - share) * latents
        if self.timesteps[call] == 0:
            return mean
        large = self.values["variance_type"] == "fixed_large"
        variance = 1 - kept if large else max((1 - following) / (1 - share) * (1 - kept), 1e-20)
        return mean + math.sqrt(variance) * draw()


class _Distilled(_TrainedSteps):
    settings: ClassVar[Settings] = {
        **noise_settings(0.00085, 0.012, "scaled_linear"),
        **threshold_settings(),
        **clip_settings(False),
        "prediction_type": PREDICTION,
        "original_inference_steps": whole(50, 1),
        # They choose among the timesteps of the distillation.
        "timestep_spacing": unread("leading"),
        "steps_offset": unread(0),
        "set_alpha_to_one": unread(True),
        "timestep_scaling": real(10.0, 0),
    }

    def prepare(self) -> None:
        original = self.values["original_inference_steps"]
        if original > self.trained:
            raise ValueError(f"original_inference_steps is {original}, and {self.trained} timesteps were trained")
        if self.steps > original:
            raise ValueError(f"the model was distilled to {original} steps (original_inference_steps)")
        places = np.arange(1, original + 1)[::-1] * (self.trained // original) - 1
        self.timesteps = places[np.floor(np.linspace(0, original, self.steps, endpoint=False)).astype(np.int64)]


class LCMScheduler(_Distilled):
    """Latent consistency models: algorithm 3 of https://arxiv.org/abs/2310.04378, its skip of equation 9."""

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        level = self.level(call)
        scaled, data = float(self.timesteps[call]) * self.values["timestep_scaling"], 0.5
        skip, out = data**2 / (scaled**2 + data**2), scaled / math.hypot(scaled, data)
        image = out * level.image(self.prediction, output, latents) + skip * latents
        return image if call + 1 == self.steps else self.level(call + 1).mixed(image, draw())


class TCDScheduler(_Distilled):
    """Trajectory consistency distillation: algorithm 4 of https://arxiv.org/abs/2402.19159, whose gamma is eta."""

    settings: ClassVar[Settings] = {
        **_Distilled.settings,
        **dict.fromkeys(("clip_sample", "thresholding"), unread(False)),
        "timestep_scaling": unread(10.0),
    }

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        eta = 0.3 if self.eta is None else self.eta
        following = int(self.timesteps[call + 1]) if call + 1 < len(self.timesteps) else 0
        # In fp32 as diffusers' class: where the product is whole, its rounding decides between two timesteps.
        lower = int(np.floor(np.float32(1 - eta) * np.float32(following)))
        level = self.level(call)
        image, gaussian = (predict(self.prediction, output, latents) for predict in (level.image, level.gaussian))
        result = self.at(lower).mixed(image, gaussian)
        if not eta or call + 1 == self.steps:
            return result
        kept = self.share(following) / self.share(lower)
        return math.sqrt(kept) * result + math.sqrt(1 - kept) * draw()


class PNDMScheduler(_TrainedSteps):
    """Pseudo numerical methods: https://arxiv.org/abs/2202.09778, with Runge and Kutta's steps first.

    As diffusers' class, a part of a schedule counts its calls from its own beginning.
    """

    least_share = LEAST_SHARE

    settings: ClassVar[Settings] = {
        **noise_settings(),
        **spacing_settings("leading"),
        "set_alpha_to_one": flag(False),
        "skip_prk_steps": flag(False),
        "prediction_type": one_of("epsilon", "v_prediction"),
    }

    def prepare(self) -> None:
        super().prepare()
        times = self.timesteps
        self._stride = self.trained // self.steps
        self._runge_kutta: list[int] = []
        if self.values["skip_prk_steps"]:
            self.timesteps = np.concatenate([times[:1], times[1:2], times[1:]])
        else:
            if len(times) < 4:
                raise ValueError("its Runge-Kutta steps need 4 steps or more")
            half = self._stride // 2
            points = [int(time) + more for time in times[3::-1] for more in (0, half)][:-1]
            self._runge_kutta = np.repeat(points, 2)[1:-1][::-1].tolist()
            self.timesteps = np.concatenate([self._runge_kutta, times[3:]]).astype(np.int64)
        self._taken = 0
        self._outputs: list[Array] = []  # the newest first
        self._before: Array | None = None
        self._sum: Array | float = 0.0

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        step = self._runge_kutta_step if self._taken < len(self._runge_kutta) else self._linear_step
        result = step(int(self.timesteps[call]), output, latents)
        self._taken += 1
        return result

    def _runge_kutta_step(self, time: int, output: Array, latents: Array) -> Array:
        """A quarter of a step of equation 13."""
        part = self._taken % 4
        if part == 0:
            self._outputs = [output, *self._outputs]
            self._before = latents
        end = time - (0 if self._taken % 2 else self._stride // 2)
        used = output
        if part == 3:
            used, self._sum = self._sum + output * (1 / 6), 0.0
        else:
            self._sum = self._sum + output * (1 / 6, 1 / 3, 1 / 3)[part]
        assert self._before is not None
        return self._transferred(self._before, self._runge_kutta[self._taken // 4 * 4], end, used)

    def _linear_step(self, time: int, output: Array, latents: Array) -> Array:
        """A step of equation 12, and those that begin it where there are no outputs to go on from."""
        end = time - self._stride
        if self._taken == 1:  # the first step again, with the output at its end
            time, end = time + self._stride, time
            assert self._before is not None
            return self._transferred(self._before, time, end, (output + self._outputs[0]) * 0.5)
        if self._taken == 0:
            self._before = latents
        self._outputs = [output, *self._outputs][:4]
        weights = ADAMS_BASHFORTH[len(self._outputs) - 1]
        mixed = sum(weight * each for weight, each in zip(weights, self._outputs, strict=True))
        return self._transferred(latents, time, end, np.asarray(mixed))

    def _transferred(self, latents: Array, time: int, end: int, output: Array) -> Array:
        """Equation 11: the latents at ``end``, by DDIM's step."""
        level = self.at(time)
        gaussian = level.gaussian(self.prediction, output, latents)
        return self.at(end).mixed((latents - level.noise * gaussian) * (1 / level.signal), gaussian)


ADAMS_BASHFORTH = ((1.0,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12), (55 / 24, -59 / 24, 37 / 24, -9 / 24))
"""Weights of the last outputs, the newest first."""
