"""The thread that owns the GPU: it opens pipelines, warms them up, and draws what waits."""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from sdort.errors import OF_AN_IMAGE, CancelledError, MemoryShortageError, SdortError, UsageError
from sdort.generation.command import Pipeline, load_folder
from sdort.generation.files.infotext import parameters_text
from sdort.generation.job import plan_job
from sdort.generation.latents.preview import Preview
from sdort.generation.memory_need import refuse_generation
from sdort.generation.requests.request import Request
from sdort.generation.requests.typed_options import PreviewOptions
from sdort.generation.result import Generation, Image
from sdort.providers import LOW
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.probe import choose_provider
from sdort.serving.drawings import Drawing, Finished
from sdort.serving.logs import log
from sdort.serving.metrics import Metrics
from sdort.serving.pictures import preview_url
from sdort.serving.refusals import words_of
from sdort.serving.served_model import ServedModel
from sdort.serving.waiting import Batch, Piece, Waiting

_PREVIEWS = 8
"""Previews of an image."""


class Worker:
    """The drawing of what waits.

    Args:
        models: all that are served; those that do not fit into memory together are opened in turn.
        post: calls a function in the event loop's thread.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        runtime: RuntimeOptions,
        waiting: Waiting,
        batches: Sequence[int],
        post: Callable[..., None],
        metrics: Metrics,
    ) -> None:
        self._models, self._runtime, self._waiting, self._batches = models, runtime, waiting, batches
        self._post, self._metrics = post, metrics
        self._open: dict[str, Pipeline] = {}
        """By the names of their models; the one that was used last is the last."""
        self._encoder = ThreadPoolExecutor(2, "sdort-png")
        self.current: Batch | None = None
        """The images that are being drawn."""
        self.failure: Exception | None = None
        """Why the worker ended before it was told to."""
        self.is_ready = threading.Event()
        self.on_end: Callable[[], None] = lambda: None
        """Called when it has ended."""
        self.thread = threading.Thread(target=self._run, name="sdort-worker", daemon=True)

    @property
    def open_models(self) -> list[str]:
        """The names of models that are in memory."""
        return list(self._open)

    def _run(self) -> None:
        try:
            for model in self._models:
                self._warm(model)
            self.is_ready.set()
            while batch := self._waiting.take():
                self.current = batch
                self._post(self._tell_positions)
                self._draw(batch)
                self.current = None
        except Exception as error:  # raised again by whoever waits for the thread
            self.failure = error
            log("ended", level=logging.ERROR, error=error)
        finally:
            self._encoder.shutdown()
            for pipeline in self._open.values():
                pipeline.close()
            self._open.clear()
            self.on_end()

    def _tell_positions(self) -> None:
        for drawing, number in self._waiting.ahead().items():
            drawing.tell("queued", {"position": number})

    def _warm(self, model: ServedModel) -> None:
        """Draw an image of each size and number, so that all is compiled and loaded."""
        pipeline = self._pipeline(model)
        for height, width in model.sizes:
            for count in sorted({1, self._batches[-1]}):
                job = plan_job("", {"height": height, "width": width, "steps": 2, "num_images": count, "seed": 0,
                                    "images_at_once": self._batches[-1]})  # fmt: skip
                started = time.perf_counter()
                pipeline.generate_job(job, ())
                seconds = round(time.perf_counter() - started, 3)
                log("warm", model=model.name, width=width, height=height, images=count, seconds=seconds)

    def _pipeline(self, model: ServedModel) -> Pipeline:
        """The open pipeline of a model; others are closed, the longest unused one first, where memory asks for it.

        Raises:
            SdortError: as :func:`load_folder`.
        """
        if model.name in self._open:
            self._open[model.name] = self._open.pop(model.name)
            return self._open[model.name]
        while self._open and not self._has_room(model):
            name = next(iter(self._open))
            log("closed", model=name, room_for=model.name)
            self._open.pop(name).close()
        self._open[model.name] = load_folder(model.folder.path, self._runtime)
        return self._open[model.name]

    def _has_room(self, model: ServedModel) -> bool:
        height, width = max(model.sizes)
        request = Request(prompt="", height=height, width=width, num_images=self._batches[-1])
        provider = choose_provider(self._runtime)[0]
        try:
            refuse_generation(model.folder, request, self._batches[-1], provider, self._runtime.device_id)
        except MemoryShortageError:
            return False
        return True

    def _draw(self, batch: Batch) -> None:
        """Draw images; where one's own fault ends that, what is left is drawn in halves."""
        batch.pieces = [piece for piece in batch.pieces if not piece.drawing.unwanted.is_set()]
        if not batch.pieces:
            return
        done, model = set[int](), batch.pieces[0].drawing.model
        try:
            generation = self._generated(self._pipeline(model), batch, done)
            self._metrics.drawn(model.name, generation)
            model.warm.add((generation.height, generation.width))
        except CancelledError:
            return
        except Exception as error:  # whatever it is, the server goes on
            log("batch failed", level=logging.ERROR, error=error, model=model.name, images=len(batch.pieces))
            left = [piece for number, piece in enumerate(batch.pieces) if number not in done]
            if isinstance(error, OF_AN_IMAGE) and len(left) > 1:
                for half in (left[: len(left) // 2], left[len(left) // 2 :]):
                    self.current = Batch(half)
                    self._draw(self.current)
                return
            if not isinstance(error, OF_AN_IMAGE) and (broken := self._open.pop(model.name, None)):
                broken.close()  # its sessions may be in any state: they are opened anew
            for piece in left:
                self._post(piece.drawing.fail, *_told(error, model))

    def _generated(self, pipeline: Pipeline, batch: Batch, done: set[int]) -> Generation:
        pieces = batch.pieces
        for drawing, number, request in pieces:
            self._post(drawing.step, number, 0, request.steps)

        def moved(amount: float, total: float) -> None:
            batch.look()
            for drawing, number, _ in pieces:
                self._post(drawing.step, number, int(amount / len(pieces)), int(total / len(pieces)))

        def take(number: int, image: Image | None) -> None:
            done.add(number)
            if image is None:
                self._post(pieces[number].drawing.fail, "the image shows nothing: another seed may show more")
            else:
                self._encoder.submit(self._finish, pieces[number], image)

        first = pieces[0].drawing
        previews = PreviewOptions()
        if any(piece.drawing.previews for piece in pieces) and self._runtime.memory != LOW:
            steps = pieces[0].request.steps
            previews = PreviewOptions(
                on_preview=partial(self._previewed, pieces), preview_every=max(1, -(-steps // _PREVIEWS))
            )
        job = replace(
            first.job,
            requests=[piece.request for piece in pieces],
            on_progress=moved,
            cancel=batch.cancel,
            previews=previews,
        )
        return pipeline.generate_job(job, (), take)

    def _previewed(self, pieces: Sequence[Piece], preview: Preview) -> None:
        for (drawing, number, _), pixels in zip(pieces, preview.images, strict=True):
            if drawing.previews:
                self._encoder.submit(self._show, drawing, number, pixels)

    def _show(self, drawing: Drawing, number: int, pixels: Any) -> None:
        self._post(drawing.preview, number, preview_url(pixels))

    def _finish(self, piece: Piece, image: Image) -> None:
        try:
            with io.BytesIO() as file:
                image.save(file)
                found = Finished(file.getvalue(), image.seed, parameters_text(image.record, image.seed))
        except SdortError as error:
            self._post(piece.drawing.fail, *_told(error, piece.drawing.model))
        else:
            self._post(piece.drawing.finish, piece.number, found)


def _told(error: Exception, model: ServedModel) -> tuple[str, int]:
    """The words for a client of an error, and HTTP's status."""
    if isinstance(error, SdortError):
        return words_of(error, model.places), 400 if isinstance(error, UsageError) else 500
    return "the image could not be drawn: the server's log says why", 500
