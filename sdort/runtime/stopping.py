"""Ending what ONNX Runtime is at: it computes outside of Python, for minutes, where no exception reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_stops: list[Callable[[], None]] = []


@contextmanager
def stoppable(stop: Callable[[], None]) -> Iterator[None]:
    """A block that ``stop``, called in another thread, lets fail soon."""
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)


def stop_all() -> None:
    """End every run and every loading that goes on in this process; each raises in its own thread."""
    for stop in list(_stops):
        stop()
