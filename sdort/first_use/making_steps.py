"""The steps in which a checkpoint is made ready, with an estimate of the seconds that are left.

Seconds of steps are estimated from the number of weights and their bytes, as they were measured, and scaled by how long
the steps until now really took: another machine is another factor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sdort.console import following, progress
from sdort.exporter.command import TRACE_STEP
from sdort.optimizer.command import FUSING, WRITING

TRACE, FUSE = 0.07, 0.012
"""Seconds a tensor, on two cores of a server of 2023: SD 1.5's UNet has 686, SDXL's 1,680."""
WRITE = 4e-9
"""Seconds a byte."""
_START = 15.0
"""Seconds of importing torch and diffusers, where something is traced."""
_SURE = 5.0
"""Estimated seconds of finished steps from which on they tell how fast this machine is."""


def estimate(tensors: Mapping[str, int], new: list[str], nbytes: int) -> dict[str, float]:
    """Step, as :func:`sdort.console.progress` describes it -> its seconds.

    Args:
        tensors: component -> the number of its weights.
        new: components whose architecture is traced first.
        nbytes: what is written.
    """
    steps = {TRACE_STEP.format(name): _START * (name == new[0]) + TRACE * tensors[name] for name in new}
    for name, number in tensors.items():
        steps[FUSING.format(name)] = FUSE * number
        steps[WRITING.format(name)] = WRITE * nbytes * number / sum(tensors.values())
    return steps


class Steps:
    """Progress of steps whose seconds are estimated."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = dict(seconds)
        self._start = time.monotonic()
        self._finished = 0.0
        """Estimated seconds of the steps before this one."""
        self.step = ""
        self._share = 0.0
        self._began = self._start
        self.done = 0.0
        """Estimated seconds of all that is done."""

    @property
    def total(self) -> float:
        """Estimated seconds of all steps."""
        return sum(self._seconds.values())

    def follow(self, description: str, done: float, total: float | None) -> None:
        """Take what :func:`sdort.console.progress` tells; what is none of the steps is left to its own."""
        if description not in self._seconds:
            return
        if description != self.step:
            self._finished += self._seconds.get(self.step, 0.0)
            self.step, self._began = description, time.monotonic()
        self._share = min(done / total, 1.0) if total else 0.0
        self.done = self._finished + self._share * self._seconds[description]

    def remaining(self) -> float | None:
        """Seconds to go, at the speed until now; None for those that cannot be known."""
        slowness = 1.0
        if self._finished >= _SURE:
            slowness = (self._began - self._start) / self._finished
        here = self._seconds.get(self.step, 0.0)
        spent = (time.monotonic() - self._began) / slowness if self.step else 0.0
        ahead = self.total - self._finished - here
        return slowness * (ahead + max(here * (1 - self._share) if self._share else here - spent, 0.0))


@contextmanager
def shown(name: str, steps: Steps) -> Iterator[None]:
    """A block whose steps are shown as one bar, with the seconds that are left."""
    told = 0.0

    def description() -> str:
        return f"making {name} ready: {steps.step}" if steps.step else f"making {name} ready"

    with progress(description, steps.total, remaining=steps.remaining) as advance:

        def follow(text: str, done: float, total: float | None) -> None:
            nonlocal told
            steps.follow(text, done, total)
            advance(steps.done - told)
            told = steps.done

        with following(follow, instead=True):
            yield
