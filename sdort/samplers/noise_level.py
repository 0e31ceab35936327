"""The noise that a model was trained with, and how much of it latents have.

A model is trained on ``signal * image + noise * gaussian``, ``signal^2 + noise^2 = 1``. The table of a model has the
signal's share ``signal^2``, diffusers' ``alphas_cumprod``, at each timestep
(DDPM, https://arxiv.org/abs/2006.11239, equation 4).
Of flow matching signal and noise add up to 1, and the model predicts the gaussian minus the image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdort.graph.signature import Array
from sdort.samplers.settings import FLOW, ZERO_SNR

LEAST_SHARE = 2.0**-24
"""The share of the signal at the last timestep of zero terminal SNR, where a sampler divides by it."""


@dataclass(frozen=True)
class Level:
    """How much of the image and of the noise latents have."""

    signal: float
    noise: float

    @classmethod
    def of_share(cls, share: float) -> Level:
        """The level at a timestep whose table says ``share``."""
        return cls(math.sqrt(share), math.sqrt(1 - share))

    @classmethod
    def of_sigma(cls, sigma: float) -> Level:
        """The level of noise that is ``sigma`` times as large as the signal."""
        signal = 1 / math.sqrt(sigma * sigma + 1)
        return cls(signal, sigma * signal)

    @classmethod
    def of_flow(cls, noise: float) -> Level:
        """The level on flow matching's straight line from image to noise (https://arxiv.org/abs/2210.02747)."""
        return cls(1 - noise, noise)

    def image(self, prediction: str, output: Array, latents: Array) -> Array:
        """The image that a model's output predicts (v: https://arxiv.org/abs/2202.00512, appendix D)."""
        if prediction == "epsilon":
            return (latents - self.noise * output) * (1 / self.signal)
        if prediction == FLOW:
            return latents - self.noise * output
        return self.signal * latents - self.noise * output if prediction == "v_prediction" else output

    def gaussian(self, prediction: str, output: Array, latents: Array) -> Array:
        """The noise that a model's output predicts."""
        if prediction == "epsilon":
            return output
        if prediction == "v_prediction":
            return self.signal * output + self.noise * latents
        if prediction == FLOW:
            return latents + self.signal * output
        return (latents - self.signal * output) * (1 / self.noise)

    def mixed(self, image: Array, gaussian: Array) -> Array:
        """Latents of this level."""
        return self.signal * image + self.noise * gaussian


def trained_shares(values: Mapping[str, Any], least: float) -> Array:
    """The table of a config, float64 [trained timesteps].

    Args:
        values: of the settings of :func:`noise_settings`.
        least: the last share of a model of zero terminal SNR.
    """
    shares: Array = np.cumprod(1 - _betas(values))
    return at_zero_snr(shares, least) if values[ZERO_SNR] else shares


def at_zero_snr(shares: Array, least: float) -> Array:
    """A table whose noise ends without a signal: algorithm 1 of https://arxiv.org/abs/2305.08891.

    Args:
        shares: [trained timesteps].
        least: the last share.
    """
    roots = np.sqrt(shares)
    rescaled: Array = np.square((roots - roots[-1]) * roots[0] / (roots[0] - roots[-1]))
    rescaled[-1] = least
    return rescaled


def _betas(values: Mapping[str, Any]) -> Array:
    if values["trained_betas"] is not None:
        return np.asarray(values["trained_betas"], np.float64)
    start, end, trained = values["beta_start"], values["beta_end"], values["num_train_timesteps"]
    if values["beta_schedule"] == "linear":
        return np.asarray(np.linspace(start, end, trained))
    if values["beta_schedule"] == "scaled_linear":  # of latent diffusion, https://arxiv.org/abs/2112.10752
        return np.square(np.linspace(start**0.5, end**0.5, trained))
    # The cosine schedule of https://arxiv.org/abs/2102.09672, equation 17.
    places = np.arange(trained + 1) / trained
    cosines = np.square(np.cos((places + 0.008) / 1.008 * (np.pi / 2)))
    return np.asarray(np.minimum(1 - cosines[1:] / cosines[:-1], 0.999))
