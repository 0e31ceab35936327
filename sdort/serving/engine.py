"""Engines, which draw a server's images: the pipelines of this process, or a worker of Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sdort.errors import MemoryShortageError
from sdort.generation.command import Pipeline, load_folder
from sdort.generation.job import Job, plan_job
from sdort.generation.memory_need import refuse_generation
from sdort.generation.requests.record import StageSeconds
from sdort.generation.requests.request import Request
from sdort.generation.result import Image
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.probe import choose_provider
from sdort.serving.logs import log
from sdort.serving.served_model import ServedModel

Take = Callable[[int, Image | None], None]
"""Called with the number of each image, and the image; None where it shows nothing."""


class Engine(Protocol):
    """A drawer of batches, one after the other.

    Attributes:
        has_second: whether it draws an image of a new size beside the others, with a second pipeline.
    """

    has_second: bool

    def start(self) -> bool:
        """Open all pipelines that fit, and draw each size; nothing where that is done.

        Returns:
            Whether it was not done: what was compiled beside these sizes is not there any more.

        Raises:
            SdortError: a pipeline does not open, or its images cannot be drawn.
        """

    def draw(self, model: ServedModel, job: Job, take: Take, *, new_size: bool = False) -> StageSeconds:
        """Draw a job whose requests have one image each.

        Args:
            new_size: whether its size was never drawn. It is then drawn by the second pipeline, and all numbers of
                images of this size with it, so that what a provider compiles for them is there for the first one.

        Raises:
            SdortError: as :meth:`sdort.generation.command.Pipeline.generate_job`.
        """

    def mend(self, model: ServedModel) -> None:
        """Open a pipeline anew with its next job: it may be in any state."""

    def close(self) -> None:
        """Give the memory back."""


class OwnEngine:
    """The pipelines of this process.

    Args:
        models: all that are served; those that do not fit into memory together are opened in turn.
        batches: numbers of images that are drawn together, in their order.
    """

    def __init__(self, models: Sequence[ServedModel], runtime: RuntimeOptions, batches: Sequence[int]) -> None:
        self._models, self._runtime, self._batches = models, runtime, batches
        self._open: dict[str, Pipeline] = {}
        """By the names of their models; the one that was used last is the last."""
        self._turn = threading.Lock()
        self._is_started = False
        # A recording of a graph does not stand another thread's allocations.
        self.has_second = not runtime.graph

    @property
    def open_models(self) -> list[str]:
        """The names of models that are in memory."""
        return list(self._open)

    @property
    def provider(self) -> str:
        """The execution provider that runs the UNet of the model that was used last."""
        return next(reversed(self._open.values())).provider

    def start(self) -> bool:
        """As :meth:`Engine.start`."""
        if self._is_started:
            return False
        for model in self._models:
            self._warm(self._pipeline(model), model, model.sizes)
        self._is_started = True
        return True

    def draw(self, model: ServedModel, job: Job, take: Take, *, new_size: bool = False) -> StageSeconds:
        """As :meth:`Engine.draw`."""
        height, width = job.requests[0].height, job.requests[0].width
        assert height, "a server plans jobs with their sizes"
        assert width
        if new_size and self.has_second and self._has_room(model, (height, width)):
            with load_folder(model.folder.path, self._runtime) as second:
                seconds = second.generate_job(job, (), take).seconds
                self._warm(second, model, [(height, width)])
                return seconds
        with self._turn:
            return self._pipeline(model).generate_job(job, (), take).seconds

    def mend(self, model: ServedModel) -> None:
        """As :meth:`Engine.mend`."""
        with self._turn:
            if broken := self._open.pop(model.name, None):
                broken.close()

    def close(self) -> None:
        """As :meth:`Engine.close`."""
        with self._turn:
            for pipeline in self._open.values():
                pipeline.close()
            self._open.clear()

    def _warm(self, pipeline: Pipeline, model: ServedModel, sizes: Sequence[tuple[int, int]]) -> None:
        """Draw an image of each size and number, so that all is compiled and loaded."""
        for size in sizes:
            for count in sorted({1, self._batches[-1]}):
                started = time.perf_counter()
                pipeline.generate_job(short_job(size, count, self._batches[-1]), ())
                seconds = round(time.perf_counter() - started, 3)
                log("warm", model=model.name, width=size[1], height=size[0], images=count, seconds=seconds)

    def _pipeline(self, model: ServedModel) -> Pipeline:
        """The open pipeline of a model; others are closed, the longest unused one first, where memory asks for it.

        Raises:
            SdortError: as :func:`load_folder`.
        """
        if model.name in self._open:
            self._open[model.name] = self._open.pop(model.name)
            return self._open[model.name]
        while self._open and not self._has_room(model, max(model.sizes)):
            name = next(iter(self._open))
            log("closed", model=name, room_for=model.name)
            self._open.pop(name).close()
        self._open[model.name] = load_folder(model.folder.path, self._runtime)
        return self._open[model.name]

    def _has_room(self, model: ServedModel, size: tuple[int, int]) -> bool:
        request = Request(prompt="", height=size[0], width=size[1], num_images=self._batches[-1])
        provider = choose_provider(self._runtime)[0]
        try:
            refuse_generation(model.folder, request, self._batches[-1], provider, self._runtime.device_id)
        except MemoryShortageError:
            return False
        return True


def short_job(size: tuple[int, int], images: int = 1, at_once: int = 1) -> Job:
    """A job of two steps, which shows whether a size can be drawn.

    Args:
        size: height and width in pixels.
    """
    height, width = size
    return plan_job(
        "",
        {"height": height, "width": width, "steps": 2, "num_images": images, "seed": 0, "images_at_once": at_once},
    )
