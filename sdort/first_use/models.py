"""Checkpoints that are exported and optimized on first use, and kept in sdort's cache.

A folder of the cache belongs to a checkpoint's content and to everything that its graphs depend on. Both stand in its
record (:mod:`sdort.pipelines.model_cache`), which is compared whenever it is opened: no checkpoint gets another one's
graphs. The weights are written once, as the result has them: graph and weights go from the checkpoint through fusing
into the cache, with no exported copy between.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sdort.checkpoints.configs import MANIFEST
from sdort.errors import BadModelError
from sdort.first_use.given_checkpoint import Checkpoint, downloaded, find_checkpoint
from sdort.first_use.making_plan import Making, MakingPlan
from sdort.first_use.unmade import Check
from sdort.lowering.own_operators import own_operators
from sdort.machine.optional_packages import TRACING, need_packages
from sdort.machine.version import __version__
from sdort.pipelines.manifest import listed_files
from sdort.pipelines.model_cache import MODEL, hold, kept_folder, kept_models, mark_used, read_kept, remake_hint


def optimized_model(checkpoint: str | Path | Checkpoint, making: Making, check: Check | None = None) -> Path:
    """The optimized model of a checkpoint; it is made if the cache has none.

    This process holds it from now on, so that no cleaning removes it before the process ends.

    Args:
        checkpoint: a file with a UNet, with a VAE, or with both; a folder as diffusers saves it; a hub id; or ``demo``.
        check: refuses, before anything is made, a checkpoint that cannot do what it is for.

    Returns:
        A folder as :func:`sdort.optimize` makes it, with the components of ``making``.

    Raises:
        BadModelError: the file is none that sdort exports, or changed meanwhile; or the cache's folder is of another
            checkpoint.
        UsageError: a component or size that it cannot have.
        OutputError: the cache cannot be written.
        MissingPackageError: it is to be made, and what traces it is not installed.
        SdortError: a hub id cannot be downloaded.
    """
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = find_checkpoint(checkpoint)
    if checkpoint.hub and (known := _of_hub(checkpoint, making)):
        return known
    _refuse_lacking(checkpoint, making)
    checkpoint = downloaded(checkpoint)
    made_of = _made_of(checkpoint, making)
    folder = kept_folder(made_of)
    while not hold(folder):
        from sdort.first_use.making import make  # half a second, for what nearly every run has already

        make(checkpoint, making, folder, made_of, check)
    return _checked(folder, checkpoint.name, made_of)


def kept_model(checkpoint: Checkpoint, making: Making) -> Path | None:
    """The model of a checkpoint, if the cache has it; nothing is made or downloaded.

    Raises:
        BadModelError: the checkpoint cannot be read; or the cache's folder is of another one.
    """
    if checkpoint.hub:
        return _of_hub(checkpoint, making)
    made_of = _made_of(checkpoint, making)
    folder = kept_folder(made_of)
    return _checked(folder, checkpoint.name, made_of) if hold(folder) else None


def plan_model(checkpoint: Checkpoint, making: Making, check: Check | None = None) -> Path | MakingPlan:
    """:func:`kept_model`; what is to be made if there is none.

    Args:
        check: as for :func:`optimized_model`.

    Raises:
        SdortError: as :func:`optimized_model`, as far as that is seen in the headers of the checkpoint's files.
    """
    if not checkpoint.hub:
        _refuse_lacking(checkpoint, making)
    if known := kept_model(checkpoint, making):
        return known
    if checkpoint.hub:
        _refuse_lacking(checkpoint, making)
        return MakingPlan(checkpoint.name, None, None)
    from sdort.first_use.making import plan_making

    return plan_making(checkpoint, making, check)


def _refuse_lacking(checkpoint: Checkpoint, making: Making) -> None:
    """Raise where packages are missing that export a checkpoint, before gigabytes are downloaded or read.

    A file may be one that the cache has a model of: only its content tells.
    """
    options = _options(making)
    if checkpoint.hub or not any({**kept.made_of, **options} == kept.made_of for kept in kept_models()):
        need_packages(*TRACING, what="making a checkpoint ready")


def _options(making: Making) -> dict[str, Any]:
    """Everything but the checkpoint that a model depends on, as JSON values."""
    options = {**asdict(making), "sdort": __version__, "sdort_ops": own_operators(making.provider)[0]}
    return dict(json.loads(json.dumps(options)))


def _made_of(checkpoint: Checkpoint, making: Making) -> dict[str, Any]:
    return {"checkpoint": checkpoint.digest(), **_options(making)}


def _of_hub(checkpoint: Checkpoint, making: Making) -> Path | None:
    """The model that was made of a hub id before; nothing is asked of the hub."""
    options = _options(making)
    for kept in kept_models():
        if kept.source == checkpoint.model and {**kept.made_of, **options} == kept.made_of and hold(kept.folder):
            return _checked(kept.folder, checkpoint.name, kept.made_of)
    return None


def _checked(folder: Path, name: str, made_of: dict[str, Any]) -> Path:
    """The model in a folder of the cache.

    Raises:
        BadModelError: it is of something else, or cannot be compared with anything.
    """
    hint = remake_hint(folder)
    try:
        found = read_kept(folder).made_of
        listed = listed_files(folder / MODEL)
    except BadModelError as error:
        raise BadModelError(error.message, hint=hint) from error
    if found != made_of:
        raise BadModelError(
            f"{folder} is not of {name}: its record names another checkpoint or other options", hint=hint
        )
    if not listed:
        raise BadModelError(
            f"{folder / MODEL} has no {MANIFEST} that lists its files, so they cannot be checked", hint=hint
        )
    mark_used(folder)
    return folder / MODEL
