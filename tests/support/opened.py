"""Files that are opened by whoever opens them: Python's audit hooks do not see those of libraries in Rust and C++."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_OPENED = 0x20  # IN_OPEN of inotify(7)
_EVENT = struct.Struct("iIII")


@contextmanager
def watched(folders: Iterable[Path]) -> Iterator[list[str]]:
    """The files of ``folders`` that were opened in the block, by any library; complete when the block has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert queue >= 0, os.strerror(ctypes.get_errno())
    opened: list[str] = []
    try:
        places = {libc.inotify_add_watch(queue, os.fsencode(each), _OPENED): each for each in folders}
        assert min(places) > 0, os.strerror(ctypes.get_errno())
        try:
            yield opened
        finally:
            opened += sorted(set(_events(queue, places)))
    finally:
        os.close(queue)


def _events(queue: int, places: dict[int, Path]) -> Iterator[str]:
    """The files of all events that wait; a folder that is listed is none."""
    while True:
        try:
            content = os.read(queue, 1 << 16)
        except BlockingIOError:
            return
        while content:
            watch, _, _, length = _EVENT.unpack_from(content)
            name = content[_EVENT.size : _EVENT.size + length].rstrip(b"\0").decode()
            content = content[_EVENT.size + length :]
            path = places[watch] / name
            if name and not path.is_dir():
                yield str(path)
