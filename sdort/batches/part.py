"""Parts of a batch: images of one setting that are drawn together, by this process or by a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdort.batches.line_files import Line
from sdort.errors import OF_AN_IMAGE, ProviderError
from sdort.generation.job import Job

MOST_DEATHS = 2
"""Workers that may die of a part before it goes on in halves; one of a single image is then set aside."""


class WorkerDeathError(ProviderError):
    """Workers died while they drew a part."""


OF_A_LINE = (*OF_AN_IMAGE, WorkerDeathError)
"""Errors that may be a line's own; others end the batch."""


@dataclass(frozen=True)
class Wanted:
    """An image that is to be drawn."""

    line: Line
    index: int
    key: str
    share: float
    """Of its line."""


@dataclass(frozen=True)
class Part:
    """A job whose requests have one image each, and which images these are.

    Attributes:
        deaths: how many workers died while they drew it.
    """

    job: Job
    wanted: list[Wanted]
    deaths: int = 0

    def some(self, numbers: Sequence[int]) -> Part:
        """A part with some of the images; one death more is then enough."""
        wanted = [self.wanted[number] for number in numbers]
        return Part(self.job.part(numbers), wanted, min(self.deaths, MOST_DEATHS - 1))

    def halves(self, numbers: Sequence[int]) -> list[Part]:
        """Two parts that have some of the images, at least two, between them."""
        half = len(numbers) // 2
        return [self.some(numbers[:half]), self.some(numbers[half:])]
