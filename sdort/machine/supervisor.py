"""The process between sdort and a program that it starts: it ends that program, and all that this started, with sdort.

``python -I -S supervisor.py LIFELINE COMMAND...``. LIFELINE is the reading end of a pipe whose other end only sdort
holds: however sdort ends, also by SIGKILL, the kernel closes it. A process group would not do: ninja gives each
compiler a group of its own. Orphans of a subreaper become its children, so killing children until there are none
reaches all of them. It has a name of its own: ``killall -9 python`` ends sdort, not what cleans up after it. It imports
nothing of sdort's and little of Python's, to be there at once.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

assert sys.platform != "win32"  # windows_calls.py has a job in its place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

NAME = b"sdort-programs"
"""Name of the process, of at most 15 bytes."""
_SET_DUMPABLE, _SET_NAME, _SET_CHILD_SUBREAPER = 4, 15, 36  # linux/prctl.h
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_NOT_STARTED = 127
"""The exit code of shells for a program that cannot be started."""


def main(lifeline: int, command: list[str]) -> NoReturn:
    """Run ``command`` and end as it does, or when the lifeline does."""
    os.set_inheritable(lifeline, False)
    _prctl(_SET_NAME, NAME)
    _prctl(_SET_CHILD_SUBREAPER, 1)
    wakeups = _wakeups()
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setsigdef=[*_ENDING, signal.SIGCHLD, signal.SIGPIPE])
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201 - as the program's own
        os._exit(_NOT_STARTED)
    while True:
        ready, _, _ = select.select([lifeline, wakeups], [], [])
        if lifeline in ready or _ENDING & {*os.read(wakeups, 1024)}:
            _end_all()
            os._exit(128 + signal.SIGKILL)
        _leave_with(child)


def _wakeups() -> int:
    """A descriptor from which the numbers of signals are read: of those that end it, and of a child's end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for signum in (*_ENDING, signal.SIGCHLD):
        signal.signal(signum, lambda *_: None)
    return reader


def _leave_with(child: int) -> None:
    """Reap what has ended; if ``child`` is among it, end as it did. What it left running on purpose goes on."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            if code >= 0:
                os._exit(code)
            _prctl(_SET_DUMPABLE, 0)  # the core is the program's, if any
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)


def _end_all() -> None:
    """Kill children until there are none: those of a killed one become ours."""
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Process ids of the children, those that have ended and were not waited for too."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = file.read().rpartition(b")")[2].split()[1]
            except OSError:  # it has ended
                continue
            if int(parent) == os.getpid():
                found.append(int(name))
    return found


def _prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
