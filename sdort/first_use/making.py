"""The making of a checkpoint that the cache has not: exported and fused in one go, by one process at a time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sdort.console import following, progress, say
from sdort.errors import BadModelError, SdortError
from sdort.exporter.checkpoint import ANY_VARIANT
from sdort.exporter.command import TRACE_STEP, OpenExport, open_export
from sdort.families.unet import UNET
from sdort.files.staging import scratch_folder, staged_directory
from sdort.first_use.cache_limit import check_room, make_room
from sdort.first_use.given_checkpoint import Checkpoint
from sdort.first_use.making_plan import Making, MakingPlan
from sdort.first_use.unmade import Check, Unmade, through_export
from sdort.optimizer.command import FUSING, WRITING, optimize_request
from sdort.optimizer.optimize_request import OptimizeRequest
from sdort.pipelines.model_cache import MODEL, make_once, write_kept
from sdort.tables import size_text

TRACE, FUSE = 0.07, 0.012
"""Seconds a tensor, on two cores of a server of 2023: SD 1.5's UNet has 686, SDXL's 1,680."""
WRITE = 4e-9
"""Seconds a byte."""
_START = 15.0
"""Seconds of importing torch and diffusers, where something is traced."""
_SURE = 5.0
"""Estimated seconds of finished steps from which on they tell how fast this machine is."""


def estimate(tensors: Mapping[str, int], new: list[str], nbytes: int) -> dict[str, float]:
    """Step, as :func:`sdort.console.progress` describes it -> its seconds.

    Args:
        tensors: component -> the number of its weights.
        new: components whose architecture is traced first.
        nbytes: what is written.
    """
    steps = {TRACE_STEP.format(name): _START * (name == new[0]) + TRACE * tensors[name] for name in new}
    for name, number in tensors.items():
        steps[FUSING.format(name)] = FUSE * number
        steps[WRITING.format(name)] = WRITE * nbytes * number / sum(tensors.values())
    return steps


class Steps:
    """Progress of steps whose seconds are estimated."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = dict(seconds)
        self._start = time.monotonic()
        self._finished = 0.0
        """Estimated seconds of the steps before this one."""
        self.step = ""
        self._share = 0.0
        self._began = self._start
        self.done = 0.0
        """Estimated seconds of all that is done."""

    @property
    def total(self) -> float:
        """Estimated seconds of all steps."""
        return sum(self._seconds.values())

    def follow(self, description: str, done: float, total: float | None) -> None:
        """Take what :func:`sdort.console.progress` tells; what is none of the steps is left to its own."""
        if description not in self._seconds:
            return
        if description != self.step:
            self._finished += self._seconds.get(self.step, 0.0)
            self.step, self._began = description, time.monotonic()
        self._share = min(done / total, 1.0) if total else 0.0
        self.done = self._finished + self._share * self._seconds[description]

    def remaining(self) -> float | None:
        """Seconds to go, at the speed until now; None for those that cannot be known."""
        slowness = 1.0
        if self._finished >= _SURE:
            slowness = (self._began - self._start) / self._finished
        here = self._seconds.get(self.step, 0.0)
        spent = (time.monotonic() - self._began) / slowness if self.step else 0.0
        ahead = self.total - self._finished - here
        return slowness * (ahead + max(here * (1 - self._share) if self._share else here - spent, 0.0))


@contextmanager
def shown(name: str, steps: Steps) -> Iterator[None]:
    """A block whose steps are shown as one bar, with the seconds that are left."""
    told = 0.0

    def description() -> str:
        return f"making {name} ready: {steps.step}" if steps.step else f"making {name} ready"

    with progress(description, steps.total, remaining=steps.remaining) as advance:

        def follow(text: str, done: float, total: float | None) -> None:
            nonlocal told
            steps.follow(text, done, total)
            advance(steps.done - told)
            told = steps.done

        with following(follow, instead=True):
            yield


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
                unwritten=weights,
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
