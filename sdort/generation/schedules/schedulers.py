"""Schedulers by the names of :mod:`sdort.samplers.scheduler_names`: sdort's own samplers, or diffusers' classes."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sdort.errors import BadModelError, MissingPackageError, UsageError
from sdort.errors.plain_text import library_reason
from sdort.generation.schedules.diffusers_sampler import DiffusersSampler
from sdort.machine.distributions import install_commands
from sdort.machine.optional_packages import need_packages
from sdort.pipelines.folder import PipelineFolder, read_scheduler_config
from sdort.samplers.find_sampler import SAMPLER_CLASSES, foreign_settings, sampler_values
from sdort.samplers.noise_level import LEAST_SHARE, at_zero_snr
from sdort.samplers.sampler import Sampler
from sdort.samplers.scheduler_names import (
    CLASSES,
    FLOW_CLASSES,
    OF_FLOW,
    SAMPLERS,
    check_eta,
    check_flow_spacing,
    check_noise_process,
    check_not_of_flow,
    check_spacing,
    find_scheduler,
    flow_scheduler,
    has_betas,
    is_flow,
    shift_setting,
)
from sdort.samplers.settings import IMAGE_TOKENS, ZERO_SNR

STUMBLES = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError, AssertionError)
"""Exceptions of a scheduler of diffusers whose config has values that do not go together."""


@dataclass(frozen=True)
class SchedulerChoice:
    """A scheduler that works with a pipeline's config: diffusers' class, its config, and the share of new noise."""

    class_name: str
    config: dict[str, Any]
    eta: float | None


def choose_scheduler(
    folder: Path | PipelineFolder,
    scheduler: str | None,
    *,
    timestep_spacing: str | None = None,
    eta: float | None = None,
    shift: float | None = None,
    tokens: int | None = None,
) -> SchedulerChoice:
    """The scheduler of a pipeline, or another one with the same noise schedule.

    Args:
        folder: the pipeline, which reads its config once; or its ``scheduler`` folder.
        scheduler: as :func:`find_scheduler` takes it; None for the pipeline's own.
        timestep_spacing: one of :data:`SPACINGS`; None for the config's.
        eta: the share of new noise in a step of DDIM or TCD; None for the class's default.
        shift: of flow matching's noise levels; None for the config's.
        tokens: of an image, by which some configs shift them; None for the config's largest image.

    Raises:
        BadModelError: the folder has no usable scheduler config.
        UsageError: no such scheduler, or the class has no such spacing or eta.
    """
    if isinstance(folder, PipelineFolder):
        config, folder = folder.scheduler, folder.path / "scheduler"
    else:
        config = read_scheduler_config(folder)
    class_name, additions = find_scheduler(scheduler) if scheduler else (str(config.get("_class_name")), {})
    check_noise_process(config, folder.parent, scheduler)
    own = str(config.get("_class_name"))
    if is_flow(config):
        return _flow_choice(folder, config, scheduler, timestep_spacing, eta, shift, tokens)
    if shift is not None:
        raise UsageError("--shift is for models of flow matching", hint=f"The scheduler of {folder.parent} is a {own}.")
    check_not_of_flow(class_name, folder.parent, config)
    if class_name not in CLASSES or (own not in CLASSES and not has_betas(config)):
        # The name comes from a file: only classes that are known to be schedulers are looked up.
        others = f"Choose another with --scheduler: {', '.join(SAMPLERS)}."
        raise BadModelError(
            f"{folder} names the scheduler {own!r}, which sdort does not know",
            hint=others if has_betas(config) else "Its config has no betas, by which another could stand in for it.",
        )
    if timestep_spacing:
        additions = {**additions, "timestep_spacing": timestep_spacing}
        check_spacing(class_name)
    if eta is not None:
        check_eta(class_name)
    return SchedulerChoice(class_name, {**config, **additions}, eta)


def _flow_choice(
    folder: Path,
    config: dict[str, Any],
    scheduler: str | None,
    spacing: str | None,
    eta: float | None,
    shift: float | None,
    tokens: int | None,
) -> SchedulerChoice:
    """As :func:`choose_scheduler`, of a model of flow matching."""
    class_name, additions = str(config["_class_name"]), dict[str, Any]()
    if scheduler:
        class_name, additions = flow_scheduler(*find_scheduler(scheduler), config)
    elif class_name not in FLOW_CLASSES.values():
        raise BadModelError(
            f"{folder} names the scheduler {class_name!r}, which sdort does not know for models of flow matching",
            hint="Choose another with --scheduler: euler, heun, dpm++-2m, unipc.",
        )
    if eta is not None:
        check_eta(class_name)
    if spacing:
        check_flow_spacing(class_name, spacing)
        additions["timestep_spacing"] = spacing
    if shift is not None:
        additions |= {shift_setting(class_name): shift, "use_dynamic_shifting": False}
    whole = {**config, **additions, IMAGE_TOKENS: tokens}
    if foreign := foreign_settings(class_name, whole):
        raise BadModelError(
            f"{folder} asks of {class_name} for {', '.join(foreign)}, which sdort does not do",
            hint="Choose another with --scheduler: euler, heun, dpm++-2m, unipc.",
        )
    return SchedulerChoice(class_name, whole, None)


def load_scheduler(folder: Path, name: str | None, *, flow: bool = False, **options: Any) -> Any:
    """Diffusers' scheduler, as :func:`choose_scheduler`.

    Args:
        flow: whether diffusers' pipeline of the model draws by flow matching, as those of a UNet do not.

    Raises:
        BadModelError: the folder has no usable scheduler config, or one of flow matching without ``flow``.
        UsageError: no such scheduler, or it does not work with this config, spacing or eta.
    """
    choice = choose_scheduler(folder, name, **options)
    if flow:
        config = {name: value for name, value in choice.config.items() if name != IMAGE_TOKENS}
        return _made(choice.class_name, config)
    if is_flow(choice.config) or choice.class_name in OF_FLOW:
        raise BadModelError(
            f"the scheduler of {folder.parent}, {choice.config.get('_class_name')}, is for a model of flow matching, "
            "with which diffusers' pipelines of a UNet do not draw",
            hint="sdort run does: there are no images of diffusers to compare with. Components can be compared.",
        )
    return _scheduler(choice)


def load_sampler(folder: Path | PipelineFolder, steps: int, scheduler: str | None, **options: Any) -> Sampler:
    """The sampler of a schedule: by sdort's formulas, or diffusers' where these do not know a setting.

    Args:
        options: as of :func:`choose_scheduler`.

    Raises:
        BadModelError: the folder has no usable scheduler config.
        UsageError: no such scheduler, it does not work with this config, spacing, eta or number of steps, or it needs
            diffusers, which is not installed.
    """
    choice = choose_scheduler(folder, scheduler, **options)
    if has_formulas(choice):
        return _formula_sampler(choice, steps)
    check_installed(choice)
    theirs = _scheduler(choice)
    set_steps(theirs, steps)
    return DiffusersSampler(theirs)


def has_formulas(choice: SchedulerChoice) -> bool:
    """Whether sdort's own sampler knows all that a choice asks for."""
    return foreign_settings(choice.class_name, choice.config) == []


def _formula_sampler(choice: SchedulerChoice, steps: int) -> Sampler:
    name = choice.class_name
    try:
        values = sampler_values(name, choice.config)
    except ValueError as error:
        raise UsageError(f"{name} does not take this pipeline's noise schedule: {error}") from error
    trained = int(values["num_train_timesteps"])
    _check_number(name, steps, trained)
    make = partial(SAMPLER_CLASSES[name], values, steps, choice.eta)
    with _taking(name, steps, trained):
        sampler = make()
        _check_times(sampler.timesteps.tolist(), sampler.last_time)
        _try_calls(make())
    return sampler


def _try_calls(sampler: Sampler) -> None:
    """Take all steps on a single number first.

    Raises:
        ValueError: a result that is not finite.
        ArithmeticError: a formula that divides by zero.
    """
    latents = sampler.begin(np.ones((1, 1, 1, 1)))
    for call in range(len(sampler.timesteps)):
        latents = sampler.step(call, 0.01 * sampler.sample(call, latents), latents, lambda: np.ones((1, 1, 1, 1)))
    if not np.isfinite(latents).all():
        raise ValueError("its steps are so short that it divides by zero")


def check_installed(choice: SchedulerChoice) -> None:
    """Refuse a scheduler that only diffusers has where it is not installed.

    Raises:
        MissingPackageError: why it is needed, what to install, and which schedulers do without.
    """
    settings = foreign_settings(choice.class_name, choice.config)
    what = f"{choice.class_name} with {', '.join(settings)}" if settings else choice.class_name
    try:
        need_packages("diffusers", "torch", what=what)
    except MissingPackageError as error:
        others = [
            name
            for name, sampler in SAMPLERS.items()
            if foreign_settings(sampler.class_name, {**choice.config, **sampler.config}) == []
        ]
        if others:
            error.hint = f"{error.hint}\nOr take another --scheduler, which needs neither: {', '.join(others)}."
        raise


def _scheduler(choice: SchedulerChoice) -> Any:
    scheduler = _made(choice.class_name, choice.config)
    if choice.eta is not None:
        scheduler.step = partial(scheduler.step, eta=choice.eta)
    return scheduler


def _made(class_name: str, config: dict[str, Any]) -> Any:
    import diffusers

    try:
        scheduler = getattr(diffusers, class_name).from_config(config)
        return _with_zero_snr(scheduler, config) if config.get(ZERO_SNR) else scheduler
    except ImportError as error:
        # diffusers' stand-in for a class whose packages are missing says: "... requires the scipy library but ...", and
        # a class that one setting of needs a package: "Make sure to install scipy if ...".
        needed = re.search(r"requires the (\w+) library|install (\w+) if", str(error))
        package = needed[1] or needed[2] if needed else "a package that is not installed"
        what = "with these noise levels " if needed and needed[2] else ""
        raise UsageError(
            f"{class_name} {what}needs {package}", hint=f"Install it:\n{install_commands(package)}" if needed else None
        ) from error
    except STUMBLES as error:
        reason = library_reason(error)
        raise UsageError(f"{class_name} does not take this pipeline's noise schedule: {reason}") from error


def _with_zero_snr(scheduler: Any, config: dict[str, Any]) -> Any:
    """The scheduler with noise that begins without a signal.

    Classes without this setting of diffusers drop it, and draw images of a medium brightness: they get its betas.
    """
    if ZERO_SNR in inspect.signature(type(scheduler).__init__).parameters:
        return scheduler
    products = at_zero_snr(np.cumprod(1 - scheduler.betas.double().numpy()), LEAST_SHARE)
    betas = 1 - products / np.append(1.0, products[:-1])
    return type(scheduler).from_config({**config, "trained_betas": betas.tolist()})


@contextmanager
def steps_of(name: str) -> Iterator[None]:
    """Code in which a sampler takes a step.

    Args:
        name: of diffusers' class.

    Raises:
        UsageError: it cannot with its pipeline's settings.
    """
    try:
        yield
    except STUMBLES as error:
        raise UsageError(
            f"{name} cannot take a step with this pipeline's settings: {library_reason(error)}",
            hint="Ask for another number of --steps, or for another --scheduler.",
        ) from error


def set_steps(scheduler: Any, steps: int) -> None:
    """Set the timesteps of a scheduler of diffusers.

    Raises:
        UsageError: it cannot take so many; PNDM's Runge-Kutta steps, for one, need four.
    """
    trained = int(scheduler.config.get("num_train_timesteps", steps))
    name = type(scheduler).__name__
    _check_number(name, steps, trained)
    with _taking(name, steps, trained):
        scheduler.set_timesteps(steps)
        _try_steps(scheduler, steps, trained)


_USUAL = "20 to 50 steps are usual."


def _check_number(name: str, steps: int, trained: int) -> None:
    """Refuse more steps than were trained, before anybody makes an array of as many."""
    if steps > trained:
        raise UsageError(f"--steps {steps} is more than the {trained} timesteps of {name}", hint=_USUAL)


@contextmanager
def _taking(name: str, steps: int, trained: int) -> Iterator[None]:
    """Code that makes a schedule of ``steps``.

    Raises:
        UsageError: there is none.
    """
    try:
        yield
    except STUMBLES as error:
        raise UsageError(
            f"{name} cannot take {steps} steps with this pipeline's settings: {library_reason(error)}",
            hint=_USUAL if steps > trained // 2 else "Ask for another number of --steps, or for another --scheduler.",
        ) from error


def _check_times(times: Sequence[float], last: int) -> None:
    """Refuse a timestep that was not trained, beyond ``last``.

    Raises:
        ValueError: which one it is.
    """
    outside = next((time for time in times if not 0 <= time <= last), None)
    if outside is not None:
        raise ValueError(f"it would ask for timestep {outside:g}, and the model was trained on 0 to {last}")


def _try_steps(scheduler: Any, steps: int, trained: int) -> None:
    """Take all of many steps on a single number first, which takes a moment.

    With nearly as many steps as trained timesteps some schedulers ask for timestep 1000 of 0 to 999, others take one
    timestep twice and divide by zero: DPM++ at 999 steps with the settings of Stable Diffusion 1.5, DDIM at 1000.

    Raises:
        ValueError: a timestep that was not trained, or a result that is not finite.
        IndexError, AssertionError: diffusers' own, where it counts too far.
    """
    _check_times([float(time) for time in scheduler.timesteps], trained - 1)
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
