"""Components of a pipeline that run together, and how often sessions of them are opened while images are generated.

With ``--memory low`` the sessions of one group are open at a time: those of the group before close when another one
begins. The UNet, which is larger than all else together, then has the memory for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sdort.families.component_names import CONTROLS, DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER
from sdort.families.known_families import DENOISERS
from sdort.machine.phases import phase

TEXTS = "texts"
"""Text encoders."""
IMAGE_PROMPTS = "image prompts"
"""The image encoder of IP-Adapters, which may be as large as a UNet."""
DENOISING = "denoising"
"""The UNet, ControlNets and T2I-Adapters."""
PICTURES = "pictures"
"""Decoder and encoder, upscalers and the safety checker: between two passes, and from image to image, they take turns.
"""
_GROUPS = {
    **dict.fromkeys(DENOISERS, DENOISING),
    **dict.fromkeys(CONTROLS, DENOISING),
    IMAGE_ENCODER: IMAGE_PROMPTS,
    **dict.fromkeys((DECODER, ENCODER, SAFETY_CHECKER), PICTURES),
}


def group_of(component: str) -> str:
    """The group of a component; components that are not known are text encoders."""
    return _GROUPS.get(component, TEXTS)


@dataclass(frozen=True)
class Opened:
    """A model that was opened while images were generated."""

    component: str
    """The part of the pipeline, such as ``unet``."""
    times: int
    """How often."""
    seconds: float
    """Of all times together."""


def joined_openings(parts: Sequence[Sequence[Opened]]) -> list[Opened]:
    """Openings of several calls, one after the other, as those of one."""
    found: dict[str, Opened] = {}
    for each in (opened for part in parts for opened in part):
        before = found.get(each.component, Opened(each.component, 0, 0.0))
        seconds = round(before.seconds + each.seconds, 4)
        found[each.component] = Opened(each.component, before.times + each.times, seconds)
    return list(found.values())


class Openings:
    """The sessions that were opened since the last :meth:`forget`."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, float]] = {}
        self._seconds = 0.0

    @contextmanager
    def of(self, component: str) -> Iterator[None]:
        """A block that opens a session of a component."""
        with self._timed(component, component):
            yield
        times, seconds = self._found[component]
        self._found[component] = times + 1, seconds

    @contextmanager
    def step_of(self, component: str) -> Iterator[None]:
        """A block that opens the step of a component of which :meth:`of` has opened what runs before."""
        with self._timed(component, f"{component}'s step"):
            yield

    @contextmanager
    def _timed(self, component: str, what: str) -> Iterator[None]:
        started = time.perf_counter()
        with phase(f"opening of {what}"):
            yield
        seconds = time.perf_counter() - started
        times, before = self._found.get(component, (0, 0.0))
        self._found[component] = times, before + seconds
        self._seconds += seconds

    def clock(self) -> float:
        """Seconds of a clock that stands still while sessions are opened."""
        return time.perf_counter() - self._seconds

    def forget(self) -> None:
        """Begin anew."""
        self._found.clear()

    @property
    def found(self) -> list[Opened]:
        """Each component, in the order in which they were first opened."""
        return [Opened(name, times, round(seconds, 4)) for name, (times, seconds) in self._found.items()]


class OneGroup:
    """Lets the sessions of one group be open at a time, in all pipelines that have this object."""

    def __init__(self) -> None:
        self._now: tuple[object, str] | None = None
        self._close: Callable[[], None] = lambda: None
        self.before_closing: Callable[[], None] = lambda: None
        """Called while the sessions of a group are still open."""

    def begin(self, pipeline: object, group: str, close: Callable[[], None]) -> None:
        """Close the sessions of the group that is open, unless it is this one.

        Args:
            close: gives back the memory of the group that begins.
        """
        if self._now != (pipeline, group):
            self.end()
            self._now, self._close = (pipeline, group), close

    def end(self) -> None:
        """Close the sessions of the group that is open."""
        if self._now is None:
            return
        self.before_closing()
        close, self._now, self._close = self._close, None, lambda: None
        close()
