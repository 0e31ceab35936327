"""Diffusers' schedulers by class name and by the short names that people know."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdort.errors import BadModelError, UsageError, nearest_name
from sdort.errors.plain_text import library_reason
from sdort.machine.distributions import install_commands
from sdort.pipelines.folder import read_scheduler_config

# short name: (diffusers class, what its config gets in addition)
SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddim": ("DDIMScheduler", {}),
    "ddpm": ("DDPMScheduler", {}),
    "deis": ("DEISMultistepScheduler", {}),
    "dpm2": ("KDPM2DiscreteScheduler", {}),
    "dpm2-a": ("KDPM2AncestralDiscreteScheduler", {}),
    "dpm++-2m": ("DPMSolverMultistepScheduler", {}),
    "dpm++-2m-karras": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "dpm++-2m-sde": ("DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
    "dpm++-s": ("DPMSolverSinglestepScheduler", {}),
    "euler": ("EulerDiscreteScheduler", {}),
    "euler-a": ("EulerAncestralDiscreteScheduler", {}),
    "heun": ("HeunDiscreteScheduler", {}),
    "lcm": ("LCMScheduler", {}),
    "lms": ("LMSDiscreteScheduler", {}),
    "pndm": ("PNDMScheduler", {}),
    "tcd": ("TCDScheduler", {}),
    "unipc": ("UniPCMultistepScheduler", {}),
}


STUMBLES = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError, AssertionError)
"""Exceptions of a scheduler of diffusers whose config has values that do not go together."""


def find_scheduler(name: str) -> tuple[str, dict[str, Any]]:
    """Diffusers' class, and additions to its config, for a short name or a class name.

    Case and punctuation do not matter: ``DPM++ 2M``, ``dpm++_2m`` and ``DPMSolverMultistepScheduler`` are one.

    Raises:
        UsageError: no such scheduler; the hint says which is meant, or lists them.
    """
    for short, (class_name, config) in SCHEDULERS.items():
        if _key(name) == _key(short):
            return class_name, config
        if _key(name) in (_key(class_name), _key(class_name.removesuffix("Scheduler"))):
            return class_name, {}
    raise UsageError(f"there is no scheduler {name!r}", hint=_meant(name))


def _meant(name: str) -> str:
    classes = [class_name for class_name, _ in SCHEDULERS.values()]
    known = {
        _key(text): text for text in (*classes, *(text.removesuffix("Scheduler") for text in classes), *SCHEDULERS)
    }
    nearest = nearest_name(_key(name), known)
    question = f"Did you mean {known[nearest]}? " if nearest else ""
    return f"{question}There are: {', '.join(SCHEDULERS)}; diffusers' class names do too."


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9+]", "", name.lower())


def load_scheduler(folder: Path, name: str | None) -> Any:
    """The scheduler of a pipeline, or another one with the same noise schedule.

    Args:
        folder: the pipeline's ``scheduler`` folder.
        name: as :func:`find_scheduler` takes it; None for the pipeline's own.

    Raises:
        BadModelError: the folder has no usable scheduler config.
        UsageError: no such scheduler, or it does not work with this config.
    """
    config = read_scheduler_config(folder)
    class_name, additions = find_scheduler(name) if name else (config.get("_class_name"), {})
    if class_name not in {known for known, _ in SCHEDULERS.values()}:
        # The name comes from a file: only classes that are known to be schedulers are looked up.
        raise BadModelError(
            f"{folder} names the scheduler {class_name!r}, which sdort does not know",
            hint=f"Choose another with --scheduler: {', '.join(SCHEDULERS)}.",
        )
    import diffusers

    scheduler_class = getattr(diffusers, str(class_name))
    try:
        return scheduler_class.from_config({**config, **additions})
    except ImportError as error:
        # diffusers' stand-in for a class whose packages are missing says: "... requires the scipy library but ..."
        needed = re.search(r"requires the (\w+) library", str(error))
        package = needed[1] if needed else "a package that is not installed"
        raise UsageError(
            f"{class_name} needs {package}", hint=f"Install it:\n{install_commands(package)}" if needed else None
        ) from error
    except STUMBLES as error:
        reason = library_reason(error)
        raise UsageError(f"{class_name} does not take this pipeline's noise schedule: {reason}") from error


@contextmanager
def steps_of(scheduler: Any) -> Iterator[None]:
    """Code in which a scheduler takes a step.

    Raises:
        UsageError: it cannot with its pipeline's settings.
    """
    try:
        yield
    except STUMBLES as error:
        raise UsageError(
            f"{type(scheduler).__name__} cannot take a step with this pipeline's settings: {library_reason(error)}",
            hint="Ask for another number of --steps, or for another --scheduler.",
        ) from error


def set_steps(scheduler: Any, steps: int) -> None:
    """Set the timesteps of a scheduler.

    Raises:
        UsageError: it cannot take so many; PNDM's Runge-Kutta steps, for one, need four.
    """
    trained = int(scheduler.config.get("num_train_timesteps", steps))
    name, usual = type(scheduler).__name__, "20 to 50 steps are usual."
    if steps > trained:  # before it is asked, which would be an array of as many
        raise UsageError(f"--steps {steps} is more than the {trained} timesteps of {name}", hint=usual)
    try:
        scheduler.set_timesteps(steps)
        _try_steps(scheduler, steps, trained)
    except STUMBLES as error:
        reason = library_reason(error)
        raise UsageError(
            f"{name} cannot take {steps} steps with this pipeline's settings: {reason}",
            hint=usual if steps > trained // 2 else "Ask for another number of --steps, or for another --scheduler.",
        ) from error


def _try_steps(scheduler: Any, steps: int, trained: int) -> None:
    """Take all of many steps on a single number first, which takes a moment.

    With nearly as many steps as trained timesteps some schedulers ask for timestep 1000 of 0 to 999, others take one
    timestep twice and divide by zero: DPM++ at 999 steps with the settings of Stable Diffusion 1.5, DDIM at 1000.

    Raises:
        ValueError: a timestep that was not trained, or a result that is not finite.
        IndexError, AssertionError: diffusers' own, where it counts too far.
    """
    times = [float(time) for time in scheduler.timesteps]
    outside = next((time for time in times if not 0 <= time <= trained - 1), None)
    if outside is not None:
        raise ValueError(f"it would ask for timestep {outside:g}, and the model was trained on 0 to {trained - 1}")
    if steps <= trained // 2:
        return
    import torch

    tried = copy.deepcopy(scheduler)
    sample, noise = torch.ones(1, 1, 1, 1), torch.Generator().manual_seed(0)
    seeded = {"generator": noise} if "generator" in inspect.signature(tried.step).parameters else {}
    for time in tried.timesteps:
        sample = tried.step(0.01 * tried.scale_model_input(sample, time), time, sample, **seeded).prev_sample
    if not torch.isfinite(sample).all():
        raise ValueError("its steps are so short that it divides by zero")
