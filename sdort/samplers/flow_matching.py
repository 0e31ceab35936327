"""Samplers of flow matching: Euler's and Heun's method along the velocity that a model predicts.

Latents are ``(1 - sigma) * image + sigma * gaussian``, and the model gets them as they are. Its output is their
derivative by sigma, ``gaussian - image`` (https://arxiv.org/abs/2210.02747).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sdort.graph.signature import Array
from sdort.samplers.flow_levels import shift_of, shifted, stretched
from sdort.samplers.noise_level import Level
from sdort.samplers.sampler import Draw, FormulaSampler
from sdort.samplers.settings import (
    CHOSEN_SIGMAS,
    LEAST_SHIFT,
    SIGMA_RANGE,
    Settings,
    flag,
    one_of,
    real,
    shifting_settings,
    whole,
)
from sdort.samplers.spacing import chosen_sigmas

_SHARED: Settings = {
    "num_train_timesteps": whole(1000, 1),
    "shift": real(1.0, LEAST_SHIFT),
    **shifting_settings(),
    "timestep_spacing": one_of("linspace", "trailing"),
}


class _FlowMatching(FormulaSampler):
    sigmas: list[float]
    """[calls + 1]: the noise of the latents before each call, and after the last."""

    def prepare(self) -> None:
        shift = shift_of(self.values, "shift")
        if self.values["timestep_spacing"] == "trailing":
            low = 1 / self.steps
        else:
            # The lowest trained level. A shift of the config counts twice there, as in diffusers' class.
            low = 1 / self.trained
            low = low if self.values["use_dynamic_shifting"] else float(shifted(np.asarray(low), shift))
        sigmas = stretched(shifted(np.linspace(1, low, self.steps), shift), self.values.get("shift_terminal"))
        if CHOSEN_SIGMAS[0] in self.settings:
            own = {**self.values, **dict.fromkeys(SIGMA_RANGE)}
            chosen = chosen_sigmas(own, float(sigmas[0]), float(sigmas[-1]), self.steps)
            sigmas = sigmas if chosen is None else chosen
        self.arrange(sigmas)

    def arrange(self, sigmas: Array) -> None:
        """Set what there is for each call, of the noise levels of the steps."""
        self.timesteps = (sigmas * self.trained).astype(np.float32)
        self.sigmas = [*sigmas.tolist(), 0.0]

    @property
    def last_time(self) -> int:
        return self.trained

    def level_at(self, timestep: float) -> Level:
        return Level.of_flow(timestep / self.trained)

    def level(self, call: int) -> Level:
        return Level.of_flow(self.sigmas[call])


class FlowMatchEulerDiscreteScheduler(_FlowMatching):
    """Euler's method; with stochastic sampling each step draws the predicted image's noise anew."""

    settings: ClassVar[Settings] = {
        **_SHARED,
        **dict.fromkeys(CHOSEN_SIGMAS, flag(False)),
        "invert_sigmas": one_of(False),
        "shift_terminal": real(None, 0, 1),
        "stochastic_sampling": flag(False),
    }

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        if self.values["stochastic_sampling"]:
            return self.level(call + 1).mixed(self.level(call).image(self.prediction, output, latents), draw())
        return latents + (self.sigmas[call + 1] - self.sigmas[call]) * output


class FlowMatchHeunDiscreteScheduler(_FlowMatching):
    """Heun's method: two calls a step, of whose velocities it takes the mean; the last step has one."""

    order = 2
    settings: ClassVar[Settings] = _SHARED
    _first: tuple[Array, Array] | None = None
    """The latents before a step, and their velocity."""

    def arrange(self, sigmas: Array) -> None:
        super().arrange(np.concatenate([sigmas[:1], sigmas[1:].repeat(2)]))

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        if self._first is None:
            self._first = latents, output
            return latents + (self.sigmas[call + 1] - self.sigmas[call]) * output
        (before, velocity), self._first = self._first, None
        return before + (self.sigmas[call] - self.sigmas[call - 1]) / 2 * (velocity + output)
