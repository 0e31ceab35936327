"""Which of diffusers' schedulers have a sampler here, with which settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdort.samplers.exponential import (
    DEISMultistepScheduler,
    DPMSolverMultistepScheduler,
    DPMSolverSinglestepScheduler,
    UniPCMultistepScheduler,
)
from sdort.samplers.flow_matching import FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler
from sdort.samplers.growing_noise import (
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    KDPM2AncestralDiscreteScheduler,
    KDPM2DiscreteScheduler,
    LMSDiscreteScheduler,
)
from sdort.samplers.sampler import FormulaSampler
from sdort.samplers.settings import CHOSEN_SIGMAS
from sdort.samplers.trained_steps import DDIMScheduler, DDPMScheduler, LCMScheduler, PNDMScheduler, TCDScheduler

SAMPLER_CLASSES: Mapping[str, type[FormulaSampler]] = {
    each.__name__: each
    for each in (
        DDIMScheduler,
        DDPMScheduler,
        DEISMultistepScheduler,
        DPMSolverMultistepScheduler,
        DPMSolverSinglestepScheduler,
        EulerAncestralDiscreteScheduler,
        EulerDiscreteScheduler,
        FlowMatchEulerDiscreteScheduler,
        FlowMatchHeunDiscreteScheduler,
        HeunDiscreteScheduler,
        KDPM2AncestralDiscreteScheduler,
        KDPM2DiscreteScheduler,
        LCMScheduler,
        LMSDiscreteScheduler,
        PNDMScheduler,
        TCDScheduler,
        UniPCMultistepScheduler,
    )
}
"""By the names of diffusers' classes."""

_ELSEWHERE = frozenset({key for each in SAMPLER_CLASSES.values() for key in each.settings})
"""Settings of any class: a config may have those of a class whose place another one takes, which drops them."""
_OLD = frozenset({"timestep_values", "tensor_format"})
"""Keys that old versions of diffusers wrote, and no class of today reads."""


def foreign_settings(class_name: str, config: Mapping[str, Any]) -> list[str] | None:
    """The settings, as ``key=value``, with which only diffusers' class knows what to do; None of an unknown class."""
    made = SAMPLER_CLASSES.get(class_name)
    if made is None:
        return None
    known = {key: value for key, value in config.items() if not key.startswith("_")}
    foreign = [key for key, setting in made.settings.items() if not setting.accepts(config.get(key, setting.default))]
    foreign += [key for key in known if key not in _ELSEWHERE | _OLD]
    defaults = {key: setting.default for key, setting in made.settings.items()}
    return [f"{key}={({**defaults, **config})[key]!r}" for key in foreign]


def sampler_values(class_name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all settings of a class, by a config without foreign settings.

    Raises:
        ValueError: two of them exclude each other.
    """
    settings = SAMPLER_CLASSES[class_name].settings
    values = {key: config.get(key, setting.default) for key, setting in settings.items()}
    if sum(bool(values.get(key)) for key in CHOSEN_SIGMAS) > 1:
        raise ValueError(f"only one of {', '.join(CHOSEN_SIGMAS)} can be on")
    return values
