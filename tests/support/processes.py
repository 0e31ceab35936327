"""Processes that tests start: how they begin, and whether they still run where they are nobody's child."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from pathlib import Path

from sdort.errors import SIGNAL_WORDS


def heed() -> None:
    """Handle signals as what a terminal starts does: before a child's program begins (``preexec_fn``), or in a fork.

    Under nohup, in a shell's background and below some services the suite is started deaf to some, and what it starts
    inherits that.
    """
    for signum in SIGNAL_WORDS:
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNAL_WORDS)


def is_running(pid: int) -> bool:
    """Whether there is a process of this id; one that has ended and was not waited for does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pids: Iterable[int]) -> None:
    """Return when none of the processes runs."""
    for pid in pids:
        while is_running(pid):
            time.sleep(0.005)
