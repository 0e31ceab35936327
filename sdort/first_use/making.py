"""The making of a checkpoint that the cache has not: exported and fused in one go, by one process at a time."""

from __future__ import annotations

import shlex
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sdort.console import say
from sdort.errors import BadModelError, UsageError
from sdort.exporter.command import OpenExport, open_export
from sdort.first_use.given_checkpoint import Checkpoint
from sdort.first_use.making_plan import Making, MakingPlan
from sdort.first_use.making_steps import Steps, estimate, shown
from sdort.first_use.room import make_room
from sdort.optimizer.command import optimize_request
from sdort.optimizer.optimize_request import OptimizeRequest
from sdort.pipelines.kept_models import MODEL, make_once, write_kept
from sdort.staging import scratch_folder, staged_directory
from sdort.tables import size_text

_PIPELINE = ("text_encoder", "unet", "vae_decoder")
"""What a pipeline cannot draw without, whatever its family."""


def make(checkpoint: Checkpoint, making: Making, folder: Path, made_of: dict[str, Any], *, draws: bool) -> None:
    """Make a model, if no other process does it meanwhile: ``folder`` is there in the end.

    Args:
        folder: the cache's, to hold it.
        made_of: everything that it depends on.
        draws: refuse a checkpoint that lacks what text to image needs.

    Raises:
        SdortError: as :func:`sdort.first_use.models.optimized_model`.
    """
    make_once(folder, lambda: _make(checkpoint, making, folder, made_of, draws))


def plan_making(checkpoint: Checkpoint, making: Making) -> MakingPlan:
    """What is to be made of a checkpoint, by the headers of its files.

    Raises:
        SdortError: as :func:`make`, as far as that is seen in them.
    """
    with _opened(checkpoint, making) as opened:
        _refuse_parts(checkpoint, opened)
        nbytes = _result_bytes(opened, making)
        return MakingPlan(checkpoint.name, nbytes, sum(estimate(opened.tensors, opened.new, nbytes).values()))


def _opened(checkpoint: Checkpoint, making: Making) -> AbstractContextManager[OpenExport]:
    return open_export(
        checkpoint.path or checkpoint.model,
        components=making.components,
        static=making.size or None,
        control=not making.components or "unet" in making.components,
        variant=checkpoint.variant,
    )


def _result_bytes(opened: OpenExport, making: Making) -> int:
    return opened.elements * (2 if making.precision == "fp16" else 4)


def _make(checkpoint: Checkpoint, making: Making, folder: Path, made_of: dict[str, Any], draws: bool) -> None:
    start = time.monotonic()
    with (
        scratch_folder(folder.parent, ".making-") as scratch,
        staged_directory(folder, overwrite=False) as stage,
        _opened(checkpoint, making) as opened,
    ):
        if draws:
            _refuse_parts(checkpoint, opened)
        nbytes = _result_bytes(opened, making)
        make_room(nbytes)
        steps = Steps(estimate(opened.tensors, opened.new, nbytes))
        say(
            f"{checkpoint.name}: first use here, so it is made ready for {making.provider} in {making.precision}: "
            f"about {size_text(nbytes)} and {_about(steps.total)}; from then on it starts at once"
        )
        with shown(checkpoint.name, steps):
            (scratch / "graphs").mkdir()
            weights = opened.write(scratch / "graphs")
            request = OptimizeRequest(
                scratch / "graphs",
                stage / MODEL,
                making.provider,
                making.precision == "fp16",
                check=False,
                weights=weights,
                original={**checkpoint.origin, "checkpoint": checkpoint.name, "sha256": checkpoint.sha256},
            )
            optimize_request(request)
        if checkpoint.digest() != made_of["checkpoint"]:
            raise BadModelError(
                f"{checkpoint.path} changed while it was exported, so what came of it is not kept",
                hint="Load it again when nothing writes it any more.",
            )
        write_kept(stage, checkpoint.name, checkpoint.model, made_of)
    say(f"{checkpoint.name}: ready after {time.monotonic() - start:.0f} s")


def _about(seconds: float) -> str:
    return f"{max(10 * round(seconds / 10), 10)} seconds" if seconds < 100 else f"{round(seconds / 60)} minutes"


def _refuse_parts(checkpoint: Checkpoint, opened: OpenExport) -> None:
    names = [component.name for component in opened.components]
    missing = [name.partition("_decoder")[0] for name in _PIPELINE if name not in names]
    if not missing:
        return
    quoted = shlex.quote(checkpoint.model)
    ways = {"vae": "--vae DIR|FILE", "text_encoder": "--config DIR"}
    options = " ".join(ways[name] for name in missing if name in ways)
    raise UsageError(
        f"{checkpoint.name} has no {' and no '.join(missing)}, so that it cannot draw by itself",
        hint=f"Export it with what it lacks, and run that:\n    sdort export {quoted} model {options}\n"
        "    sdort optimize model fast\n    sdort run fast"
        if options
        else "Give a checkpoint with a UNet.",
    )
