"""What code may do while it reads hostile input: time and memory are bounded, and it stays in its folder."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

SECONDS = 2.0
"""Of the processor's time, for one input of a few KB; instrumented code takes some times as long as other."""
MEMORY = 1 << 30
"""Bytes of address space that an input may take, beyond those that the process has."""

_CHANGES = {
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),  # a link may say anything
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.truncate": ((0, 1),),
}
"""Audit events that change a place: the positions of its path, and of the open folder that it starts from."""
_FORBIDDEN = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
    "ctypes.dlopen",
)


class EscapeError(BaseException):
    """It reads or changes what it has no business with; no subclass of Exception, so that nobody catches it."""


class TooSlowError(BaseException):
    """More than :data:`SECONDS`."""


class _Guard:
    def __init__(self) -> None:
        self.folder: str | None = None
        libraries = [sys.prefix, sys.base_prefix, *filter(None, sys.path), str(Path(__file__).parents[3])]
        self.readable = tuple(sorted({os.path.realpath(place) for place in libraries}))

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "open" and isinstance(args[0], (str, bytes)):
            mode, flags = args[1] or "", args[2] or 0
            writes = bool(set(mode) & set("wax+")) or bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            self._check(args[0], event, changes=writes)
        elif event in _CHANGES:
            for path, start in _CHANGES[event]:
                if isinstance(args[path], (str, bytes)):
                    within = f"/proc/self/fd/{args[start]}" if event != "os.truncate" and args[start] >= 0 else ""
                    self._check(os.path.join(within, os.fsdecode(args[path])), event, changes=True)
        elif event == "ctypes.dlopen" and "/" not in str(args[0]):
            return  # a library of the system's, such as a driver that tells what GPU there is
        elif event.startswith(_FORBIDDEN):
            raise EscapeError(f"{event}{args[:1]!r}")

    def _check(self, path: str | bytes, event: str, *, changes: bool) -> None:
        folder, self.folder = self.folder, None
        try:
            real = os.path.realpath(os.fsdecode(path))
            allowed = (folder or "",) if changes else (folder or "", *self.readable, "/proc", "/dev/null", "/sys")
            if not any(real == place or real.startswith(place + "/") for place in allowed):
                raise EscapeError(f"{event}: {real}")
        except ValueError:  # a name with NUL, which no file has
            return
        finally:
            self.folder = folder


_guard: _Guard | None = None


def watch() -> _Guard:
    """The guard of this process; Python cannot take an audit hook away again, so there is one."""
    global _guard
    if _guard is None:
        _guard = _Guard()
        sys.addaudithook(_guard)
    return _guard


@contextmanager
def bounded(folder: Path) -> Iterator[None]:
    """Run what follows in :data:`SECONDS` and :data:`MEMORY`; let it open and change nothing outside of ``folder``.

    Raises:
        TooSlowError, EscapeError, MemoryError: where it does not keep to that.
    """
    guard = watch()
    before = signal.signal(signal.SIGPROF, _on_alarm)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    guard.folder = os.path.realpath(folder)
    try:
        with _limited_memory():
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        guard.folder = None
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Bound this process's address space to what it has and :data:`MEMORY`."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _on_alarm(signum: int, frame: FrameType | None) -> None:
    raise TooSlowError(f"more than {SECONDS} s of processor time")
