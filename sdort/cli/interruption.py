"""Ctrl-C, SIGTERM and SIGHUP in the ``sdort`` command: a sentence, the exit code of the signal, and nothing left over.

While a command runs, the first signal raises KeyboardInterrupt in the main thread, so that every ``with`` and
``finally`` cleans up; before and after, it ends the process. Python runs signal handlers between its own instructions
only, and ONNX Runtime computes for minutes: a thread hears of every signal at once, ends ONNX Runtime's runs, wakes the
main thread until it has raised, and ends the process where people insist. What a process that ends so leaves behind
(hidden folders) the next command for the same output removes (:mod:`sdort.files.staging`).
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from sdort.errors import SIGNAL_WORDS, SdortError
from sdort.machine.os_calls import os_calls

_PATIENCE = 1.0
"""Seconds after which people are told why nothing seems to happen."""

_AGAIN = 0.01
"""Seconds after which the main thread is woken again while the interrupt is due: it had to wait for something whole, a
destructor could not pass it on, or it came just before a system call, which Python then does not break off."""

_WHOLE = ("<frozen importlib", str(Path(__file__).parents[1] / "files" / "staging.py"))
"""Files whose functions are not broken off: C++ of a module that is imported ends the process if Python raises in it,
and a folder is made, put in its place or removed at once. The blocks between are none of these functions."""

_HANDOVER = contextmanager.__code__.co_filename
"""An interrupt that is raised between contextlib's own instructions leaves a generator suspended: what it has made, it
removes when it is collected, and a process that ends collects nothing."""

_exit_code = 1
_running = False
_received: int | None = None
_raised = False
_due = False
"""A signal was received and its KeyboardInterrupt is still to be raised."""


def received() -> int | None:
    """The number of the signal that ends the command, None if there was none."""
    return _received


def install() -> None:
    """Handle signals from now on, but for those that the process was started to ignore (``nohup``, a shell's ``&``)."""
    numbers = os_calls.signal_numbers()
    os_calls.after_fork(_disown)
    threading.Thread(target=_watch, args=(numbers, threading.get_ident()), daemon=True).start()
    sys.unraisablehook = _unraisable
    signal.signal(os_calls.WAKING, _raise)
    atexit.register(_end)  # the first one, so it runs after all others
    for signum in SIGNAL_WORDS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _handle)


@contextmanager
def unwinding() -> Iterator[None]:
    """A block in which a signal raises KeyboardInterrupt, once, rather than end the process."""
    global _running, _received, _raised, _due
    _running, _received, _raised, _due = True, None, False, False
    try:
        yield
    finally:
        _running = _due = False


def leave(signum: int) -> None:
    """End the process at once, with a sentence and the code that shells give to the signal."""
    cursor = b"\x1b[?25h" if os.isatty(2) else b""  # a progress bar hides it
    try:
        os.write(2, cursor + f"Error: {SIGNAL_WORDS[signal.Signals(signum)]}\n".encode())
    finally:
        os._exit(128 + signum)


def _handle(signum: int, frame: FrameType | None) -> None:
    global _received, _due
    if not _running:
        leave(signum)
    if _received is None:
        _received, _due = signum, True
        _raise(signum, frame)


def _raise(signum: int, frame: FrameType | None) -> None:
    """Raise the KeyboardInterrupt that is due, unless in what must not be broken off."""
    global _raised, _due
    if _due and not _is_whole(frame):
        _raised, _due = True, False
        raise KeyboardInterrupt


def _is_whole(frame: FrameType | None) -> bool:
    """Whether ``frame`` is inside of something that is not to be broken off, or goes into or out of a ``with``."""
    while frame is not None and frame.f_code.co_filename == _is_whole.__code__.co_filename:
        frame = frame.f_back  # a signal while an earlier one is handled: its exception would go to where that one came
    if frame is not None and frame.f_code.co_filename == _HANDOVER:
        return True
    while frame is not None:
        if frame.f_code.co_filename.startswith(_WHOLE):
            return True
        frame = frame.f_back
    return False


def _disown() -> None:
    """A forked child's signals and end are its own."""
    signal.set_wakeup_fd(-1)
    atexit.unregister(_end)


def exit_with(code: int) -> NoReturn:
    """End the process in order, with this exit code."""
    global _exit_code
    _exit_code = code
    sys.exit(code)


def _end() -> None:
    """End the process when Python has joined its threads and called what was registered, without tearing itself down.

    Libraries have threads of their own (ONNX Runtime, OpenMP, GPU drivers) that may still run and hold what C++'s
    destructors of static objects free: processes ended in SIGSEGV, and with another exit code than the command's.
    The kernel frees all of it in any case.
    """
    for signum in SIGNAL_WORDS:
        signal.signal(signum, signal.SIG_IGN)
    code = _exit_code
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception as error:  # as sdort.cli.streams raises it
            code = code or getattr(error, "exit_code", 1)
            if isinstance(error, SdortError):
                _tell(f"Error: {error}")
    os._exit(code)


def _unraisable(caught: Any) -> None:
    """An exception that its place cannot pass on (a destructor, a callback): the interrupt is raised elsewhere."""
    global _due
    if _received is not None and issubclass(caught.exc_type, KeyboardInterrupt):
        _due = _running
    else:
        sys.__unraisablehook__(caught)


def _watch(numbers: Callable[[float | None], bytes], main_thread: int) -> None:
    count, since, told = 0, 0.0, False
    while True:
        if came := numbers(_AGAIN if count else None):
            for signum in came:
                # A server has handlers of its own while it runs, and ends in order.
                if signum in SIGNAL_WORDS and signal.getsignal(signum) is _handle:
                    count += 1
                    since = since or time.monotonic()
                    _react(count, signum)
        elif _received is None or _due:
            _stop_runs()  # one may have begun since
            os_calls.wake(main_thread)
            if not told and not _raised and time.monotonic() >= since + _PATIENCE:
                told = True
                _tell("stopping; Ctrl-C again ends it at once")


def _react(count: int, signum: int) -> None:
    """End runs at the first signal and the process at the second, or at the third where the command cleans up."""
    if count == 1:
        _stop_runs()
    elif count == 2 and _raised:
        _tell("cleaning up; Ctrl-C once more ends it at once")
    else:
        leave(signum)


def _stop_runs() -> None:
    stopping = sys.modules.get("sdort.runtime.opener")  # not imported: nothing runs
    stop_all = getattr(stopping, "stop_all", None)  # half imported: likewise
    if stop_all:
        stop_all()


def _tell(message: str) -> None:
    with suppress(OSError):  # the terminal may have gone
        os.write(2, f"{message}\n".encode())
