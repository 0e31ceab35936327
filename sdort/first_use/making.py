"""The making of a checkpoint that the cache has not: exported and fused in one go, by one process at a time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sdort.console import say
from sdort.errors import BadModelError, SdortError
from sdort.exporter.checkpoint import ANY_VARIANT
from sdort.exporter.command import OpenExport, open_export
from sdort.families.unet import UNET
from sdort.files.staging import scratch_folder, staged_directory
from sdort.first_use.cache_limit import check_room, make_room
from sdort.first_use.given_checkpoint import Checkpoint
from sdort.first_use.making_plan import Making, MakingPlan
from sdort.first_use.making_steps import Steps, estimate, shown
from sdort.first_use.unmade import Check, Unmade, through_export
from sdort.optimizer.command import optimize_request
from sdort.optimizer.optimize_request import OptimizeRequest
from sdort.pipelines.model_cache import MODEL, make_once, write_kept
from sdort.tables import size_text

_OF_EXPORT = re.compile(r"--(?:variant [\w-]+|config DIR|vae DIR\|FILE|allow-pickle|no-safety-checker|prediction-type)")
"""Options of ``sdort export`` that hints advise, with their values."""


def make(
    checkpoint: Checkpoint, making: Making, folder: Path, made_of: dict[str, Any], check: Check | None = None
) -> None:
    """Make a model, if no other process does it meanwhile: ``folder`` is there in the end.

    Args:
        folder: the cache's, to hold it.
        made_of: everything that it depends on.
        check: as for :func:`sdort.first_use.models.optimized_model`.

    Raises:
        SdortError: as :func:`sdort.first_use.models.optimized_model`.
    """
    make_once(folder, lambda: _make(checkpoint, making, folder, made_of, check))


def plan_making(checkpoint: Checkpoint, making: Making, check: Check | None = None) -> MakingPlan:
    """Plan of what is made of a checkpoint, by the headers of its files.

    Raises:
        SdortError: as :func:`make`, as far as that is seen in them.
    """
    with _opened(checkpoint, making, check) as opened:
        nbytes = _result_bytes(opened, making)
        check_room(checkpoint.name, nbytes)
        return MakingPlan(checkpoint.name, nbytes, sum(estimate(opened.tensors, opened.new, nbytes).values()))


@contextmanager
def _opened(checkpoint: Checkpoint, making: Making, check: Check | None) -> Iterator[OpenExport]:
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(
                open_export(
                    checkpoint.path or checkpoint.model,
                    components=making.components,
                    static=making.size or None,
                    control=not making.components or UNET.component in making.components,
                    variant=ANY_VARIANT,
                )
            )
        except SdortError as error:
            if options := dict.fromkeys(_OF_EXPORT.findall(error.hint or "")):
                exported = through_export(checkpoint.model, " ".join(options))
                error.hint = f"{error.hint} It is an option of sdort export, whose result runs as well:\n{exported}"
            raise
        if check:
            check(Unmade(checkpoint.model, checkpoint.name, opened.components))
        yield opened


def _result_bytes(opened: OpenExport, making: Making) -> int:
    return opened.elements * (2 if making.precision == "fp16" else 4)


def _make(checkpoint: Checkpoint, making: Making, folder: Path, made_of: dict[str, Any], check: Check | None) -> None:
    start = time.monotonic()
    with (
        scratch_folder(folder.parent, ".making-") as scratch,
        staged_directory(folder, overwrite=False) as stage,
        _opened(checkpoint, making, check) as opened,
    ):
        nbytes = _result_bytes(opened, making)
        make_room(checkpoint.name, nbytes)
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
                provider=making.provider,
                fp16=making.precision == "fp16",
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
