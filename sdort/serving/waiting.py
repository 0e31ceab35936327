"""The queue: a bounded number of requests, of whose images those with the same settings are drawn together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from sdort.generation.requests.request import Request
from sdort.serving.batching import BatchRule
from sdort.serving.drawings import Drawing


class QueueFull(Exception):
    """There is no place in the queue."""


class Piece(NamedTuple):
    """An image that is to be drawn."""

    drawing: Drawing
    number: int
    """Among the images of the drawing."""
    request: Request
    """Of this image alone; the drawing forgets its requests when it is over."""


@dataclass(eq=False)
class Batch:
    """Images that are drawn together."""

    pieces: list[Piece]
    cancel: threading.Event = field(default_factory=threading.Event)
    """Ends it between two steps."""

    def look(self) -> None:
        """End it if nobody waits for any of it."""
        if all(piece.drawing.unwanted.is_set() for piece in self.pieces):
            self.cancel.set()


class Waiting:
    """Requests that wait to be drawn, in the order in which they came; any thread may call it.

    Args:
        places: how many requests wait at most.
        batches: numbers of images that are drawn together, 1 among them.
        wait: seconds that an image waits for others to be drawn with.
    """

    def __init__(self, places: int, batches: Collection[int], wait: float) -> None:
        self.places, self.rule = places, BatchRule(tuple(batches), wait)
        self._changed = threading.Condition()
        self._left: dict[Drawing, list[int]] = {}
        """The images of each that nobody has taken."""
        self._reserved = 0
        self._closed = False

    def __len__(self) -> int:
        """Places that are taken."""
        with self._changed:
            return len(self._left) + self._reserved

    def reserve(self) -> None:
        """Take a place for a request that is still being read.

        Raises:
            QueueFull: there is none, or the queue is closed.
        """
        with self._changed:
            if self._closed or len(self._left) + self._reserved >= self.places:
                raise QueueFull
            self._reserved += 1

    def release(self) -> None:
        """Give a reserved place back."""
        with self._changed:
            self._reserved -= 1

    def put(self, drawing: Drawing) -> int:
        """Put a request into its reserved place; returns how many are before it."""
        with self._changed:
            before = len(self._left)
            self._left[drawing] = list(range(len(drawing.requests)))
            self._reserved -= 1
            self._changed.notify_all()
            return before

    def remove(self, drawing: Drawing) -> None:
        """Take a request out that nobody wants any more."""
        with self._changed:
            self._left.pop(drawing, None)

    def ahead(self) -> dict[Drawing, int]:
        """How many requests are before each one."""
        with self._changed:
            return {drawing: number for number, drawing in enumerate(self._left)}

    def put_back(self, pieces: Collection[Piece]) -> None:
        """Put images back before all others, each to be drawn alone: one of them may end what draws it."""
        with self._changed:
            for drawing, index, _ in pieces:
                if not drawing.unwanted.is_set():
                    drawing.keys[index] = object()
                    self._left = {drawing: sorted([index, *self._left.pop(drawing, ())]), **self._left}
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more requests; :meth:`take` gives those that are there, and then None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def look(self) -> None:
        """Let those who wait in :meth:`take` ask again for what they may have."""
        with self._changed:
            self._changed.notify_all()

    def clear(self) -> list[Drawing]:
        """Take out all requests."""
        with self._changed:
            left = list(self._left)
            self._left.clear()
            self._changed.notify_all()
            return left

    def take(
        self,
        rank: Callable[[Drawing], int | None] = lambda _: 0,
        begin: Callable[[Drawing], None] = lambda _: None,
        patience: float | None = None,
    ) -> Batch | None:
        """The next images: those of the oldest request, and of others that share its calls. Waits for them.

        Args:
            rank: the order in which this caller takes requests, the smallest first; None for one that it does not take.
            begin: called with the request whose images are taken, before another caller may take any.
            patience: seconds to wait for a request; None for any time.

        Returns:
            None when the queue is closed and empty; a batch without images where none came in time.
        """
        until = math.inf if patience is None else time.monotonic() + patience
        with self._changed:
            while True:
                ranks = {each: found for each in self._left if (found := rank(each)) is not None}
                if ranks:
                    first = min(ranks, key=lambda each: ranks[each])
                    pieces = self._alike(first)
                    rest = self.rule.due(first.begun, len(pieces)) - time.monotonic()
                    if rest <= 0 or self._closed:
                        begin(first)
                        return self._taken(pieces)
                else:
                    if self._closed and not self._left:
                        return None
                    rest = until - time.monotonic()
                    if rest <= 0:
                        return Batch([])
                self._changed.wait(rest if rest < math.inf else None)

    def _alike(self, first: Drawing) -> list[Piece]:
        """As many images as share calls with the first of ``first``."""
        key = first.keys[self._left[first][0]]
        every = (
            Piece(drawing, index, drawing.requests[index])
            for drawing, indices in self._left.items()
            for index in indices
            if drawing.keys[index] == key
        )
        found = [piece for _, piece in zip(range(self.rule.most), every, strict=False)]
        return found[: self.rule.number(len(found))]

    def _taken(self, pieces: list[Piece]) -> Batch:
        for drawing, index, _ in pieces:
            self._left[drawing].remove(index)
            if not self._left[drawing]:
                del self._left[drawing]
        self._changed.notify_all()
        return Batch(pieces)
