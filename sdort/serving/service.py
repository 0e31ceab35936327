"""All that the APIs have in common: requests are checked, planned, queued, drawn, kept for a while, and given up."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from PIL import ImageOps

from sdort.errors import SdortError
from sdort.errors.plain_text import cut, one_line
from sdort.files.named_files import files_below
from sdort.generation.command import check_job
from sdort.generation.files.prompts_file import setting
from sdort.generation.job import plan_job, shared_by
from sdort.generation.requests.request import Request
from sdort.generation.requests.typed_options import GenerationOptions
from sdort.generation.resumed_prompts import alone
from sdort.providers import LOW
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.memory import device_reader
from sdort.runtime.probe import choose_provider
from sdort.samplers.scheduler_names import find_scheduler
from sdort.serving.drawings import Drawing
from sdort.serving.engine import Engine
from sdort.serving.logs import log
from sdort.serving.metrics import Metrics
from sdort.serving.pictures import hole_of, read_upload
from sdort.serving.refusals import Refused, of_error
from sdort.serving.serve_options import ServeOptions
from sdort.serving.served_model import ServedModel
from sdort.serving.waiting import QueueFull, Waiting
from sdort.serving.worker import Worker

ABANDONED = 60.0
"""Seconds after which a drawing of the page is given up that no client asks for."""
_LISTED = 5.0
"""Seconds for which the list of adapters holds."""
_LAST = 30.0
"""Seconds for the step that runs when the time of what waits is over."""


@dataclass(frozen=True)
class Wanted:
    """A request, whichever API it came by."""

    prompt: str
    model: str | None = None
    """The name of a model; None for the first one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of a generation by their names in Python, none of which names a file."""
    init_image: bytes | None = None
    mask: bytes | None = None
    inverted: bool = False
    """Whether black is what the mask selects."""
    by_hole: bool = False
    """Whether the mask selects what is transparent in it, or without one in the image, as OpenAI's does."""
    previews: bool = False


class Service:
    """All that serves requests.

    Args:
        models: the first one draws requests that name none.
        batches: numbers of images that are drawn together.
        engines: that draw them, one a GPU.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        options: ServeOptions,
        runtime: RuntimeOptions,
        batches: Sequence[int],
        engines: Sequence[Engine],
    ) -> None:
        self.models = {model.name: model for model in models}
        self.options = options
        self.waiting = Waiting(options.queue, batches, options.batch_wait)
        memory = None if options.ray else device_reader(choose_provider(runtime)[0], runtime.device_id)
        self.metrics = Metrics(batches, self.waiting.__len__, lambda: self.worker.sound, memory)
        self.worker = Worker(engines, models, self.waiting, self._post, self.metrics, previews=runtime.memory != LOW)
        self.drawings: dict[str, Drawing] = {}
        """Those that are under way, by their ids."""
        self.kept: dict[str, Drawing] = {}
        """Those that are over and whose images may be asked for, the oldest first."""
        self._adapters: tuple[float, dict[str, Path]] = (-math.inf, {})
        """The time when their folder was last looked at, and what it had."""
        self._tasks: set[asyncio.Future[None]] = set()
        self._planner = ThreadPoolExecutor(1, "sdort-plan")
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_end: Callable[[], None] = lambda: None
        """Called in the event loop's thread when the worker has ended by itself."""

    def start(self) -> None:
        """Begin, inside of the event loop."""
        self._loop = asyncio.get_running_loop()
        self.worker.on_end = lambda: self._post(self.on_end)
        self.worker.start()

    async def stop(self, deadline: float) -> None:
        """End when all that waits is drawn, or at the deadline, by :func:`time.monotonic`."""
        self.waiting.close()
        await asyncio.to_thread(self.worker.join, max(0.0, deadline - time.monotonic()))
        self.waiting.clear()
        for drawing in list(self.drawings.values()):
            drawing.fail("the server ends", 503)
            self._leave(drawing)
        await asyncio.to_thread(self.worker.join, _LAST)
        self._planner.shutdown(wait=False, cancel_futures=True)

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(call, *arguments)

    @property
    def adapters(self) -> dict[str, Path]:
        """Adapters by their names: the files of the folder, with their subfolders and without the suffix."""
        folder = self.options.adapter_folder
        if folder is None:
            return {}
        read, found = self._adapters
        if time.monotonic() - read > _LISTED:
            paths = files_below(folder, (".safetensors",))
            found = {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}
            self._adapters = time.monotonic(), found
        return found

    def adapter(self, name: str) -> Path:
        """The file of an adapter.

        Raises:
            Refused: there is none of that name.
        """
        if (path := self.adapters.get(name)) is None:
            raise Refused(f"there is no adapter {cut(one_line(name))} here", field="adapters")
        return path

    def model(self, name: str | None) -> ServedModel:
        """A model by its name.

        Raises:
            Refused: there is none.
        """
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise Refused(f"there is no such model here. There are: {', '.join(self.models)}", 404, "model")
        return self.models[name]

    async def submit(self, wanted: Wanted) -> Drawing:
        """Check, plan and queue a request.

        Raises:
            Refused: it is wrong, or the queue is full.
        """
        try:
            return await self._submitted(wanted)
        except Refused as error:
            self.metrics.refused(error.status)
            raise

    async def _submitted(self, wanted: Wanted) -> Drawing:
        try:
            self.waiting.reserve()
        except QueueFull:
            seconds = max(1, math.ceil(self.metrics.seconds_each * len(self.waiting)))
            raise Refused("too many requests wait already", 429, retry_after=min(seconds, 3600)) from None
        try:
            assert self._loop is not None
            drawing = await self._loop.run_in_executor(self._planner, self._planned, wanted)
        except BaseException:
            self.waiting.release()
            raise
        self.metrics.taken()
        self.drawings[drawing.id] = drawing
        drawing.tell("queued", {"position": self.waiting.put(drawing)})
        first = drawing.requests[0]
        told: dict[str, Any] = {"prompt": wanted.prompt} if self.options.log_prompts else {}
        log(
            "queued",
            drawing=drawing.id,
            model=drawing.model.name,
            images=len(drawing.requests),
            steps=first.steps,
            width=first.width,
            height=first.height,
            **told,
        )
        return drawing

    def cancel(self, drawing: Drawing) -> None:
        """Give a drawing up that nobody waits for."""
        drawing.cancel()
        self._leave(drawing)

    def _leave(self, drawing: Drawing) -> None:
        self.waiting.remove(drawing)
        self.worker.look()
        if self.drawings.pop(drawing.id, None) and drawing.end:
            self.metrics.ended(drawing.end.name, drawing.seconds)
            log(drawing.end.name, drawing=drawing.id, seconds=drawing.seconds)
            if drawing.is_kept:
                self._keep(drawing)

    async def wait_for(self, drawing: Drawing) -> None:
        """Wait until a drawing is over, at the longest until its deadline."""
        try:
            await self._finished(drawing, lambda: math.inf)
        finally:
            self.cancel(drawing)

    def follow(self, drawing: Drawing) -> None:
        """Keep the images of a drawing whose client asks for them later; one that nobody asks for is given up."""
        drawing.is_kept = True
        task = asyncio.ensure_future(self._followed(drawing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _followed(self, drawing: Drawing) -> None:
        def left() -> float:
            return math.inf if drawing.listeners else drawing.heard + ABANDONED - time.monotonic()

        await self._finished(drawing, left)
        self.cancel(drawing)

    def _keep(self, drawing: Drawing) -> None:
        """Keep a drawing that is over; the oldest go where there are too many."""
        drawing.forget()
        self.kept[drawing.id] = drawing
        sizes = [each.size for each in self.kept.values()]
        while len(self.kept) > self.options.keep or sum(sizes) > self.options.keep_mb * 1_000_000:
            del self.kept[next(iter(self.kept))], sizes[0]

    async def _finished(self, drawing: Drawing, patience: Callable[[], float]) -> None:
        """Wait until a drawing is over, its deadline has passed, or there is no patience left."""
        while not drawing.is_over:
            left = min(drawing.deadline - time.monotonic(), patience())
            if left > 0:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(drawing.finished(), min(left, ABANDONED))
            elif time.monotonic() >= drawing.deadline:
                drawing.fail(f"it took longer than {self.options.timeout:g} seconds", 504)
            else:
                return

    def find(self, name: str) -> Drawing:
        """A drawing by its id; that it is asked for keeps it wanted.

        Raises:
            Refused: there is none, or it is not kept any more.
        """
        drawing = self.drawings.get(name) or self.kept.get(name)
        if drawing is None:
            raise Refused("there is no such drawing here, or it is not kept any more", 404)
        drawing.heard = time.monotonic()
        return drawing

    def _planned(self, wanted: Wanted) -> Drawing:
        model = self.model(wanted.model)
        options = dict(wanted.options)
        self._check_limits(wanted.prompt, options)
        if options.get("scheduler"):
            try:
                find_scheduler(options["scheduler"])
            except SdortError as error:
                raise of_error(error, field="scheduler") from error
        options |= self._pictures(wanted)
        height, width = self._size(model, options)
        options |= {"height": height, "width": width, "images_at_once": self.options.images_at_once}
        if self.options.adapter_folder:
            options["lora_folder"] = self.options.adapter_folder
        if model.safety:
            options["safety"] = model.safety
        try:
            job = plan_job(wanted.prompt, cast("GenerationOptions", options)).for_pipeline(model.folder)
            if job.requests[0].steps > self.options.max_steps:
                raise Refused(f"steps: at most {self.options.max_steps} are drawn here", field="steps")
            check_job(model.folder, job, None)
        except SdortError as error:
            raise of_error(error, places=model.places) from error
        requests = [alone(request, index) for request in job.requests for index in range(request.num_images)]
        keys = [self._key(model, request) for request in requests]
        return Drawing(model, job, requests, keys, previews=wanted.previews, patience=self.options.timeout)

    def _pictures(self, wanted: Wanted) -> dict[str, Any]:
        """The init image and the mask that a request sends.

        Raises:
            Refused: one is none that is read.
        """
        given = {name: getattr(wanted, name) for name in ("init_image", "mask") if getattr(wanted, name) is not None}
        found = {name: read_upload(content, name, self.options) for name, content in given.items()}
        if wanted.by_hole and (hole := hole_of(found.get("mask") or found["init_image"])):
            found["mask"] = hole
        elif wanted.by_hole and "mask" in found:
            raise Refused("the mask has no transparent part: that is what is drawn anew", field="mask")
        if wanted.inverted and "mask" in found:
            found["mask"] = ImageOps.invert(found["mask"].convert("L"))
        return found

    def _key(self, model: ServedModel, request: Request) -> tuple[Any, ...]:
        """All that images have in common which are drawn together."""
        images = {
            name: image and image.digest for name, image in vars(request).items() if name in ("init_image", "mask")
        }
        said = {**vars(request), **images, "templates": ()}
        return model.name, tuple(setting((0, said))), shared_by(request), model.chunks(request)

    def _check_limits(self, prompt: str, options: Mapping[str, Any]) -> None:
        limits = self.options
        for name, text in (("prompt", prompt), ("negative_prompt", options.get("negative_prompt") or "")):
            if len(text) > limits.max_prompt:
                raise Refused(f"{name}: at most {limits.max_prompt:,} characters are taken here", field=name)
        for name, most in (("steps", limits.max_steps), ("num_images", limits.max_images)):
            if (options.get(name) or 0) > most:
                raise Refused(f"{name}: at most {most} are drawn here", field=name)

    def _size(self, model: ServedModel, options: Mapping[str, Any]) -> tuple[int, int]:
        own = model.sizes[0]
        if (image := options.get("init_image")) is not None and (image.height, image.width) in model.sizes:
            own = image.height, image.width
        height, width = options.get("height") or own[0], options.get("width") or own[1]
        if height * width > self.options.max_pixels:
            raise Refused(f"images have at most {self.options.max_pixels:,} pixels here", field="width")
        try:
            model.check_size(height, width)
        except SdortError as error:
            raise of_error(error, field="width") from error
        return height, width
