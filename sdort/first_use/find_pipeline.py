"""A pipeline's folder by whatever names it: a path, a name, a checkpoint that is made ready first."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from sdort.checkpoints.configs import INDEX
from sdort.checkpoints.file_kind import recognise_file
from sdort.checkpoints.weight_names import Kind
from sdort.console import say
from sdort.demo import DEMO_NAMES
from sdort.errors import UsageError, nearest_name
from sdort.exporter.source import holds_lone_control
from sdort.first_use.given_checkpoint import Checkpoint, find_checkpoint, is_file_name, is_hub_id
from sdort.first_use.making_plan import Making, MakingPlan
from sdort.first_use.model_names import names, path_of_name
from sdort.first_use.models import kept_model, optimized_model, plan_model
from sdort.first_use.unmade import Check, Unmade, check_whole
from sdort.pipelines.explain_path import holds_models, in_home, not_there, refuse_other
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.probe import choose_provider

_ALIKE = 0.75
"""Likeness above which a text is taken for a name misspelt."""


def pipeline_folder(model: str | Path, options: RuntimeOptions, check: Check | None = None) -> Path:
    """The folder of ONNX models that a path, a name, a hub id or ``demo`` means; a checkpoint is made ready first.

    A path that exists comes before a name and before a hub id. What is no checkpoint is left to who reads it.

    Args:
        options: of the run: which provider it is for.
        check: refuses a checkpoint that cannot do what it is for, before it is made ready.

    Raises:
        SdortError: the checkpoint cannot be made ready, as :func:`optimized_model` says; a name's path is gone; or it
            is a file or folder of something else.
    """
    place = named_path(model)
    if not is_checkpoint(place):
        return _as_it_is(place)
    return optimized_model(*_wanted(place, options), _whole(check))


def _as_it_is(place: str | Path) -> Path:
    """The path of what is no checkpoint and may hold ONNX models."""
    _refuse_misspelt(str(place))
    refuse_other(in_home(str(place)))
    return Path(place)


def _whole(check: Check | None) -> Check:
    """The check of a pipeline that draws, and then another."""

    def both(unmade: Unmade) -> None:
        check_whole(unmade)
        if check:
            check(unmade)

    return both


def _wanted(place: str | Path, options: RuntimeOptions) -> tuple[Checkpoint, Making]:
    """A checkpoint, and what is made of it for the provider of a run: all its components, in the usual precision."""
    provider = choose_provider(options)[0]
    return find_checkpoint(place), Making((), provider.name, provider.usual_precision)


def _refuse_misspelt(text: str) -> None:
    """Refuse what is no path of anything, and nearly a name or meant as a file."""
    if is_file_name(text) and not text.endswith(".onnx") and not in_home(text).exists():
        raise not_there(text, DEMO_NAMES)
    if not os.path.lexists(in_home(text)) and (close := nearest_name(text, [*DEMO_NAMES, *names()], _ALIKE)):
        raise UsageError(f"{text} does not exist", hint=f"Is it {close}?")


def ready_folder(model: str | Path, options: RuntimeOptions) -> Path:
    """:func:`pipeline_folder` of what is ready.

    Raises:
        UsageError: it is a checkpoint that is not made ready yet.
    """
    folder = plan_folder(model, options)
    if isinstance(folder, MakingPlan):
        raise UsageError(
            f"{folder.name} is not made ready for this machine yet",
            hint=f"Draw with it first:\n    sdort run {shlex.quote(str(model))} --prompt ...",
        )
    return folder


def made_folder(model: str | Path) -> Path:
    """The folder of ONNX models that was made of a checkpoint for the best provider here; what else there is as it is.

    Raises:
        SdortError: a name's path is gone, or the checkpoint cannot be read.
    """
    place = named_path(model)
    if not is_checkpoint(place):
        return Path(place)
    return kept_model(*_wanted(place, RuntimeOptions())) or Path(place)


def plan_folder(model: str | Path, options: RuntimeOptions, check: Check | None = None) -> Path | MakingPlan:
    """:func:`pipeline_folder`, or what is to be done before there is one; nothing is made or downloaded.

    Raises:
        SdortError: as :func:`pipeline_folder`.
    """
    place = named_path(model)
    if not is_checkpoint(place):
        return _as_it_is(place)
    return plan_model(*_wanted(place, options), _whole(check))


def part_folder(model: str | Path, options: RuntimeOptions, check: Check | None = None) -> Path:
    """:func:`pipeline_folder` of a refiner, a ControlNet or a T2I-Adapter, which do not draw by themselves.

    Args:
        check: as there.

    Raises:
        SdortError: as :func:`pipeline_folder`.
    """
    place = named_path(model)
    if not is_checkpoint(place) and not _is_control(place):
        return Path(place)
    return optimized_model(*_wanted(place, options), check)


def _is_control(model: str | Path) -> bool:
    """Whether a path is that of a ControlNet or T2I-Adapter that is not exported yet."""
    path = in_home(str(model))
    if path.is_file():
        return path.suffix.lower() == ".safetensors" and recognise_file(path).kind is Kind.CONTROLNET
    return path.is_dir() and holds_lone_control(path)


def named_path(model: str | Path) -> str | Path:
    """The path of a model that is given by its name; what is no name as it is."""
    text = str(model)
    named = path_of_name(text)
    if named is None:
        return model
    if os.path.lexists(in_home(text)):
        say(f"{text} is the path of something here, which is taken, and not the model of that name ({named})")
        return model
    return named


def is_checkpoint(model: str | Path) -> bool:
    """Whether a model is one that is exported first: no folder or file of ONNX models, and nothing unknown."""
    text = str(model)
    path = in_home(text)
    if path.is_dir():
        return (path / INDEX).is_file() and not holds_models(path)
    if path.is_file():
        return path.suffix != ".onnx" and recognise_file(path).kind in (Kind.CHECKPOINT, Kind.UNET, Kind.DENOISER)
    return not os.path.lexists(path) and (text in DEMO_NAMES or is_hub_id(text))
