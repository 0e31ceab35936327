"""A replica: the pipelines of a server in a process of their own, which Ray starts beside a GPU.

It has no queue and answers no client: :class:`sdort.serving.ray_engine.RayEngine` sends it jobs, and gets what comes of
them as it comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from sdort.batches.worker import Ready, heard, same_folder, show_own_gpus
from sdort.errors import SdortError
from sdort.generation.job import Job
from sdort.generation.latents.preview import Preview
from sdort.generation.requests.record import StageSeconds
from sdort.generation.requests.typed_options import PreviewOptions
from sdort.generation.result import Image
from sdort.providers.runtime_options import RuntimeOptions
from sdort.serving.engine import OwnEngine
from sdort.serving.served_model import ServedModel

_EVERY = 0.1
"""Seconds from one word of a job's progress to the next at least."""


@dataclass(frozen=True)
class Carried:
    """A model as it travels to a replica.

    Attributes:
        folder: of the pipeline, at the same path on every machine.
        model_hash: of the server's pipeline, which the replica's machine has to have.
        tuning: an archive of the server's tuning bundles, with compiled programs; None where there are none.
    """

    name: str
    folder: Path
    model_hash: str
    sizes: Sequence[tuple[int, int]]
    tuning: bytes | None


class Step(NamedTuple):
    """A job went on: steps that are done, and all, times images."""

    amount: float
    total: float


class Done(NamedTuple):
    """An image is done; None if it shows nothing."""

    number: int
    image: Image | None


Told = Step | Preview | Done | StageSeconds | SdortError
"""Words of a job while it is drawn. The last one is its seconds, or why it ended."""


class Replica:
    """The pipelines of a server, in a process of their own.

    Args:
        batches: numbers of images that are drawn together.
    """

    def __init__(self, models: Sequence[Carried], runtime: RuntimeOptions, batches: Sequence[int]) -> None:
        self._carried, self._runtime, self._batches = models, runtime, batches
        self._models: dict[str, ServedModel] = {}
        self._engine: OwnEngine
        self._cancels: dict[int, threading.Event] = {}

    def open(self) -> Ready | SdortError:
        """Open and warm up all pipelines; returns the provider, or why one does not open."""
        try:
            show_own_gpus()
            for each in self._carried:
                folder = same_folder(each.folder, each.model_hash, each.tuning)
                self._models[each.name] = ServedModel(each.name, folder, each.sizes, any_size=True)
            self._engine = OwnEngine([*self._models.values()], self._runtime, self._batches)
            with heard() as warnings:
                self._engine.start()
        except SdortError as error:
            return error
        return Ready(self._engine.provider, warnings)

    def live(self) -> None:
        """Return never: the call ends with the process."""
        threading.Event().wait()

    def draw(self, number: int, model: str, job: Job, previews: int | None, new_size: bool) -> Iterator[Told]:
        """Draw a job.

        Args:
            number: by which :meth:`cancel` knows it.
            previews: steps from one preview to the next; None for no previews.
            new_size: as of :meth:`sdort.serving.engine.Engine.draw`.
        """
        told, last, cancel = SimpleQueue[Told | Exception](), 0.0, threading.Event()

        def moved(amount: float, total: float) -> None:
            nonlocal last
            if time.monotonic() - last >= _EVERY:
                last = time.monotonic()
                told.put(Step(amount, total))

        def run() -> None:
            try:
                seconds = self._engine.draw(
                    self._models[model], watched, lambda *done: told.put(Done(*done)), new_size=new_size
                )
                told.put(seconds)
            except Exception as error:  # raised again by the call
                told.put(error)

        shown = PreviewOptions(on_preview=told.put, preview_every=previews) if previews else PreviewOptions()
        watched = replace(job, on_progress=moved, cancel=cancel, previews=shown)
        self._cancels[number] = cancel
        thread = threading.Thread(target=run, name="sdort-worker")
        thread.start()
        try:
            while not isinstance(found := told.get(), StageSeconds | Exception):
                yield found
        finally:
            cancel.set()
            thread.join()
            del self._cancels[number]
        if isinstance(found, Exception) and not isinstance(found, SdortError):
            raise found
        yield found

    def cancel(self, number: int) -> None:
        """End a job soon, which may have ended already."""
        if cancel := self._cancels.get(number):
            cancel.set()

    def mend(self, model: str) -> None:
        """As :meth:`sdort.serving.engine.Engine.mend`."""
        self._engine.mend(self._models[model])
