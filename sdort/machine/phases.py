"""Where the seconds of a command go: parts of the code that say their names to whoever counts.

``sdort run -v`` prints them, and ``scripts/cold_start.py`` takes medians of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Phases:
    """Seconds by phase, in the order in which they began. A phase inside of another one counts by itself alone, so that
    all of them add up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside: list[str] = []
        self._since = 0.0

    def begin(self, name: str) -> None:
        """Count for ``name`` from now on."""
        self._count()
        self.seconds.setdefault(name, 0.0)
        self._inside.append(name)

    def end(self) -> None:
        """Count for the phase around the one that ends."""
        self._count()
        self._inside.pop()

    def _count(self) -> None:
        now = time.perf_counter()
        if self._inside:
            self.seconds[self._inside[-1]] += now - self._since
        self._since = now


_counting: ContextVar[Phases | None] = ContextVar("counting", default=None)
"""Of the thread that counts: what others do meanwhile is that one's waiting."""


@contextmanager
def counted(phases: Phases | None = None) -> Iterator[Phases]:
    """A block whose phases are counted, beside those of earlier blocks that ``phases`` has."""
    phases = phases or Phases()
    token = _counting.set(phases)
    try:
        yield phases
    finally:
        _counting.reset(token)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """A phase, where somebody counts."""
    phases = _counting.get()
    if phases is None:
        yield
        return
    phases.begin(name)
    try:
        yield
    finally:
        phases.end()
