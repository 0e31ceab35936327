"""Whether processes run that are nobody's child here."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path


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
