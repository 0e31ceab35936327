"""Samplers that integrate over the logarithm of the signal beside the noise: DPM-Solver++, DEIS and UniPC.

Latents have unit variance, of level ``signal * image + noise * gaussian``; with ``lambda = log(signal / noise)`` the
linear part of the equation is integrated exactly (https://arxiv.org/abs/2206.00927, proposition 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from sdort.graph.signature import Array
from sdort.samplers.flow_levels import shift_of, shifted, stretched
from sdort.samplers.lagrange import lagrange_times_exponential
from sdort.samplers.noise_level import Level
from sdort.samplers.sampler import Draw, FormulaSampler
from sdort.samplers.settings import (
    ANY_PREDICTION,
    CHOSEN_SIGMAS,
    FLOW,
    PREDICTION,
    Setting,
    Settings,
    chosen_sigma_settings,
    flag,
    flow_settings,
    no_flow_settings,
    noise_settings,
    one_of,
    real,
    spacing_settings,
    threshold_settings,
)
from sdort.samplers.spacing import SigmaTable, chosen_sigmas, log_sigmas, spaced_timesteps, whole_timesteps

FEW_STEPS = 15
"""Below this number of steps the last ones take a lower order, which is steadier: as the authors' own code."""

_LEAST_SIGNAL = 1e-6
"""Signal that UniPC leaves in the pure noise of flow matching: diffusers' own."""

_SHARED: Settings = {
    **noise_settings(),
    **chosen_sigma_settings(),
    **threshold_settings(),
    **no_flow_settings(),
    "prediction_type": PREDICTION,
    "solver_order": one_of(2, 1, 3),
}
_DPM: Settings = {
    **_SHARED,
    # What other classes call their solvers is midpoint here.
    "solver_type": one_of("midpoint", "heun", "logrho", "bh1", "bh2"),
    "algorithm_type": one_of("dpmsolver++", "sde-dpmsolver++"),
    "final_sigmas_type": one_of("zero", "sigma_min"),
    "lambda_min_clipped": real(-math.inf),
    "variance_type": one_of(None),
}


class _Exponential(FormulaSampler):
    sigmas: list[float]
    """[calls + 1]: the noise beside a signal of 1 before each call, and after the last."""
    flow = False
    """Whether noise levels are flow matching's."""
    rounds_cosine: ClassVar[bool] = True
    """Whether timesteps of chosen noise levels are rounded for the cosine schedule too."""

    def prepare(self) -> None:
        self._outputs: list[Array] = []  # what the model predicted at the last calls, the newest first
        self._taken = 0
        table = SigmaTable(self.shares)
        self.flow = bool(self.values["use_flow_sigmas"])
        if self.flow:
            self._prepare_flow(table)
            return
        if self.prediction == FLOW:
            raise ValueError("its model predicts a flow, and its noise levels are not flow matching's")
        high, low = float(table.sigmas[-1]), float(table.sigmas[0])
        karras = bool(self.values["use_karras_sigmas"])
        lambdas = bool(self.values.get("use_lu_lambdas")) and not karras
        # Equal steps of lambda, as the authors of DPM-Solver choose them.
        chosen = log_sigmas(high, low, self.steps) if lambdas else chosen_sigmas(self.values, high, low, self.steps)
        if chosen is None:
            self.timesteps = self.spaced(table)
            self.sigmas = [*table.at(self.timesteps).tolist(), self.final_sigma(table, None)]
        else:
            rounds = self.rounds_cosine or self.values["beta_schedule"] != "squaredcos_cap_v2"
            self.timesteps = whole_timesteps(table.times(chosen), rounded=(karras or lambdas) and rounds)
            self.sigmas = [*chosen.tolist(), self.final_sigma(table, float(chosen[-1]))]

    def _prepare_flow(self, table: SigmaTable) -> None:
        if other := next((key for key in (*CHOSEN_SIGMAS, "use_lu_lambdas") if self.values.get(key)), None):
            raise ValueError(f"use_flow_sigmas and {other} are on, and only one can be")
        noises = self.flow_noises()
        self.timesteps = (noises * self.trained).astype(np.int64)
        noises = np.append(noises, self.final_sigma(table, float(noises[-1])))
        # In fp32 as diffusers has them: near pure noise the rest of the signal is their rounding.
        noises = noises.astype(np.float32).astype(np.float64)
        self.sigmas = (noises / (1 - noises)).tolist()

    def flow_noises(self) -> Array:
        """The noise of flow matching before each call, float64 [steps]."""
        raise NotImplementedError

    @property
    def last_time(self) -> int:
        return self.trained if self.flow else self.trained - 1

    def level_at(self, timestep: float) -> Level:
        return Level.of_flow(timestep / self.trained) if self.flow else super().level_at(timestep)

    def spaced(self, table: SigmaTable) -> Array:
        """The timesteps of a schedule that chooses no noise levels, int64."""
        return whole_timesteps(spaced_timesteps(self.values, self.steps, self.steps + 1), rounded=True)

    def final_sigma(self, table: SigmaTable, chosen: float | None) -> float:
        """The noise after the last call; ``chosen`` is that before it, where noise levels are chosen."""
        return 0.0 if self.values["final_sigmas_type"] == "zero" else float(table.sigmas[0])

    def level(self, call: int) -> Level:
        sigma = self.sigmas[call]
        return Level.of_flow(sigma / (1 + sigma)) if self.flow else Level.of_sigma(sigma)

    def width(self, first: int, last: int) -> float:
        """How far lambda goes from one call to another; infinite to the image itself."""
        end = self.sigmas[last]
        return math.log(self.sigmas[first] / end) if end else math.inf

    def remember(self, predicted: Array) -> int:
        """Keep what the model predicted at a call, and give the number of calls before it."""
        self._outputs = [predicted, *self._outputs][: self.values["solver_order"]]
        self._taken += 1
        return self._taken - 1

    def lower_at_end(self, call: int) -> int:
        """The highest order of a call near the end of a short schedule."""
        left = len(self.timesteps) - call
        return left if self.values["lower_order_final"] and len(self.timesteps) < FEW_STEPS else 3


class _DpmSolver(_Exponential):
    """DPM-Solver++ (https://arxiv.org/abs/2211.01095), which lays a polynomial of lambda through predicted images."""

    @property
    def stochastic(self) -> bool:
        return bool(self.values["algorithm_type"] == "sde-dpmsolver++")

    def clipped(self, table: SigmaTable) -> int:
        """Number of timesteps whose lambda is below ``lambda_min_clipped``."""
        return int(np.count_nonzero(-np.log(table.sigmas) < self.values["lambda_min_clipped"]))

    @property
    def midpoint(self) -> bool:
        """Whether a step of the second order takes the slope in its middle."""
        return bool(self.values["solver_type"] != "heun")

    def rest(self, start: int, end: int) -> float:
        """The rest of the latents' noise: its share of the old one, and its square where noise is drawn anew."""
        ratio = self.sigmas[end] / self.sigmas[start]
        return ratio**2 if self.stochastic else ratio

    def slope_weight(self, start: int, end: int) -> float:
        """The weight of a predicted image's first derivative by lambda times the step's width."""
        rest, width = self.rest(start, end), self.fading(start, end)
        return 1 - (1 - rest) / width if width else 0.0

    def bend_weight(self, start: int, end: int) -> float:
        """The weight of the second derivative times the width's square."""
        rest, width = self.rest(start, end), self.fading(start, end)
        # With new noise the half has the other sign in diffusers' class, and so in the images that it makes.
        half = -0.5 if self.stochastic else 0.5
        return half - (rest - 1 + width) / width**2 if width else 0.0

    def fading(self, start: int, end: int) -> float:
        """The width of a step, twice where noise is drawn anew: so fast old noise fades."""
        return self.width(start, end) * (2 if self.stochastic else 1)

    def moved(
        self, start: int, end: int, latents: Array, image: Array, draw: Draw, *more: tuple[float, Array]
    ) -> Array:
        """The latents at call ``end`` from those at ``start``: section 4 and appendix B of the paper.

        Args:
            image: predicted at ``start``.
            more: weights of derivatives, and what they are.
        """
        here, there, rest = self.level(start), self.level(end), self.rest(start, end)
        image = (1 - rest) * image + sum(weight * term for weight, term in more)
        result = there.signal * (rest / here.signal * latents + image)
        if not self.stochastic:
            return result
        return result + there.noise * math.sqrt(1 - (self.sigmas[end] / self.sigmas[start]) ** 2) * draw()


class DPMSolverMultistepScheduler(_DpmSolver):
    """DPM-Solver++ with the images of earlier steps: algorithm 2, and the third order of its authors' code."""

    settings: ClassVar[Settings] = {
        **_DPM,
        **flow_settings(),
        **spacing_settings("linspace"),
        "prediction_type": ANY_PREDICTION,
        "lower_order_final": flag(True),
        "euler_at_final": flag(False),
        "use_lu_lambdas": flag(False),
    }
    rounds_cosine = False

    def flow_noises(self) -> Array:
        # From the last trained level but one, and not from pure noise.
        noises = 1 - np.linspace(1, 1 / self.trained, self.steps + 1)
        return shifted(noises, shift_of(self.values, "flow_shift"))[::-1][:-1]

    def spaced(self, table: SigmaTable) -> Array:
        last = self.trained - self.clipped(table)
        return whole_timesteps(spaced_timesteps(self.values, self.steps, self.steps + 1, last), rounded=True)

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        before = self.remember(self.level(call).image(self.prediction, output, latents))
        order = min(self.values["solver_order"], before + 1, self.lower_at_end(call))
        if call + 1 == len(self.timesteps) and (self.values["euler_at_final"] or not self.sigmas[-1]):
            order = 1
        return self.moved(call, call + 1, latents, self._outputs[0], draw, *self._derivatives(call, order))

    def _derivatives(self, call: int, order: int) -> list[tuple[float, Array]]:
        if order == 1:
            return []
        end, last = call + 1, self.width(call - 1, call)
        width = self.width(call, end)
        newest = width / last * (self._outputs[0] - self._outputs[1])
        if order == 2:
            weight = 0.5 * (1 - self.rest(call, end)) if self.midpoint else self.slope_weight(call, end)
            return [(weight, newest)]
        earlier = self.width(call - 2, call - 1)
        change = newest - width / earlier * (self._outputs[1] - self._outputs[2])
        return [
            (self.slope_weight(call, end), newest + last / (last + earlier) * change),
            (self.bend_weight(call, end), width / (last + earlier) * change),
        ]


class DPMSolverSinglestepScheduler(_DpmSolver):
    """DPM-Solver++ whose steps of higher order begin anew: algorithm 1, one call of the UNet a step."""

    settings: ClassVar[Settings] = {
        **_DPM,
        "lower_order_final": flag(False),
    }

    def prepare(self) -> None:
        super().prepare()
        self._orders = self._planned()

    def spaced(self, table: SigmaTable) -> Array:
        last = self.trained - self.clipped(table)
        return np.linspace(0, last - 1, self.steps + 1).round()[::-1][:-1].astype(np.int64)

    def _planned(self) -> list[int]:
        """The order of each call: 1, 2, 1, 2 and so on for the second order; steps that end the schedule are lower."""
        order, zero = self.values["solver_order"], self.values["final_sigmas_type"] == "zero"
        lower = self.values["lower_order_final"] or zero or self.steps % order != 0
        orders = [number % order + 1 for number in range(self.steps)]
        if lower and self.steps % order == 0 and order > 1:
            orders[-order:] = {2: [1, 1], 3: [1, 2, 1]}[order]
        return [*orders[:-1], 1] if zero else orders

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        before = self.remember(self.level(call).image(self.prediction, output, latents))
        order = min(self._orders[call], before + 1)
        if order == 1:
            self._begun = latents
        base = call + 1 - order
        return self.moved(base, call + 1, self._begun, self._outputs[order - 1], draw, *self._derivatives(call, order))

    def _derivatives(self, call: int, order: int) -> list[tuple[float, Array]]:
        if order == 1:
            return []
        base, end = call + 1 - order, call + 1
        width, last = self.width(base, end), self.width(base, call)
        newest = width / last * (self._outputs[0] - self._outputs[order - 1])
        if order == 2:
            weight = 0.5 * (1 - self.rest(base, end)) if self.midpoint else self.slope_weight(base, end)
            return [(weight, newest)]
        if self.midpoint:
            return [(self.slope_weight(base, end), newest)]
        first = self.width(base, base + 1)
        earlier = width / first * (self._outputs[1] - self._outputs[2])
        return [
            (self.slope_weight(base, end), (last * earlier - first * newest) * (1 / (last - first))),
            (self.bend_weight(base, end), 2 * width / (last - first) * (newest - earlier)),
        ]


class DEISMultistepScheduler(_Exponential):
    """DEIS (https://arxiv.org/abs/2204.13902), which lays a polynomial of log rho through predicted noise.

    Rho is the noise beside a signal of 1: latents beside a signal of 1 grow by it as the noise says (equation 15).
    """

    settings: ClassVar[Settings] = {
        **_SHARED,
        **spacing_settings("linspace"),
        "solver_type": one_of("logrho", "midpoint", "heun", "bh1", "bh2"),
        "algorithm_type": one_of("deis", "dpmsolver", "dpmsolver++"),
        "lower_order_final": flag(True),
    }

    def final_sigma(self, table: SigmaTable, chosen: float | None) -> float:
        return float(table.sigmas[0]) if chosen is None else chosen

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        here, there = self.level(call), self.level(call + 1)
        before = self.remember(here.gaussian(self.prediction, output, latents))
        order = min(self.values["solver_order"], before + 1, self.lower_at_end(call))
        places = [math.log(self.sigmas[call - number]) for number in range(order)]
        end = math.log(self.sigmas[call + 1])
        total = latents * (1 / here.signal)
        for number, predicted in enumerate(self._outputs[:order]):
            total = total + lagrange_times_exponential(places, number, places[0], end) * predicted
        return there.signal * total


class UniPCMultistepScheduler(_Exponential):
    """UniPC (https://arxiv.org/abs/2302.04867), which corrects each step by the output that it led to."""

    settings: ClassVar[Settings] = {
        **_SHARED,
        **flow_settings(),
        **spacing_settings("linspace"),
        "prediction_type": ANY_PREDICTION,
        "solver_type": one_of("bh2", "bh1", "midpoint", "heun", "logrho"),
        "predict_x0": one_of(True),
        "lower_order_final": flag(True),
        "disable_corrector": Setting([], lambda value: isinstance(value, list)),
        "solver_p": one_of(None),
        "final_sigmas_type": one_of("zero", "sigma_min"),
        "shift_terminal": real(None, 0, 1),
    }
    _corrected: Array | None = None
    """The latents before the last call, corrected."""
    _order = 1
    """Of the last call."""

    def flow_noises(self) -> Array:
        noises = np.linspace(1, 1 / self.trained, self.steps + 1)[:-1]
        noises = stretched(shifted(noises, shift_of(self.values, "flow_shift")), self.values["shift_terminal"])
        # Without a signal the logarithm of the signal beside the noise has no value.
        noises[0] -= _LEAST_SIGNAL if abs(noises[0] - 1) < _LEAST_SIGNAL else 0.0
        return noises

    def final_sigma(self, table: SigmaTable, chosen: float | None) -> float:
        if self.values["final_sigmas_type"] == "zero":
            return 0.0
        return float(table.sigmas[0]) if chosen is None else chosen

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        image = self.level(call).image(self.prediction, output, latents)
        if self._corrected is not None and call - 1 not in self.values["disable_corrector"]:
            latents = self._corrector(call, image, self._corrected)
        before = self.remember(image)
        left = len(self.timesteps) - call if self.values["lower_order_final"] else 3
        self._order = min(self.values["solver_order"], left, before + 1)
        self._corrected = latents
        return self._predictor(call, latents)

    def _predictor(self, call: int, latents: Array) -> Array:
        """UniP of equation 9, without an output at the step's end."""
        if self._order == 1:
            return self._moved(call, latents, 0.0)
        terms, powers, sides, scale = self._system(call, self._order)
        # Of the second order the paper's appendix F says: 0.5 serves every B(h).
        weights = [0.5] if self._order == 2 else np.linalg.solve(powers[:-1, :-1], sides[:-1]).tolist()
        return self._moved(call, latents, scale * _sum(weights, terms))

    def _corrector(self, call: int, image: Array, latents: Array) -> Array:
        """UniC of equation 8: the step to ``call`` again, with the image that is predicted there."""
        terms, powers, sides, scale = self._system(call - 1, self._order)
        weights = [0.5] if self._order == 1 else np.linalg.solve(powers, sides).tolist()
        return self._moved(call - 1, latents, scale * _sum(weights, [*terms, image - self._outputs[0]]))

    def _moved(self, call: int, latents: Array, more: Array | float) -> Array:
        """The latents after a step from ``call``: of the first order, and ``more``, which is added to the image."""
        here, there, rest = self.level(call), self.level(call + 1), self.sigmas[call + 1] / self.sigmas[call]
        return there.noise / here.noise * latents + there.signal * ((1 - rest) * self._outputs[0] + more)

    def _system(self, call: int, order: int) -> tuple[list[Array], Array, Array, float]:
        """The equations of theorem 3.1 for a step from ``call``.

        Returns:
            The slopes to earlier outputs, the powers of their places in steps and of 1 [order, order], the right-hand
            sides [order], and ``-B(h)``.
        """
        width = self.width(call, call + 1)
        ratios = [-self.width(call - number, call) / width for number in range(1, order)]
        terms = [(1 / ratio) * (self._outputs[number + 1] - self._outputs[0]) for number, ratio in enumerate(ratios)]
        small = -width  # predictions of images go against lambda
        scale = small if self.values["solver_type"] == "bh1" else math.expm1(small)
        sides, phi, factorial = [], math.expm1(small) / small - 1, 1
        for power in range(1, order + 1):
            sides.append(phi * factorial / scale)
            factorial *= power + 1
            phi = phi / small - 1 / factorial
        powers = np.asarray([[ratio**power for ratio in (*ratios, 1.0)] for power in range(order)])
        return terms, powers, np.asarray(sides), -scale


def _sum(weights: Sequence[float], terms: Sequence[Array]) -> Array:
    return np.asarray(sum(weight * term for weight, term in zip(weights, terms, strict=True)))
