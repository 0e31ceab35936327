"""The rule by which images of the same settings are drawn together; the queue follows it, and what simulates one."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchRule:
    """When the images of the oldest request are drawn, and with how many others."""

    numbers: Collection[int]
    """Of images that are drawn together, 1 among them."""
    wait: float
    """Seconds that an image waits for others to be drawn with."""

    @property
    def most(self) -> int:
        """Images that are drawn together at most."""
        return max(self.numbers)

    def number(self, alike: int) -> int:
        """The number that is drawn together of ``alike`` images, which is 1 or more."""
        return max(number for number in self.numbers if number <= alike)

    def due(self, begun: float, alike: int) -> float:
        """The time at which they are drawn, by the clock of ``begun``: at once if there are enough.

        Args:
            begun: the time at which the oldest one came.
            alike: how many images share calls with it, itself included.
        """
        return -math.inf if self.number(alike) == self.most else begun + self.wait
