"""Timesteps and noise levels of a schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sdort.graph.signature import Array


def spaced_timesteps(values: Mapping[str, Any], steps: int, points: int, last: int | None = None) -> Array:
    """Descending timesteps in the three ways of table 2 of https://arxiv.org/abs/2305.08891, float64.

    Args:
        values: of the settings of :func:`spacing_settings`.
        points: how many places divide the range: ``steps``, or one more where the lowest place is not taken.
        last: the number of timesteps from which they are chosen; all that were trained by default.
    """
    trained = values["num_train_timesteps"]
    last = trained if last is None else last
    if values["timestep_spacing"] == "linspace":
        times: Array = np.linspace(0, last - 1, points)
        return times[::-1][:steps]
    if values["timestep_spacing"] == "leading":
        return np.asarray((np.arange(points) * float(last // points))[::-1][:steps] + values["steps_offset"])
    return np.asarray(np.arange(last, 0, -trained / steps).round() - 1)


class SigmaTable:
    """The noise beside a signal of 1 at every trained timestep.

    Args:
        shares: of :func:`trained_shares`.
    """

    def __init__(self, shares: Array) -> None:
        self.sigmas = np.sqrt((1 - shares) / shares)
        self._logs = np.log(self.sigmas)

    def at(self, times: Array) -> Array:
        """The sigmas at timesteps that may lie between trained ones."""
        return np.interp(times, np.arange(len(self.sigmas)), self.sigmas)

    def times(self, sigmas: Array) -> Array:
        """The timesteps at which there is so much noise."""
        return np.interp(np.log(np.maximum(sigmas, 1e-10)), self._logs, np.arange(len(self._logs)))


def whole_timesteps(times: Array, *, rounded: bool) -> Array:
    """Trained timesteps, int64: the nearest, or the next one below."""
    # What arithmetic left just below a trained timestep is that one.
    return np.asarray(times.round() if rounded else np.floor(times + 1e-6)).astype(np.int64)


def chosen_sigmas(values: Mapping[str, Any], high: float, low: float, steps: int) -> Array | None:
    """Noise levels that a config asks for instead of those of trained timesteps; None where it asks for none.

    Args:
        values: of the settings of :func:`chosen_sigma_settings`.
        high: the first sigma, where the config does not say.
        low: the last one.
    """
    high = high if values["sigma_max"] is None else float(values["sigma_max"])
    low = low if values["sigma_min"] is None else float(values["sigma_min"])
    ramp = np.linspace(0, 1, steps)
    if values["use_karras_sigmas"]:
        # https://arxiv.org/abs/2206.00364, equation 5 with rho = 7.
        first, last = high ** (1 / 7), low ** (1 / 7)
        return np.asarray((first + ramp * (last - first)) ** 7)
    if values["use_exponential_sigmas"]:
        return log_sigmas(high, low, steps)
    if values["use_beta_sigmas"]:
        return low + beta_quantile(1 - ramp, 0.6) * (high - low)  # https://arxiv.org/abs/2407.12173
    return None


def log_sigmas(high: float, low: float, steps: int) -> Array:
    """Noise levels at equal distances of their logarithms."""
    return np.asarray(np.exp(np.linspace(math.log(high), math.log(low), steps)))


def beta_quantile(shares: Array, shape: float) -> Array:
    """The quantiles of the symmetric beta distribution whose two parameters are ``shape``, by bisection.

    Args:
        shares: float64 in [0, 1].
    """
    upper = np.minimum(shares, 1 - shares)
    low, high = np.zeros_like(upper), np.full_like(upper, 0.5)
    for _ in range(60):
        middle = (low + high) / 2
        above = _lower_half(middle, shape) > upper
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(np.where(shares > 0.5, 1 - (low + high) / 2, (low + high) / 2))


def _lower_half(places: Array, shape: float) -> Array:
    """The beta distribution's function at ``places`` up to 0.5: its power series, of 60 terms of at most 0.5^n.

    https://dlmf.nist.gov/8.17#E8 with https://dlmf.nist.gov/15.2#E1
    """
    total, factor = np.zeros_like(places), np.ones_like(places)
    for number in range(60):
        total += factor / (shape + number)
        factor = factor * (number + 1 - shape) / (number + 1) * places
    return np.asarray(places**shape * total * math.gamma(2 * shape) / math.gamma(shape) ** 2)
