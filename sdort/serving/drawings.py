"""A request that was taken, and what its clients are told of it.

Clients come and go: the state is kept as the last event of each kind, so that a client that is slow or comes again gets
the present state, and nothing grows.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from sdort.generation.job import Job
from sdort.generation.requests.request import Request
from sdort.serving.served_model import ServedModel

HEARTBEAT = 15.0
"""Seconds without an event after which a client hears that the connection lives."""
ENDS = frozenset({"done", "failed", "cancelled"})
"""Events after which nothing comes."""


@dataclass(frozen=True)
class Event:
    """Something that a client is told: ``data`` is JSON."""

    name: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """An image that is done."""

    png: bytes
    seed: int
    parameters: str
    """The text that sdort writes into its PNGs."""


class Drawing:
    """A request, its images, and the events of both; they change in the event loop's thread alone.

    Args:
        model: that draws it.
        job: as it was planned; the images are ``requests``.
        requests: one for each image.
        keys: of each image: what has the same is drawn with the same calls of the UNet.
        previews: whether anybody looks at them.
        patience: seconds that it may take.
    """

    def __init__(
        self,
        model: ServedModel,
        job: Job,
        requests: list[Request],
        keys: list[Any],
        *,
        previews: bool = False,
        patience: float = 600.0,
    ) -> None:
        self.id = secrets.token_urlsafe(12)
        self.model, self.job, self.requests, self.keys, self.previews = model, job, requests, keys, previews
        self.begun = time.monotonic()
        self.deadline = self.begun + patience
        self.heard = self.begun
        """The time when a client last asked for it."""
        self.listeners = 0
        self.is_kept = False
        """Whether its images are asked for when it is over."""
        self.unwanted = threading.Event()
        """Set when nobody waits for it any more; the worker looks."""
        self.images: list[Finished | None] = [None] * len(requests)
        self.end: Event | None = None
        self.status = 200
        """HTTP's status of a request that failed."""
        self._events: dict[tuple[str, int], tuple[int, Event]] = {}
        self._serial = 0
        self._changed = asyncio.Event()
        self._steps = [(0, 1)] * len(requests)
        self.deaths = 0
        """How many workers died while they drew it."""
        self.has_begun = False
        """Whether any of its images is being drawn, or was."""

    @property
    def is_over(self) -> bool:
        """Whether all its images are done, or none will be."""
        return self.end is not None

    @property
    def seconds(self) -> float:
        """Seconds since it was taken."""
        return round(time.monotonic() - self.begun, 3)

    @property
    def size(self) -> int:
        """Bytes of its images."""
        return sum(len(image.png) for image in self.images if image)

    @property
    def progress(self) -> tuple[int, int]:
        """Steps that are done, and all of an image."""
        steps = max(every for _, every in self._steps)
        return sum(done for done, _ in self._steps) // len(self._steps), steps

    @property
    def last_preview(self) -> str | None:
        """The newest preview of its images, as a data URL; None where there is none."""
        shown = [entry for (name, _), entry in self._events.items() if name == "preview"]
        return str(max(shown, key=lambda entry: entry[0])[1].data["image"]) if shown else None

    def tell(self, name: str, data: dict[str, Any], index: int = 0) -> None:
        """Put an event in the place of the last one of its name and image."""
        if self.is_over:
            return
        known = self._events.get((name, index))
        if name == "queued" and (self.has_begun or (known and known[1].data == data)):
            return
        if name in ("step", "image", *ENDS):
            self.has_begun = True
            self._events.pop(("queued", 0), None)
        if name in ENDS:
            self._events.pop(("step", 0), None)
            self.end = Event(name, data)
        if name == "image":
            self._events.pop(("preview", index), None)
        self._serial += 1
        self._events[name, index] = self._serial, Event(name, data)
        self._changed.set()
        self._changed = asyncio.Event()

    def step(self, index: int, done: int, steps: int) -> None:
        """An image went on."""
        before, self._steps[index] = self.progress, (done, steps)
        if self.progress != before:
            now, every = self.progress
            self.tell("step", {"step": now, "steps": every})

    def preview(self, index: int, url: str) -> None:
        """A small picture of an image to come; nothing once that is done."""
        if self.images[index] is None:
            self.tell("preview", {"index": index, "image": url}, index)

    def finish(self, index: int, image: Finished) -> None:
        """An image is done; with the last one the drawing is."""
        if self.is_over:
            return
        self.images[index] = image
        url = f"/api/images/{self.id}/{index}.png"
        told = {"index": index, "seed": image.seed, "url": url, "parameters": image.parameters}
        self.tell("image", told, index)
        if all(self.images):
            self.tell("done", {"seconds": self.seconds})

    def fail(self, message: str, status: int = 500) -> None:
        """Nothing more comes of it."""
        if not self.is_over:
            self.status = status
            self.unwanted.set()
            self.tell("failed", {"message": message})

    def cancel(self) -> None:
        """Nobody wants it any more."""
        if not self.is_over:
            self.status = 499
            self.unwanted.set()
            self.tell("cancelled", {})

    def forget(self) -> None:
        """Give up what it was drawn by: its requests have init images and masks."""
        self.requests.clear()
        self.keys.clear()
        self.job = replace(self.job, requests=[])

    async def finished(self) -> None:
        """Wait for its end."""
        while not self.is_over:
            await self._changed.wait()

    async def events(self) -> AsyncIterator[Event | None]:
        """Its events from the present state on, until its end; None where nothing happened for a while."""
        self.listeners += 1
        try:
            async for event in self._told():
                yield event
        finally:
            self.listeners -= 1
            self.heard = time.monotonic()

    async def _told(self) -> AsyncIterator[Event | None]:
        seen = 0
        while True:
            changed = self._changed
            for serial, event in sorted(self._events.values(), key=lambda entry: entry[0]):
                if serial > seen:
                    seen = serial
                    yield event
            if self.is_over and seen == self._serial:
                return
            if changed is self._changed:
                try:
                    await asyncio.wait_for(changed.wait(), HEARTBEAT)
                except asyncio.TimeoutError:
                    yield None
