"""Makes a Python process on Linux, at its start, one in which sdort finds what Windows has and no more.

Only sdort's own modules are concerned: the standard library and other packages have Linux, as they need. For sdort,
names and modules are absent, ``sdort.machine.windows_calls`` is imported for ``posix_calls``, and a stand-in for
Windows' kernel does with Linux' calls what it asks. A file that is open or mapped cannot be renamed, replaced or
removed, unless it was opened so that it can: for all.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import importlib
import json
import os
import shutil
import signal
import struct
import sys
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

LACKING = {name: set(names) for name, names in json.loads(os.environ.get("SDORT_TEST_LACKING", "{}")).items()}
MODULES = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "posix", "syslog", "readline"}
NOT_FOUND, DENIED, VIOLATION, EXISTS = 2, 5, 33, 80  # winerror.h
_ERRNO = {NOT_FOUND: errno.ENOENT, DENIED: errno.EACCES, EXISTS: errno.EEXIST}
_open, _os_close, _unlink = os.open, os.close, os.unlink


def _is_sdorts(name: object) -> bool:
    return isinstance(name, str) and (name == "sdort" or name.startswith("sdort."))


STATE = types.SimpleNamespace(last_error=0, in_job=None)
SHARED: set[int] = set()
"""Descriptors of files that may be renamed while they are open."""
GOING: dict[int, str] = {}
"""Descriptors of files that go when they are closed."""
JOB, INVALID = 1000, ctypes.c_void_p(-1).value


# kernel32.dll, as far as sdort calls it. Handles are descriptors.


def _create_file(
    path: str, access: int, share: int, security: None, creation: int, attributes: int, template: None
) -> int | None:
    assert (os.path.isabs(path), share, security, template) == (True, 7, None, None)
    flags = {0x80000000: os.O_RDONLY, 0x40000000: os.O_WRONLY, 0xC0000000: os.O_RDWR}[access]
    flags |= {1: os.O_CREAT | os.O_EXCL, 2: os.O_CREAT | os.O_TRUNC, 3: 0, 4: os.O_CREAT}[creation]
    try:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "a folder")
        descriptor = _open(path, flags | os.O_CLOEXEC, 0o666)
    except OSError as error:
        STATE.last_error = {errno.ENOENT: NOT_FOUND, errno.EEXIST: EXISTS}.get(error.errno or 0, DENIED)
        return INVALID
    SHARED.add(descriptor)
    if attributes & 0x04000000:
        GOING[descriptor] = path
    return descriptor


def _lock_file(handle: ctypes.c_void_p, flags: int, reserved: int, low: int, high: int, place: Any) -> int:
    assert (reserved, low, high, len(place)) == (0, 1, 0, 32)
    assert struct.unpack("QQQQ", place.raw) == (0, 0, 1 << 62, 0)
    kind = (fcntl.LOCK_EX if flags & 2 else fcntl.LOCK_SH) | (fcntl.LOCK_NB if flags & 1 else 0)
    try:
        fcntl.flock(handle.value or 0, kind)
    except BlockingIOError:
        STATE.last_error = VIOLATION
        return 0
    return 1


def _set_limits(job: ctypes.c_void_p, kind: int, limits: Any, size: int) -> int:
    assert (job.value, kind, size, len(limits)) == (JOB, 9, 144, 144)
    assert struct.unpack_from("I", limits, 16) == (0x2000,)
    return 1


def _assign(job: ctypes.c_void_p, process: ctypes.c_void_p) -> int:
    assert job.value == JOB
    STATE.in_job = process.value
    return 1


def _close_handle(handle: ctypes.c_void_p) -> int:
    if handle.value == JOB and STATE.in_job:
        with suppress(ProcessLookupError):
            os.kill(STATE.in_job, signal.SIGKILL)
        STATE.in_job = None
    return 1


def _kernel(name: str, use_last_error: bool) -> types.SimpleNamespace:
    assert (name, use_last_error) == ("kernel32", True)
    # Functions, and not built-in ones: their results' types can be set, as those of ctypes.
    return types.SimpleNamespace(
        CreateFileW=_create_file,
        LockFileEx=_lock_file,
        CreateJobObjectW=lambda security, name: JOB,
        SetInformationJobObject=_set_limits,
        OpenProcess=lambda access, inherited, pid: pid,
        AssignProcessToJobObject=_assign,
        CloseHandle=_close_handle,
    )


def _close(descriptor: int) -> None:
    path = GOING.pop(descriptor, None)
    SHARED.discard(descriptor)
    if path is not None and os.path.exists(path):
        _unlink(path)
    _os_close(descriptor)


def _error(code: int) -> OSError:
    return OSError(_ERRNO.get(code, errno.EINVAL), f"error {code} of Windows")


def _library(name: str, *arguments: Any, **options: Any) -> ctypes.CDLL:
    if not isinstance(name, str):
        raise TypeError("Windows has no library of all libraries")
    return ctypes.CDLL(None if name == "msvcrt" else name, *arguments, **options)


def _open_handle(handle: int, flags: int) -> int:
    if flags & os.O_APPEND:
        fcntl.fcntl(handle, fcntl.F_SETFL, os.O_APPEND)
    return handle


EXTRA: dict[str, dict[str, Any]] = {
    "os": {"O_BINARY": 0, "O_NOINHERIT": 0, "close": _close},
    "subprocess": {"CREATE_NEW_PROCESS_GROUP": 0},
    "ctypes": {
        "CDLL": _library,
        "WinDLL": _kernel,
        "WinError": _error,
        "get_last_error": lambda: STATE.last_error,
    },
}
MSVCRT = types.SimpleNamespace(open_osfhandle=_open_handle, get_osfhandle=lambda descriptor: descriptor)


class Module(types.ModuleType):
    """A module that is another one for sdort."""

    def __getattribute__(self, name: str) -> Any:
        caller = sys._getframe().f_back  # none while the interpreter ends
        if caller and _is_sdorts(caller.f_globals.get("__name__")):
            module = types.ModuleType.__getattribute__(self, "__name__")
            if name in EXTRA.get(module, ()):
                return EXTRA[module][name]
            if name in LACKING.get(module, ()):
                raise AttributeError(f"Windows' {module} has no {name}")
        return types.ModuleType.__getattribute__(self, name)


_import = builtins.__import__


def _imported(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    if not level and _is_sdorts((globals or {}).get("__name__")):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}, as on Windows", name=name)
        if name == "msvcrt":
            return MSVCRT
        if name == "sdort.machine.os_calls" and name not in sys.modules:
            system, sys.platform = sys.platform, "win32"
            try:
                importlib.import_module(name)
            finally:
                sys.platform = system
    return _import(name, globals, locals, fromlist, level)


def _busy(path: str | os.PathLike[str]) -> bool:
    """Whether Windows refuses that a path goes: this process has it open or mapped, or a file in it."""
    path = os.path.realpath(os.fspath(path))
    within = f"{path}/" if os.path.isdir(path) else path
    for name in os.listdir("/proc/self/fd"):
        if int(name) in SHARED and within == path:
            continue
        try:
            place = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if place == path or (within != path and place.startswith(within)):
            return True
    with open("/proc/self/maps", "rb") as maps:
        mapped = [line.split(maxsplit=5)[5].decode().strip() for line in maps if len(line.split(maxsplit=5)) > 5]
    return any(place == path or (within != path and place.startswith(within)) for place in mapped)


def _guarded(name: str) -> None:
    function = getattr(os, name)

    def call(*paths: Any, **options: Any) -> None:
        if not options:
            for path in paths:
                if isinstance(path, (str, os.PathLike)) and os.path.lexists(path) and _busy(path):
                    raise PermissionError(errno.EACCES, "another program uses it", str(path))
        function(*paths, **options)

    setattr(os, name, call)


if LACKING:
    import psutil

    def _memory_info(self: psutil.Process, function: Any = psutil.Process.memory_info) -> types.SimpleNamespace:
        info = function(self)
        return types.SimpleNamespace(**info._asdict(), peak_wset=info.rss)

    psutil.Process.memory_info = _memory_info
    for _name in ("rename", "replace", "unlink", "remove", "rmdir"):
        _guarded(_name)
    shutil.__dict__["_use_fd_functions"] = False
    builtins.__import__ = _imported
    for _module in LACKING:
        importlib.import_module(_module).__class__ = Module
