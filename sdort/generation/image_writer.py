"""Files of images, written while the next images are drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from sdort.errors import SdortError
from sdort.generation.result import Image
from sdort.machine.phases import phase

THREADS = 4
"""Threads that compress images: a large PNG takes about as long as a few steps of a fast GPU."""
MOST_WAITING = 8
"""Images that wait to be written at most: the next one waits for the first of them."""


class ImageWriter:
    """Writes images in threads; leaving its block waits for all of them, however it ends.

    Args:
        done: called in the thread of the block, in the order of the images, with the number of each and the image when
            it is in its place.
    """

    def __init__(self, done: Callable[[int, Image], None]) -> None:
        self._done = done
        self._threads = ThreadPoolExecutor(THREADS, "sdort-files")
        self._waiting: deque[tuple[int, Image, Future[Path] | None]] = deque()

    def __enter__(self) -> ImageWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with phase("image files"):
            self._threads.shutdown()
        failure: SdortError | None = None
        while self._waiting:
            try:
                self._finish(len(self._waiting) - 1)
            except SdortError as error:  # the images behind it are there all the same
                failure = failure or error
        if failure and kind is None:
            raise failure

    def take(self, number: int, image: Image, write: Callable[[], Path] | None) -> None:
        """Take an image.

        Args:
            write: writes its file and returns the place; None where there is none to write.

        Raises:
            OutputError: an image before could not be written.
        """
        self._waiting.append((number, image, self._threads.submit(write) if write else None))
        while self._waiting and ((writing := self._waiting[0][2]) is None or writing.done()):
            self._finish(len(self._waiting) - 1)
        self._finish(MOST_WAITING)

    def _finish(self, most: int) -> None:
        """Wait until no more than ``most`` images are left to be written."""
        while len(self._waiting) > most:
            number, image, writing = self._waiting.popleft()
            with phase("image files"):
                path = writing.result() if writing else None
            self._done(number, replace(image, path=path) if path else image)
