"""Names of schedulers: diffusers' classes, their settings, and what AUTOMATIC1111, ComfyUI and people call them.

A name is a sampler, and after it, where it says so, the spacing of its noise levels: ``dpm++-2m-karras``,
``DPM++ 2M Karras``, ``dpmpp_2m_karras``. Which class and settings a name of other programs means is diffusers' own
table: https://huggingface.co/docs/diffusers/api/schedulers/overview
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sdort.errors import BadModelError, UsageError, nearest_name
from sdort.samplers.settings import FLOW

Config = dict[str, Any]


@dataclass(frozen=True)
class Sampler:
    """A sampler: diffusers' class and the settings that make the class this sampler."""

    class_name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    """Other names."""


_MULTISTEP, _SINGLESTEP = "DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler"
_ODE, _SDE = {"algorithm_type": "dpmsolver++"}, {"algorithm_type": "sde-dpmsolver++"}
_SECOND: Config = {"solver_order": 2, "solver_type": "midpoint"}

SAMPLERS: dict[str, Sampler] = {
    "ddim": Sampler("DDIMScheduler"),
    "ddpm": Sampler("DDPMScheduler"),
    "deis": Sampler("DEISMultistepScheduler"),
    "dpm2": Sampler("KDPM2DiscreteScheduler"),
    "dpm2-a": Sampler("KDPM2AncestralDiscreteScheduler"),
    "dpm++-2m": Sampler(_MULTISTEP, {**_ODE, **_SECOND}),
    "dpm++-2m-sde": Sampler(_MULTISTEP, {**_SDE, **_SECOND}),
    "dpm++-2m-sde-heun": Sampler(_MULTISTEP, {**_SDE, **_SECOND, "solver_type": "heun"}),
    "dpm++-3m-sde": Sampler(_MULTISTEP, {**_SDE, **_SECOND, "solver_order": 3}),
    "dpm++-2s": Sampler(_SINGLESTEP, {**_ODE, **_SECOND}, ("dpm++-s",)),
    "dpm++-sde": Sampler(_SINGLESTEP, {**_SDE, **_SECOND}),
    "euler": Sampler("EulerDiscreteScheduler"),
    "euler-a": Sampler("EulerAncestralDiscreteScheduler"),
    "heun": Sampler("HeunDiscreteScheduler"),
    "lcm": Sampler("LCMScheduler"),
    "lms": Sampler("LMSDiscreteScheduler"),
    "pndm": Sampler("PNDMScheduler"),
    "plms": Sampler("PNDMScheduler", {"skip_prk_steps": True}),
    "tcd": Sampler("TCDScheduler"),
    "unipc": Sampler("UniPCMultistepScheduler", also=("unipc-bh2",)),
}
"""Short name -> sampler."""

_SIGMAS = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")


def _sigmas(chosen: str | None) -> Config:
    return {name: name == chosen for name in _SIGMAS}


SPACINGS = ("leading", "linspace", "trailing")
"""Values of ``timestep_spacing``: table 2 of https://arxiv.org/abs/2305.08891."""

NOISE_LEVELS: dict[str, Config] = {
    "karras": _sigmas("use_karras_sigmas"),
    "exponential": _sigmas("use_exponential_sigmas") | {"timestep_spacing": "linspace"},
    "beta": _sigmas("use_beta_sigmas") | {"timestep_spacing": "linspace"},
    "sgm-uniform": _sigmas(None) | {"timestep_spacing": "trailing"},
    "simple": _sigmas(None) | {"timestep_spacing": "trailing"},
    "normal": _sigmas(None) | {"timestep_spacing": "linspace"},
    "ddim-uniform": _sigmas(None) | {"timestep_spacing": "leading"},
}
"""Suffix of a sampler's name -> settings of the class."""

WITHOUT_SIGMAS = frozenset(
    {
        "DDIMScheduler",
        "DDPMScheduler",
        "EulerAncestralDiscreteScheduler",
        "LCMScheduler",
        "PNDMScheduler",
        "TCDScheduler",
    }
)
"""Classes whose noise levels are those of the trained timesteps."""
WITHOUT_SPACING = frozenset({_SINGLESTEP})
"""Classes without ``timestep_spacing``."""
WITH_ETA = frozenset({"DDIMScheduler", "TCDScheduler"})
"""Classes whose steps take ``eta``, the share of new noise."""

FLOW_CLASSES = {
    "EulerDiscreteScheduler": "FlowMatchEulerDiscreteScheduler",
    "HeunDiscreteScheduler": "FlowMatchHeunDiscreteScheduler",
    **{
        name: name
        for name in (
            "FlowMatchEulerDiscreteScheduler",
            "FlowMatchHeunDiscreteScheduler",
            _MULTISTEP,
            "UniPCMultistepScheduler",
        )
    },
}
"""Class of a sampler -> the one that takes its place with a model of flow matching."""
OF_FLOW = frozenset(name for name in FLOW_CLASSES.values() if name.startswith("FlowMatch"))
"""Classes that serve models of flow matching alone."""

_BETAS = ("beta_schedule", "beta_start", "trained_betas")
_FLOW = ("flow", FLOW)
"""Keys of configs of schedulers with a table of betas, and predictions of flow matching."""

CLASSES = OF_FLOW | {sampler.class_name for sampler in SAMPLERS.values()}
"""Diffusers' classes that are known here."""


def find_scheduler(name: str) -> tuple[str, Config]:
    """Diffusers' class, and additions to its config, for a name.

    Case and punctuation do not matter: ``DPM++ 2M Karras``, ``dpmpp_2m_karras`` and ``dpm++-2m-karras`` are one. A
    class's own name adds nothing to the pipeline's config.

    Raises:
        UsageError: no such scheduler, or one that has no such noise levels; the hint says which is meant, or lists
            them.
    """
    asked = _key(name)
    if asked in _CLASSES_BY_KEY:
        return _CLASSES_BY_KEY[asked], {}
    for levels, settings in _endings(asked):
        sampler = _SAMPLERS_BY_KEY.get(asked.removesuffix(_key(levels)))
        if sampler is None:
            continue
        _check_levels(sampler.class_name, levels)
        return sampler.class_name, {**sampler.config, **settings}
    raise UsageError(f"there is no scheduler {name!r}", hint=_meant(asked))


def leveled_names() -> list[str]:
    """The short names of all samplers with the noise levels that they have."""
    return [
        f"{name}-{levels}" for name, sampler in SAMPLERS.items() for levels in NOISE_LEVELS if _has(sampler, levels)
    ]


def _has(sampler: Sampler, levels: str) -> bool:
    try:
        _check_levels(sampler.class_name, levels)
    except UsageError:
        return False
    return True


def check_spacing(class_name: str) -> None:
    """Refuse a timestep spacing for a class that has none.

    Raises:
        UsageError: which class it is.
    """
    if class_name in WITHOUT_SPACING:
        raise UsageError(f"{class_name} has no timestep spacing", hint="dpm++-2m and dpm++-2m-sde have one.")


def has_betas(config: Mapping[str, Any]) -> bool:
    """Whether a scheduler's config says by which noise its model was trained, in the way of sdort's schedulers."""
    return any(config.get(key) for key in _BETAS)


def is_flow(config: Mapping[str, Any]) -> bool:
    """Whether a scheduler's config is of flow matching with noise levels on the straight line from image to noise."""
    return str(config.get("_class_name")).startswith("FlowMatch") or bool(config.get("use_flow_sigmas"))


def flow_scheduler(class_name: str, additions: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, Config]:
    """The sampler of a model of flow matching in the place of another one, and additions to the config of the model's.

    Args:
        class_name: of :func:`find_scheduler`, and so are ``additions``.
        config: of the model's own scheduler.

    Raises:
        UsageError: flow matching has no such sampler, or the sampler no such noise levels.
        BadModelError: the model predicts something else than such a sampler takes.
    """
    flow_class = FLOW_CLASSES.get(class_name)
    if flow_class is None or additions.get("algorithm_type") == "sde-dpmsolver++":
        raise UsageError(
            f"{class_name} does not draw with a model of flow matching",
            hint="These do: euler, heun, dpm++-2m, unipc.",
        )
    alone = flow_class in OF_FLOW
    predicts = config.get("prediction_type", "epsilon")
    if alone and not _is_alone(config) and predicts != FLOW:
        raise BadModelError(
            f"{flow_class} takes predictions of a flow, and the model of this {config.get('_class_name')} predicts "
            f"{predicts}",
            hint="Leave out --scheduler.",
        )
    if flow_class != "FlowMatchEulerDiscreteScheduler" and any(additions.get(key) for key in _SIGMAS):
        raise UsageError(
            f"{flow_class} has only flow matching's own noise levels with such a model",
            hint="euler has others: euler-karras, euler-exponential, euler-beta.",
        )
    if "timestep_spacing" in additions:
        check_flow_spacing(flow_class, str(additions["timestep_spacing"]))
    shift = config.get("shift", config.get("flow_shift", 1.0))
    if alone:
        spacing = config.get("timestep_spacing", "linspace") if _is_alone(config) else "linspace"
        return flow_class, {"timestep_spacing": spacing, **additions, "shift": shift}
    prediction = FLOW if _is_alone(config) else predicts
    return flow_class, {**additions, "use_flow_sigmas": True, "prediction_type": prediction, "flow_shift": shift}


def _is_alone(config: Mapping[str, Any]) -> bool:
    """Whether a config is of a class that serves flow matching alone, whose models predict a flow."""
    return str(config.get("_class_name")).startswith("FlowMatch")


def check_not_of_flow(class_name: str, place: object, config: Mapping[str, Any]) -> None:
    """Refuse a sampler of flow matching for a model of betas.

    Args:
        place: where the model's own scheduler lies, for the message.
        config: of that.

    Raises:
        UsageError: it is one.
    """
    if class_name in OF_FLOW:
        raise UsageError(
            f"{class_name} is for models of flow matching",
            hint=f"The scheduler of {place} is a {config.get('_class_name')}: --scheduler euler or heun go with both.",
        )


def shift_setting(class_name: str) -> str:
    """The setting of a class that has the shift of flow matching's noise levels."""
    return "shift" if class_name in OF_FLOW else "flow_shift"


def check_flow_spacing(class_name: str, spacing: str) -> None:
    """Refuse a timestep spacing that a sampler of flow matching has not.

    Raises:
        UsageError: which one it is.
    """
    if class_name not in OF_FLOW or spacing == "leading":
        raise UsageError(
            f"{class_name} has no {spacing} timesteps with a model of flow matching",
            hint="euler and heun have linspace and trailing.",
        )


def noise_process(config: Mapping[str, Any]) -> str | None:
    """The process of noise that a model was trained with, by its scheduler's config, where it is none of sdort's.

    Models of sdort's schedulers mix image and noise by a table of betas. EDM (https://arxiv.org/abs/2206.00364) adds
    noise of any level and scales the model's inputs and outputs by it; flow matching
    (https://arxiv.org/abs/2210.02747) goes from image to noise on a straight line. No scheduler of the one draws with a
    model of another.

    Returns:
        It in words; None for one of betas.
    """
    name = str(config.get("_class_name"))
    if is_flow(config) or config.get("prediction_type") in _FLOW:
        return "flow matching (Flux, SD 3)"
    if name.startswith("EDM") or ("sigma_data" in config and not has_betas(config)):
        return "EDM's continuous noise levels (Playground v2.5, CosXL)"
    if config.get("timestep_type") == "continuous":
        return "continuous noise levels (CosXL, Stable Video Diffusion)"
    return None


def check_noise_process(config: Mapping[str, Any], place: object, asked: str | None) -> None:
    """Refuse a model of another process of noise than sdort's schedulers have, whichever of them is asked for.

    Those of flow matching have samplers of their own: :func:`flow_scheduler`.

    Args:
        config: of the model's own scheduler.
        place: where that lies, for the message.
        asked: the name of a scheduler that is to take its place.

    Raises:
        BadModelError: it is.
    """
    process = noise_process(config)
    if process is None or is_flow(config):
        return
    instead = f"; {asked} would draw noise with it" if asked else ""
    raise BadModelError(
        f"the scheduler of {place}, {config.get('_class_name')}, is for a model of {process}, with which sdort does "
        f"not draw{instead}",
        hint="No --scheduler of sdort's can stand in for it. Its components can be exported and optimized.",
    )


def check_eta(class_name: str) -> None:
    """Refuse eta for a class that takes none.

    Raises:
        UsageError: which class it is.
    """
    if class_name not in WITH_ETA:
        raise UsageError(f"{class_name} takes no --eta", hint=f"These do: {', '.join(sorted(WITH_ETA))}.")


def _check_levels(class_name: str, levels: str) -> None:
    settings = NOISE_LEVELS.get(levels, {})
    if any(settings.get(key) for key in _SIGMAS):
        if class_name in WITHOUT_SIGMAS:
            raise UsageError(
                f"{class_name} has no {levels} noise levels",
                hint="These have: euler, heun, dpm2, dpm++-2m, unipc and others.",
            )
    elif "timestep_spacing" in settings:
        check_spacing(class_name)


def _endings(asked: str) -> Iterator[tuple[str, Config]]:
    """The noise levels that a name may end with, none among them."""
    yield "", {}
    yield from ((levels, settings) for levels, settings in NOISE_LEVELS.items() if asked.endswith(_key(levels)))


def _key(name: str) -> str:
    """Letters, digits and plus signs of a name, without what other programs write in other words."""
    letters = re.sub(r"[^a-z0-9+]", "", name.lower())
    return letters.replace("dpmpp", "dpm++").replace("dpm2ancestral", "dpm2a").replace("eulerancestral", "eulera")


_CLASSES_BY_KEY = {_key(text): name for name in CLASSES for text in (name, name.removesuffix("Scheduler"))}
_SAMPLERS_BY_KEY = {_key(text): sampler for name, sampler in SAMPLERS.items() for text in (name, *sampler.also)}


@cache
def _known() -> dict[str, str]:
    """All names by their keys."""
    known = {_key(text): text for text in (*CLASSES, *(text.removesuffix("Scheduler") for text in CLASSES))}
    known |= {_key(f"{name} {levels}"): f"{name}-{levels}" for name in SAMPLERS for levels in NOISE_LEVELS}
    return known | {_key(name): name for name in SAMPLERS}


def _meant(asked: str) -> str:
    nearest = nearest_name(asked, _known())
    question = f"Did you mean {_known()[nearest]}? " if nearest else ""
    return (
        f"{question}There are: {', '.join(SAMPLERS)}, also with -{', -'.join(NOISE_LEVELS)}; diffusers' class names do "
        "too."
    )
