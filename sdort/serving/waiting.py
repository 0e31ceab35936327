"""The queue: a bounded number of requests, of whose images those with the same settings are drawn together."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
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

    def close(self) -> None:
        """Take no more requests; :meth:`take` gives those that are there, and then None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def clear(self) -> list[Drawing]:
        """Take out all requests."""
        with self._changed:
            left = list(self._left)
            self._left.clear()
            self._changed.notify_all()
            return left

    def take(self) -> Batch | None:
        """The next images: those of the oldest request, one of a warm size if there is, and of others that share its
        calls. Waits for them.

        Returns:
            None when the queue is closed and empty.
        """
        with self._changed:
            while True:
                while not self._left:
                    if self._closed:
                        return None
                    self._changed.wait()
                # Nobody whose size is warm waits behind one whose size is compiled first.
                first = next((each for each in self._left if not each.is_cold), next(iter(self._left)))
                pieces = self._alike(first)
                rest = self.rule.due(first.begun, len(pieces)) - time.monotonic()
                if rest <= 0 or self._closed:
                    return self._taken(pieces)
                self._changed.wait(rest)

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
        return Batch(pieces)
