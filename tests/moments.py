"""Signals at a moment that is counted, not timed: a process hits itself when it makes its n-th call.

The moments of a run are the calls of functions in its main thread. However slow a machine is and whatever else it does,
the same share of them is the same share of the work.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from types import FrameType
from typing import Any


class Clock:
    """Counts the calls of this thread from now on."""

    def __init__(self, strike_at: int | None = None, how: signal.Signals = signal.SIGKILL) -> None:
        self.calls = 0
        self.strike_at = strike_at
        self.how = how

    def start(self) -> None:
        sys.setprofile(self._call)

    def _call(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.calls += 1
            if self.calls == self.strike_at:
                os.kill(os.getpid(), self.how)


def spread(calls: int, count: int, seed: int) -> list[int]:
    """Moments over a run of so many calls, each somewhere in its part of it."""
    draw = random.Random(seed)
    return [1 + int((index + draw.random()) / count * calls) for index in range(count)]
