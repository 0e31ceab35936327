"""Calls of Windows that sdort makes; :mod:`sdort.machine.posix_calls` has the same functions and describes them.

No machine with Windows has run this. ``tests/project/test_windows.py`` runs it on Linux, on a stand-in of the kernel's
functions.
"""

from __future__ import annotations

import ctypes
import errno
import msvcrt
import os
import queue
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

assert sys.platform == "win32"  # type checkers read on only where it is

LIBRARY_NAME = "{}.dll"
LIBRARY_BEGIN = b"MZ"
DEVICE_FILES = False
READER_GONE = frozenset({errno.EPIPE, errno.EINVAL})
WAKING = signal.SIGABRT
"""Python's own handler of it does not keep ``abort`` from ending the process."""

_READ, _WRITE = 0x80000000, 0x40000000  # winnt.h: GENERIC_READ, GENERIC_WRITE
_SHARE_ALL = 7  # FILE_SHARE_READ, FILE_SHARE_WRITE, FILE_SHARE_DELETE: it may be renamed and removed while it is open
_NEW, _TRUNCATED, _EXISTING, _EXISTING_OR_NEW = 1, 2, 3, 4  # fileapi.h: CREATE_NEW, CREATE_ALWAYS, OPEN_EXISTING, ...
_GONE_WHEN_CLOSED = 0x04000000  # FILE_FLAG_DELETE_ON_CLOSE
_BLOCK = 1 << 16
_LOOK_S = 0.2
"""Seconds after which a wait is broken off for Ctrl-C."""
_INVALID = ctypes.c_void_p(-1).value
_FAIL_AT_ONCE, _ALONE = 1, 2  # minwinbase.h: LOCKFILE_FAIL_IMMEDIATELY, LOCKFILE_EXCLUSIVE_LOCK
_LOCK_VIOLATION = 33  # winerror.h
_LOCKED_BYTE = 1 << 62
"""Offset of the byte that is locked: no file has it, and what is locked cannot be read."""
_DEVICE = re.compile("con|prn|aux|nul|(com|lpt)[1-9]", re.IGNORECASE)
"""https://learn.microsoft.com/en-us/windows/win32/fileio/naming-a-file"""
_JOB_LIMITS, _KILL_WHEN_CLOSED = 9, 0x2000  # winnt.h: JobObjectExtendedLimitInformation and a limit of it
_LIMITS_BYTES, _FLAGS_OFFSET = 144, 16  # of JOBOBJECT_EXTENDED_LIMIT_INFORMATION
_MAY_BE_IN_JOB = 0x0101  # PROCESS_SET_QUOTA, PROCESS_TERMINATE

_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
for _name in ("CreateFileW", "CreateJobObjectW", "OpenProcess"):
    getattr(_kernel, _name).restype = ctypes.c_void_p

_one_at_a_time = threading.Lock()
"""Windows' files have one position, which threads that read and write at offsets would share."""


def open_file(path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666, *, links: bool = True) -> int:
    """As of POSIX; others may rename and remove the file meanwhile, as there."""
    if not links and os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if os.path.isdir(path):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return _opened(path, flags)


def _opened(path: str | Path, flags: int, attributes: int = 0) -> int:
    access = _READ if not flags & os.O_WRONLY else 0
    access |= _WRITE if flags & (os.O_WRONLY | os.O_RDWR) else 0
    made = _NEW if flags & os.O_EXCL else _TRUNCATED if flags & os.O_TRUNC else _EXISTING_OR_NEW
    create = made if flags & os.O_CREAT else _EXISTING
    handle = _kernel.CreateFileW(os.path.abspath(path), access, _SHARE_ALL, None, create, attributes, None)
    if handle == _INVALID:
        error = ctypes.WinError(ctypes.get_last_error())
        error.filename = str(path)
        raise error
    return msvcrt.open_osfhandle(handle, flags | os.O_BINARY | os.O_NOINHERIT)


def open_lock(path: Path) -> int:
    """As of POSIX; a folder cannot be locked, so a file beside it is, which goes with who made it."""
    if os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if not os.path.isdir(path):
        return _opened(path, os.O_RDWR)
    try:
        return _opened(f"{path}.lock", os.O_RDWR)
    except FileNotFoundError:
        return _opened(f"{path}.lock", os.O_RDWR | os.O_CREAT, _GONE_WHEN_CLOSED)


def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> None:
    """As of POSIX."""
    flags = (0 if shared else _ALONE) | (0 if wait else _FAIL_AT_ONCE)
    place = ctypes.create_string_buffer(struct.pack("QQQQ", 0, 0, _LOCKED_BYTE, 0), 32)  # OVERLAPPED
    handle = ctypes.c_void_p(msvcrt.get_osfhandle(descriptor))
    if not _kernel.LockFileEx(handle, flags, 0, 1, 0, place):
        code = ctypes.get_last_error()
        if code == _LOCK_VIOLATION:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        raise ctypes.WinError(code)


def sync(path: Path) -> None:
    """As of POSIX; Windows writes down a folder's list of files by itself."""
    if not os.path.isdir(path):
        descriptor = open_file(path, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace(source: Path, target: Path) -> None:
    """As of POSIX; a library that a program has loaded cannot be replaced, but it can have another name."""
    try:
        os.replace(source, target)
    except PermissionError:
        aside = source.with_name(f"{source.name}.old")
        os.replace(target, aside)
        try:
            os.replace(source, target)
        except OSError:
            os.replace(aside, target)
            raise


def exchange(first: Path, second: Path) -> bool:
    """False: Windows cannot."""
    return False


def c_library() -> ctypes.CDLL:
    """As of POSIX; of several, the one that every Windows has."""
    return ctypes.CDLL("msvcrt")


def read_at(descriptor: int, count: int, offset: int) -> bytes:
    """As of POSIX."""
    with _one_at_a_time:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, count)


def read_into(descriptor: int, buffer: memoryview, offset: int) -> int:
    """As of POSIX."""
    data = read_at(descriptor, len(buffer), offset)
    buffer[: len(data)] = data
    return len(data)


def write_at(descriptor: int, data: memoryview, offset: int) -> int:
    """As of POSIX."""
    with _one_at_a_time:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, data)


def reserve(descriptor: int, size: int) -> None:
    """As of POSIX: Windows gives a file the room of its length."""
    os.truncate(descriptor, size)


def is_own(status: os.stat_result) -> bool:
    """True: files are seen in folders that Windows gives to one user each."""
    return True


def why_foreign(status: os.stat_result, path: Path) -> str | None:
    """As of POSIX, by the place: a user's profile is writable for that user, the system and administrators alone."""
    home, place = (Path(os.path.realpath(each)) for each in (os.path.expanduser("~"), path))
    if place.is_relative_to(home) or place in home.parents:
        return None
    return f"is outside of your profile, {home}, and Windows' lists of who may write it are not read"


def can_others_write(status: os.stat_result) -> bool:
    """False: :func:`why_foreign` has judged the place."""
    return False


def is_device(name: str) -> bool:
    """As of POSIX."""
    return _DEVICE.fullmatch(name.partition(".")[0]) is not None


def usable_cpus() -> list[int]:
    """As of POSIX."""
    import psutil

    return sorted(psutil.Process().cpu_affinity())


def peak_memory() -> int:
    """As of POSIX."""
    import psutil

    return int(psutil.Process().memory_info().peak_wset)


def signal_numbers() -> Callable[[float | None], bytes]:
    """As of POSIX; Windows waits for sockets alone."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def wait(seconds: float | None, writer: socket.socket = writer) -> bytes:  # which stays open as long as this
        return reader.recv(64) if select.select([reader], [], [], seconds)[0] else b""

    return wait


def wake(thread: int) -> None:
    """As of POSIX for the main thread, once a system call that it is in has ended."""
    import _thread

    _thread.interrupt_main(WAKING)


def after_fork(act: Callable[[], None]) -> None:
    """Nothing: Windows copies no processes."""


@contextmanager
def supervised(
    command: Sequence[str], environ: Mapping[str, str] | None, merge: bool
) -> Iterator[subprocess.Popen[bytes]]:
    """As of POSIX: the program is in a job, which Windows ends when its last handle is closed, that is with sdort."""
    job = _new_job()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            env=environ,
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,  # Ctrl-C is for sdort, which ends it
        )
        handle = ctypes.c_void_p(_kernel.OpenProcess(_MAY_BE_IN_JOB, False, process.pid))
        _kernel.AssignProcessToJobObject(job, handle)
        _kernel.CloseHandle(handle)
        yield process
    finally:
        _kernel.CloseHandle(job)


def _new_job() -> ctypes.c_void_p:
    job = ctypes.c_void_p(_kernel.CreateJobObjectW(None, None))
    limits = ctypes.create_string_buffer(_LIMITS_BYTES)
    struct.pack_into("I", limits, _FLAGS_OFFSET, _KILL_WHEN_CLOSED)
    _kernel.SetInformationJobObject(job, _JOB_LIMITS, limits, _LIMITS_BYTES)
    return job


def blocks_of(streams: Sequence[IO[bytes]], left: Callable[[], float | None]) -> Iterator[tuple[int, bytes]]:
    """As of POSIX; a thread waits for each pipe."""
    read: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()

    def pass_on(number: int, descriptor: int) -> None:
        while block := os.read(descriptor, _BLOCK):
            read.put((number, block))
        read.put((number, b""))

    for number, stream in enumerate(streams):
        threading.Thread(target=pass_on, args=(number, stream.fileno()), daemon=True).start()
    ended = 0
    while ended < len(streams):
        seconds = left()
        try:
            number, block = read.get(timeout=_LOOK_S if seconds is None else min(seconds, _LOOK_S))
        except queue.Empty:
            if seconds is not None and seconds <= _LOOK_S:
                return
            continue
        if block:
            yield number, block
        else:
            ended += 1


def ask_terminal(question: bytes, whole: re.Pattern[bytes], patience: float) -> bytes:
    """Empty: Windows' terminals are not asked."""
    return b""


def character_size() -> tuple[int, int] | None:
    """None: Windows does not say."""
    return None
