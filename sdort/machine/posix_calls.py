"""Calls of Linux that sdort makes; :mod:`sdort.machine.windows_calls` has the same functions for Windows."""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import re
import select
import selectors
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes
    from subprocess import Popen

assert sys.platform != "win32"  # type checkers read on only where it is not

LIBRARY_NAME = "lib{}.so"
"""The file of a shared library, by its name."""
LIBRARY_BEGIN = b"\x7fELF"
"""The first bytes of a shared library."""
DEVICE_FILES = True
"""Whether a GPU is a file in ``/dev``."""
READER_GONE = frozenset({errno.EPIPE})
"""Numbers of the error that writing to a pipe gives when nobody reads it any more."""
WAKING = signal.SIGALRM
"""The signal of :func:`wake`."""

_BLOCK = 1 << 16
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h
_SUPERVISOR = Path(__file__).with_name("supervisor.py")


def open_file(path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666, *, links: bool = True) -> int:
    """A descriptor of a file, from which bytes come as they are.

    A named pipe opens at once, a terminal never becomes the process's own, and no program that is started inherits it.

    Args:
        flags: as of :func:`os.open`.
        mode: of a file that is made.
        links: whether ``path`` itself may be a symbolic link.

    Raises:
        OSError: it cannot be opened; ELOOP, if it is a link that is not meant.
    """
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if links else os.O_NOFOLLOW)
    return os.open(path, flags, mode)


def open_lock(path: Path) -> int:
    """A descriptor by which a file or folder that exists is locked, to hold it or to see whether it is held.

    Raises:
        OSError: it is gone, or a link.
    """
    return open_file(path, links=False)


def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock what a descriptor is of, until it is closed, or the process ends, however it ends.

    Args:
        shared: with others who share it, rather than alone.
        wait: until nobody is in the way.

    Raises:
        BlockingIOError: another descriptor has the lock.
        OSError: the file system has no locks.
    """
    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def sync(path: Path) -> None:
    """Bring a file, or a folder's list of its files, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(source: Path, target: Path) -> None:
    """Put a file in the place of another one, which programs may have open."""
    os.replace(source, target)


def exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step; False if the system or file system cannot.

    Raises:
        OSError: one of them cannot be renamed.
    """
    import ctypes

    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    names = os.fsencode(first), os.fsencode(second)
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def c_library() -> ctypes.CDLL:
    """The C library of this process."""
    import ctypes

    return ctypes.CDLL(None)


def read_at(descriptor: int, count: int, offset: int) -> bytes:
    """At most ``count`` bytes of a file from ``offset``."""
    return os.pread(descriptor, count, offset)


def read_into(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer with a file's bytes from ``offset``; returns how many."""
    return os.preadv(descriptor, [buffer], offset)


def write_at(descriptor: int, data: memoryview, offset: int) -> int:
    """Write bytes to a file from ``offset``, as many as go at once; returns how many."""
    return os.pwrite(descriptor, data, offset)


def reserve(descriptor: int, size: int) -> None:
    """Give a file its size, so that a full disk is known at once; where that is unsupported, only its length.

    Raises:
        OSError: there is no room.
    """
    try:
        os.posix_fallocate(descriptor, 0, size)
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", None) not in (None, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.truncate(descriptor, size)


def is_own(status: os.stat_result) -> bool:
    """Whether a file belongs to this user."""
    return status.st_uid == os.getuid()


def why_foreign(status: os.stat_result, path: Path) -> str | None:
    """Why a file may be another account's, who owns it, as the end of a sentence that begins with its name; else None.

    Root counts as trusted.
    """
    return None if status.st_uid in (0, os.geteuid()) else f"belongs to {_account(status.st_uid)}"


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the account {uid}"


def can_others_write(status: os.stat_result) -> bool:
    """Whether accounts besides the owner and root may write a file, or replace the files of a folder."""
    # In a sticky folder, such as /tmp, everybody can make files and nobody can replace another's.
    if status.st_mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode):
        return False
    return bool(status.st_mode & stat.S_IWOTH) or bool(status.st_mode & stat.S_IWGRP and not _is_private(status))


def _is_private(status: os.stat_result) -> bool:
    """Whether the owner is the only member of the group."""
    if status.st_gid == 0:
        return True
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == status.st_gid and owner.pw_name == group.gr_name and {*group.gr_mem} <= {owner.pw_name}


def is_device(name: str) -> bool:
    """Whether a file's name, with whatever suffix, is a device in every folder: none is."""
    return False


def usable_cpus() -> list[int]:
    """The numbers of the processors that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]


def peak_memory() -> int:
    """Bytes of memory that this process has held at most."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def signal_numbers() -> Callable[[float | None], bytes]:
    """Have the numbers of this process's signals written down; what is returned waits for them.

    Returns:
        A function of the seconds to wait, for ever if None, which returns the numbers that came, a byte each.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def wait(seconds: float | None) -> bytes:
        return os.read(reader, 64) if select.select([reader], [], [], seconds)[0] else b""

    return wait


def wake(thread: int) -> None:
    """Have a thread, by its identity, run Python's handler of :data:`WAKING`, also out of a system call."""
    signal.pthread_kill(thread, WAKING)


def after_fork(act: Callable[[], None]) -> None:
    """Call a function in each child that is a copy of this process."""
    os.register_at_fork(after_in_child=act)


@contextmanager
def supervised(command: Sequence[str], environ: Mapping[str, str] | None, merge: bool) -> Iterator[Popen[bytes]]:
    """A program that runs no longer than the block, nor does anything that it starts, however this process ends.

    It has no input, and runs in a session of its own under a supervisor (:mod:`sdort.machine.supervisor`).

    Args:
        environ: environment variables; by default this process's.
        merge: put its stderr into its stdout.
    """
    import subprocess

    lifeline, end = os.pipe()
    try:
        yield subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISOR), str(lifeline), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            env=environ,
            pass_fds=[lifeline],
            start_new_session=True,
        )
    finally:
        os.close(lifeline)
        os.close(end)


def blocks_of(streams: Sequence[IO[bytes]], left: Callable[[], float | None]) -> Iterator[tuple[int, bytes]]:
    """Blocks that come from pipes, each with the pipe's number, until all have ended or no time is left.

    Args:
        left: says how many seconds are; None for no end.
    """
    with selectors.DefaultSelector() as selector:
        for number, stream in enumerate(streams):
            selector.register(stream, selectors.EVENT_READ, number)
        while selector.get_map():
            ready = selector.select(left())
            if not ready:
                return
            for key, _ in ready:
                block = os.read(key.fd, _BLOCK)
                if not block:
                    selector.unregister(key.fileobj)
                else:
                    yield key.data, block


def ask_terminal(question: bytes, whole: re.Pattern[bytes], patience: float) -> bytes:
    """The answer of the terminal that this process has; empty where there is none, or it does not answer.

    Args:
        whole: is found in an answer that has come to its end.
        patience: seconds to wait.
    """
    import termios
    import tty

    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return b""
    try:
        before = termios.tcgetattr(terminal)
        try:
            tty.setcbreak(terminal, termios.TCSANOW)
            os.write(terminal, question)
            return _read_answer(terminal, whole, time.monotonic() + patience)
        finally:
            termios.tcsetattr(terminal, termios.TCSANOW, before)
    except (OSError, termios.error):
        return b""
    finally:
        os.close(terminal)


def _read_answer(terminal: int, whole: re.Pattern[bytes], end: float) -> bytes:
    answer = b""
    while not whole.search(answer) and len(answer) < 4096:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        part = os.read(terminal, 256) if ready else b""
        if not part:
            break
        answer += part
    return answer


def character_size() -> tuple[int, int] | None:
    """Pixels of a character's width and height in the terminal of stderr; None where it does not say."""
    import termios

    try:
        answer = fcntl.ioctl(sys.stderr.fileno(), termios.TIOCGWINSZ, bytes(8))
    except (OSError, ValueError):
        return None
    rows, columns, width, height = struct.unpack("HHHH", answer)
    return (max(1, width // columns), max(1, height // rows)) if rows and columns and width and height else None
