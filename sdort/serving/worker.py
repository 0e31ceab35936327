"""The threads that draw what waits: one for each engine, and one beside it for sizes that were never drawn."""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sdort.batches.part import MOST_DEATHS, WorkerDeathError
from sdort.errors import OF_AN_IMAGE, CancelledError, MemoryShortageError, SdortError, UsageError
from sdort.generation.files.infotext import parameters_text
from sdort.generation.job import Job
from sdort.generation.latents.preview import Preview
from sdort.generation.requests.request import Request
from sdort.generation.requests.typed_options import PreviewOptions
from sdort.generation.result import Image
from sdort.serving.drawings import Drawing, Finished
from sdort.serving.engine import Engine, short_job
from sdort.serving.logs import log
from sdort.serving.metrics import Metrics
from sdort.serving.pictures import preview_url
from sdort.serving.refusals import words_of
from sdort.serving.served_model import ServedModel
from sdort.serving.waiting import Batch, Piece, Waiting

_PREVIEWS = 8
"""Previews of an image."""
_LOOK = 5.0
"""Seconds from one look to the next at an engine of which nobody asks anything."""
_SHORTAGES = 3
"""Images in a row that find no memory, after which that is not their own fault."""
_Size = tuple[str, int | None, int | None]
"""The name of a model, a height, a width."""


@dataclass(eq=False)
class _Station:
    """An engine and what is known of it."""

    engine: Engine
    warm: set[_Size]
    """Sizes that it has drawn, or will have when it is open: others compile first where a provider does."""
    is_open: threading.Event = field(default_factory=threading.Event)
    has_ended: bool = False
    failure: Exception | None = None
    """Why it ended before it was told to."""
    trouble: str | None = None
    """Why it draws nothing at present, in words for clients."""
    troubled: ServedModel | None = None
    """The model that it last failed to draw."""
    shortages: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether it is expected to draw what it is given."""
        return self.is_open.is_set() and self.trouble is None and not self.has_ended


@dataclass(eq=False)
class _Lane:
    """A thread's place at an engine."""

    station: _Station
    for_new: bool
    """Whether it draws sizes that the engine has never drawn, and no others."""
    batch: Batch | None = None
    """The images that are being drawn."""


class Worker:
    """The drawing of what waits.

    Args:
        engines: one for each GPU.
        models: all that are served.
        post: calls a function in the event loop's thread.
        previews: whether any are made.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        models: Sequence[ServedModel],
        waiting: Waiting,
        post: Callable[..., None],
        metrics: Metrics,
        *,
        previews: bool = True,
    ) -> None:
        self._waiting, self._post, self._metrics, self._previews = waiting, post, metrics, previews
        self._warm = {(model.name, *size) for model in models for size in model.sizes}
        self.engines = engines
        self._stations = [_Station(engine, set(self._warm)) for engine in engines]
        self._lanes = [_Lane(station, for_new=False) for station in self._stations]
        if any(model.any_size for model in models):
            self._lanes += [_Lane(each, for_new=True) for each in self._stations if each.engine.has_second]
        self._compiling: _Lane | None = None
        """The lane that draws a new size: one at a time, so that the others draw what is asked for meanwhile."""
        self._encoder = ThreadPoolExecutor(1 + len(engines), "sdort-png")
        self._lock = threading.Lock()
        self.failure: Exception | None = None
        """Why the last engine ended before it was told to."""
        self.is_warm = threading.Event()
        """Set once an engine is open, for good."""
        self.on_end: Callable[[], None] = lambda: None
        """Called when all engines have ended."""
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), name="sdort-worker", daemon=True) for lane in self._lanes
        ]

    def start(self) -> None:
        """Begin to open the engines, and to draw."""
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the end of all threads, at the longest so many seconds."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def look(self) -> None:
        """End what is drawn and nobody waits for."""
        for lane in self._lanes:
            if batch := lane.batch:
                batch.look()

    @property
    def sound(self) -> int:
        """How many engines draw."""
        return sum(station.is_sound for station in self._stations)

    @property
    def trouble(self) -> str | None:
        """Why no engine draws; None if one does, or none has begun to."""
        return None if self.sound else next((each.trouble for each in self._stations if each.trouble), None)

    def _run(self, lane: _Lane) -> None:
        station = lane.station
        try:
            if lane.for_new:
                station.is_open.wait()
            else:
                self._open(station)
            patience = _LOOK
            while batch := self._waiting.take(partial(self._rank, lane), partial(self._begin, lane), patience):
                try:
                    self._open(station)  # it may have ended while nobody asked for anything
                except Exception:
                    self._waiting.put_back(batch.pieces)
                    raise
                if batch.pieces:
                    self._post(self._tell_positions)
                    self._draw(lane, batch)
                elif station.trouble and station.troubled and not lane.for_new:
                    # Nothing but an image shows that it draws again: one of its own, where nobody asks for any.
                    self._probe(station, station.troubled)
                self._open(station)
                patience = 0.0 if station.trouble and batch.pieces else _LOOK
        except Exception as error:  # raised again by whoever waits for the threads
            log("ended", level=logging.ERROR, error=error)
            station.failure = error
        finally:
            self._leave(lane)

    def _open(self, station: _Station) -> None:
        if not station.has_ended and station.engine.start():
            station.warm = set(self._warm)
        station.is_open.set()
        self.is_warm.set()

    def _leave(self, lane: _Lane) -> None:
        station = lane.station
        if lane.for_new:
            return
        station.engine.close()
        with self._lock:
            station.has_ended = True
            station.is_open.set()  # the other lane waits for it
            if not all(each.has_ended for each in self._stations):
                return
        self.failure = station.failure
        self._encoder.shutdown()
        self.on_end()

    def _rank(self, lane: _Lane, drawing: Drawing) -> int | None:
        """The order in which a lane takes a request; None for never at present."""
        if lane.station.has_ended:
            return None
        is_free = self._compiling in (None, lane)
        if lane.for_new:
            return 0 if not self._is_warm(lane, drawing) and is_free else None
        if self._is_warm(lane, drawing):
            return 0
        # Nobody whose size is warm waits behind one whose size is compiled first.
        return None if lane.station.engine.has_second or not is_free else 1

    def _begin(self, lane: _Lane, drawing: Drawing) -> None:
        if not self._is_warm(lane, drawing):
            self._compiling = lane

    def _is_warm(self, lane: _Lane, drawing: Drawing) -> bool:
        return _size_of(drawing.model, drawing.requests[0]) in lane.station.warm

    def _tell_positions(self) -> None:
        for drawing, number in self._waiting.ahead().items():
            drawing.tell("queued", {"position": number})

    def _draw(self, lane: _Lane, batch: Batch) -> None:
        """Draw a batch, and let the other lanes see what came of it."""
        lane.batch = batch
        try:
            self._drawn(lane, batch)
        finally:
            lane.batch = None
            if self._compiling is lane:
                self._compiling = None
                self._waiting.look()

    def _drawn(self, lane: _Lane, batch: Batch) -> None:
        """Draw images; where one's own fault ends that, what is left is drawn in halves."""
        lane.batch = batch
        batch.pieces = [piece for piece in batch.pieces if not piece.drawing.unwanted.is_set()]
        if not batch.pieces:
            return
        done, model, station = dict[int, bool](), batch.pieces[0].drawing.model, lane.station
        size = _size_of(model, batch.pieces[0].request)
        try:
            seconds = station.engine.draw(
                model, self._job(batch), partial(self._take, batch, done), new_size=size not in station.warm
            )
            self._metrics.drawn(model.name, sum(done.values()), seconds)
            station.warm.add(size)
            if not lane.for_new:
                station.trouble, station.shortages = None, 0
        except CancelledError:
            return
        except WorkerDeathError as error:
            station.is_open.clear()
            self._again([piece for number, piece in enumerate(batch.pieces) if number not in done], error)
        except Exception as error:  # whatever it is, the server goes on
            log("batch failed", level=logging.ERROR, error=error, model=model.name, images=len(batch.pieces))
            left = [piece for number, piece in enumerate(batch.pieces) if number not in done]
            if isinstance(error, OF_AN_IMAGE) and len(left) > 1:
                for half in (left[: len(left) // 2], left[len(left) // 2 :]):
                    self._drawn(lane, Batch(half))
                return
            if not lane.for_new:
                self._failed(station, model, error)
            for piece in left:
                self._post(piece.drawing.fail, *_told(error, model))

    def _again(self, left: Sequence[Piece], error: WorkerDeathError) -> None:
        """Send images again whose worker died, but for those that are there whenever one dies."""
        for drawing in {piece.drawing for piece in left}:
            drawing.deaths += 1
            if drawing.deaths >= MOST_DEATHS:
                self._post(drawing.fail, *_told(error, drawing.model))
        self._waiting.put_back([piece for piece in left if piece.drawing.deaths < MOST_DEATHS])

    def _failed(self, station: _Station, model: ServedModel, error: Exception) -> None:
        """Remember an error that is not one image's own."""
        station.shortages = station.shortages + 1 if isinstance(error, MemoryShortageError) else 0
        if isinstance(error, OF_AN_IMAGE) and station.shortages < _SHORTAGES:
            return
        station.trouble, station.troubled = _told(error, model)[0], model
        station.engine.mend(model)

    def _probe(self, station: _Station, model: ServedModel) -> None:
        """See whether an engine that failed draws again."""
        try:
            station.engine.draw(model, short_job(model.sizes[0]), lambda *_: None)
            station.trouble, station.shortages = None, 0
            log("draws again", model=model.name)
        except Exception as error:  # whatever it is, the server goes on
            log("draws nothing", level=logging.ERROR, error=error, model=model.name)
            self._failed(station, model, error)

    def _job(self, batch: Batch) -> Job:
        """The job of images that are drawn together."""
        pieces = batch.pieces
        for drawing, number, request in pieces:
            self._post(drawing.step, number, 0, request.steps)

        def moved(amount: float, total: float) -> None:
            batch.look()
            for drawing, number, _ in pieces:
                self._post(drawing.step, number, int(amount / len(pieces)), int(total / len(pieces)))

        previews = PreviewOptions()
        if self._previews and any(piece.drawing.previews for piece in pieces):
            steps = pieces[0].request.steps
            previews = PreviewOptions(
                on_preview=partial(self._previewed, pieces), preview_every=max(1, -(-steps // _PREVIEWS))
            )
        return replace(
            pieces[0].drawing.job,
            requests=[piece.request for piece in pieces],
            on_progress=moved,
            cancel=batch.cancel,
            previews=previews,
        )

    def _take(self, batch: Batch, done: dict[int, bool], number: int, image: Image | None) -> None:
        done[number] = image is not None
        if image is None:
            self._post(batch.pieces[number].drawing.fail, "the image shows nothing: another seed may show more")
        else:
            self._encoder.submit(self._finish, batch.pieces[number], image)

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


def _size_of(model: ServedModel, request: Request) -> _Size:
    return model.name, request.height, request.width


def _told(error: Exception, model: ServedModel) -> tuple[str, int]:
    """The words for a client of an error, and HTTP's status."""
    if isinstance(error, SdortError):
        return words_of(error, model.places), 400 if isinstance(error, UsageError) else 500
    return "the image could not be drawn: the server's log says why", 500
