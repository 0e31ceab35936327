"""Calls of several threads on what is loaded once: one at a time, in the order in which they come."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from sdort.errors import CancelledError, UsageError

_LOOK = 0.05
"""Seconds from one look at a waiting call's event to the next."""


class CallQueue:
    """The turns of a pipeline's calls.

    Its sessions, buffers and adapters serve one call: another one meanwhile would change what the first one computes.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: deque[object] = deque()
        """Those that run or wait; the first one runs."""
        self._runs_in: int | None = None
        """The thread of the call that runs."""
        self._process = os.getpid()

    @contextmanager
    def take(self, cancel: threading.Event | None = None) -> Iterator[None]:
        """A block that no other one of these runs beside.

        Args:
            cancel: ends the waiting once it is set.

        Raises:
            UsageError: the pipeline belongs to another process, or the caller is inside of a block already.
            CancelledError: ``cancel`` was set.
        """
        self._refuse_others()
        call = object()
        with self._changed:
            self._calls.append(call)
            try:
                while self._calls[0] is not call:
                    refuse_cancelled(cancel)
                    self._changed.wait(None if cancel is None else _LOOK)
                refuse_cancelled(cancel)
            except BaseException:
                self._leave(call)
                raise
            self._runs_in = threading.get_ident()
        try:
            yield
        finally:
            with self._changed:
                self._runs_in = None
                self._leave(call)

    def _leave(self, call: object) -> None:
        self._calls.remove(call)
        self._changed.notify_all()

    def _refuse_others(self) -> None:
        # Before the lock is touched, which may have been held when the process was forked.
        if os.getpid() != self._process:
            raise UsageError(
                f"the pipeline was loaded in process {self._process}, from which this one was forked: its sessions do "
                "not work here",
                hint="Load it in the process that uses it, or start processes by spawn: "
                'multiprocessing.get_context("spawn").',
            )
        if self._runs_in == threading.get_ident():
            raise UsageError(
                "the pipeline is called from inside of its own call (on_progress, on_preview)",
                hint="Call it when that has returned, or load another pipeline.",
            )


def refuse_cancelled(cancel: threading.Event | None) -> None:
    """Raise if a call was cancelled.

    Raises:
        CancelledError: it was.
    """
    if cancel is not None and cancel.is_set():
        raise CancelledError("the call was cancelled")
