"""Settings of samplers: the keys of diffusers' scheduler configs, their defaults, and the values that are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """A key of a class's config."""

    default: Any
    accepts: Callable[[Any], bool]
    """Whether sdort's sampler does what diffusers' class does with a value."""


Settings = Mapping[str, Setting]


def one_of(default: Any, *others: Any) -> Setting:
    """A setting with these values, told apart by type too: 1 is not True."""
    return Setting(default, lambda value: any(type(value) is type(one) and value == one for one in (default, *others)))


def flag(default: bool) -> Setting:
    """A setting that is on or off."""
    return one_of(default, not default)


def whole(default: int, low: int = 0) -> Setting:
    """A whole number from ``low`` on."""
    return Setting(default, lambda value: type(value) is int and value >= low)


def real(default: float | None, low: float = -math.inf, high: float = math.inf) -> Setting:
    """A number, or None where that is the default."""
    return Setting(
        default,
        lambda value: value is default or (type(value) in (int, float) and low <= value <= high),
    )


def unread(default: Any) -> Setting:
    """A setting that acts only with another one that is not known here."""
    return Setting(default, lambda value: True)


FLOW = "flow_prediction"
"""The prediction of flow matching: the noise minus the image."""
PREDICTION = one_of("epsilon", "v_prediction", "sample")
ANY_PREDICTION = one_of("epsilon", "v_prediction", "sample", FLOW)
ZERO_SNR = "rescale_betas_zero_snr"
LEAST_SHIFT = 1e-3
"""Least shift of flow matching's noise levels, which are divided by it."""
IMAGE_TOKENS = "image_tokens"
"""Number of an image's tokens, which a request says and no config; None for as many as the config has at most."""
SIGMA_RANGE: Settings = {"sigma_min": real(None, 0), "sigma_max": real(None, 0)}
"""The ends of chosen noise levels. Diffusers' classes read them from a config even where they are no settings of the
class."""
CHOSEN_SIGMAS = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")


def noise_settings(start: float = 0.0001, end: float = 0.02, schedule: str = "linear") -> dict[str, Setting]:
    """The settings of the noise that a model was trained with, and their defaults in a class."""
    schedules = [schedule, *({"linear", "scaled_linear", "squaredcos_cap_v2"} - {schedule})]
    return {
        "num_train_timesteps": whole(1000, 1),
        "beta_start": real(start, 0, 1),
        "beta_end": real(end, 0, 1),
        "beta_schedule": one_of(*schedules),
        "trained_betas": Setting(None, lambda value: value is None or isinstance(value, list)),
        ZERO_SNR: one_of(False, True, None),
    }


def spacing_settings(default: str) -> dict[str, Setting]:
    """The settings of the timesteps' places, and the default in a class."""
    others = {"linspace", "leading", "trailing"} - {default}
    return {"timestep_spacing": one_of(default, *sorted(others)), "steps_offset": whole(0)}


def chosen_sigma_settings() -> dict[str, Setting]:
    """The settings of classes whose noise levels need not be those of trained timesteps."""
    return {**dict.fromkeys(CHOSEN_SIGMAS, flag(False)), **SIGMA_RANGE}


def threshold_settings() -> dict[str, Setting]:
    """Dynamic thresholding, which is not linear."""
    return {"thresholding": one_of(False), "dynamic_thresholding_ratio": unread(0.995), "sample_max_value": unread(1.0)}


def no_flow_settings() -> dict[str, Setting]:
    """Settings of classes that serve models of flow matching in diffusers alone."""
    return {
        "use_flow_sigmas": one_of(False),
        "flow_shift": unread(1.0),
        "use_dynamic_shifting": one_of(False),
        "time_shift_type": unread("exponential"),
    }


def flow_settings() -> dict[str, Setting]:
    """Settings of classes that serve models of flow matching too."""
    return {"use_flow_sigmas": flag(False), "flow_shift": real(1.0, LEAST_SHIFT), **shifting_settings()}


def shifting_settings() -> dict[str, Setting]:
    """Settings of noise levels that are shifted by the number of an image's tokens."""
    return {
        "use_dynamic_shifting": flag(False),
        "time_shift_type": one_of("exponential", "linear"),
        "base_shift": real(0.5),
        "max_shift": real(1.15),
        "base_image_seq_len": whole(256, 1),
        "max_image_seq_len": whole(4096, 1),
        IMAGE_TOKENS: Setting(None, lambda value: value is None or (type(value) is int and value > 0)),
    }


def clip_settings(default: bool) -> dict[str, Setting]:
    """Clipping of predicted images, which is not linear."""
    return {
        "clip_sample": Setting(default, lambda value: value is False),
        "clip_sample_range": unread(1.0),
    }
