"""Signals at a moment of a process's own work: when it has used so much of the processor's time.

However busy the machine is, and however long the process waits for others, the same share of that time is about the
same share of the work. What a test says may not hang on the share: each moment is as good as another, and early ones
come before the end in any case.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

KILLED = -signal.SIGPROF
"""The exit status of a process that :func:`strike` ended; no code of its own runs then, as after SIGKILL."""

KILLED_BY_CLOCK = -signal.SIGALRM
"""The same with ``ITIMER_REAL``."""

_HALVINGS = 10
"""Rounds with one moment; the last of them is a 512th of it."""

_SIGNALS = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}


def strike(moment: float, how: signal.Signals = signal.SIGKILL, timer: int = signal.ITIMER_PROF) -> None:
    """Send this process a signal when it has used so many more seconds of the processor, or of the clock."""
    # Left alone, the timer's signal ends a process on the spot, in the middle of whatever it does.
    action = signal.SIG_DFL if how == signal.SIGKILL else lambda *_: os.kill(os.getpid(), how)
    signal.signal(_SIGNALS[timer], action)
    signal.setitimer(timer, moment)


class Strikes:
    """Moments over the work of a process, each somewhere in its part of it, and each repeated until it strikes.

    Work that is measured once can be done in less time: a moment that came after the end is repeated with half of it.
    After each round its user sets ``struck``::

        for moment in (strikes := Strikes(seconds, count, seed)):
            strikes.struck = run(moment) == KILLED
    """

    struck = False

    def __init__(self, seconds: float, count: int, seed: int) -> None:
        draw = random.Random(seed)
        self._moments = [(index + draw.uniform(0.01, 1)) / count * seconds for index in range(count)]

    def __iter__(self) -> Iterator[float]:
        for first in self._moments:
            for halvings in range(_HALVINGS):
                self.struck = False
                yield first / 2**halvings
                if self.struck:
                    break
            else:
                raise AssertionError(f"the work ended {_HALVINGS} times before its moment, {first} s and less")
