"""The progress of a generation in words: which image, which step and how fast, or which tile is decoded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from sdort.console import clock


class StepProgress:
    """The state of the progress bar of a generation.

    Args:
        images: of all prompts.
        at_once: images that share a UNet call.
        steps: denoising steps that were asked for.
        calls: calls of the UNet that they take: more than ``steps`` with some schedulers.
    """

    def __init__(self, images: int, at_once: int, steps: int, calls: int) -> None:
        self.images, self.at_once, self.steps, self.calls = images, at_once, steps, calls
        self.on_step: Callable[[float], None] = lambda amount: None
        """Called after each :meth:`step` with its amount."""
        self.on_tile: Callable[[], None] = lambda: None
        """Called before the decoder begins with a tile."""
        self.done = 0
        """UNet calls times images, of all batches."""
        self._first = self._finished = 0
        self._tile: tuple[int, int] | None = None
        self._pace: float | None = None
        """Seconds a UNet call, None before the first."""
        self._begin()

    @property
    def total(self) -> int:
        """UNet calls times images that there are to do."""
        return self.calls * self.images

    @property
    def _batch(self) -> int:
        return min(self.at_once, self.images - self._first)

    def _begin(self) -> None:
        self._call, self._tile = 0, None
        self._timed = 0
        self._since = self._now = time.perf_counter()

    def step(self, amount: float) -> None:
        """A batch went on by one call; a negative amount takes back what is computed again in a safer precision."""
        self.done += int(amount)
        if amount < 0:
            self._begin()
        else:
            self._measure()
        self.on_step(amount)

    def _measure(self) -> None:
        if self._call == self.calls and self._first + self._batch < self.images:
            self._first += self._batch  # all batches are denoised before the first one is decoded
            self._begin()
        self._call += 1
        self._now = time.perf_counter()
        self._pace = (self._now - self._since) / (self._call - self._timed)
        if self._call == 1:  # the first call prepares what later ones find: its time says little about theirs
            self._since, self._timed = self._now, 1

    def tile(self, number: int, tiles: int) -> None:
        """The decoder begins with a tile."""
        self._tile = number, tiles
        self.on_tile()

    def image_done(self) -> None:
        """An image is decoded; after the last of a batch the next batch begins."""
        self._finished += 1
        if self._finished == self._first + self._batch and self._finished < self.images:
            self._first = self._finished
            self._begin()

    def description(self) -> str:
        """``denoising``, or with several images which they are: ``image 2 of 4``, ``images 1 to 4 of 8``."""
        if self.images == 1:
            return "denoising" if self._tile is None else "decoding"
        last = self._first + self._batch
        which = f"image {last}" if self._batch == 1 else f"images {self._first + 1} to {last}"
        return f"{which} of {self.images}"

    def numbers(self) -> list[str]:
        """The step, the time that is left and the speed; or the tile."""
        if self._tile is not None:
            stage = [] if self.images == 1 else ["decoding"]
            return [*stage, *([f"tile {self._tile[0]} of {self._tile[1]}"] if self._tile[1] > 1 else [])] or [""]
        step = f"step {math.ceil(self._call * self.steps / self.calls)} of {self.steps}"
        return [step, f"{clock(self._remaining())} left", *([speed(1 / self._pace)] if self._pace else [])]

    def _remaining(self) -> float | None:
        """Seconds of denoising that are left, in all batches."""
        if self._pace is None:
            return None
        batches = math.ceil((self.images - self._first) / self.at_once)
        return max(0.0, (batches * self.calls - self._call) * self._pace - (time.perf_counter() - self._now))


def speed(per_second: float) -> str:
    """UNet calls a second: ``4.06 it/s``, or slower than one ``12.3 s/it``."""
    return f"{three_digits(per_second)} it/s" if per_second >= 1 else f"{three_digits(1 / per_second)} s/it"


def three_digits(value: float) -> str:
    """A number from 0 on with two decimals, or with fewer where it has three digits without them."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
