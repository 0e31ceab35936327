"""Opening of files that a stranger may have made: a checkpoint, a model folder, a bundle, an archive, a cache.

A path is opened once, and what was opened is what is checked: a regular file of bounded size. A named pipe would wait
for a writer, a device has no end, and between a check by name and the opening somebody may swap the file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sdort.errors import BadModelError
from sdort.machine.os_calls import os_calls
from sdort.tables import size_text


@contextmanager
def open_input(
    path: Path,
    what: str = "",
    *,
    limit: int | None = None,
    links: bool = True,
    hint: str | None = None,
    component: str | None = None,
) -> Iterator[BinaryIO]:
    """A regular file, open for reading without a buffer; its size in bytes is ``os.fstat(file.fileno()).st_size``.

    Args:
        what: which file it is, for messages, such as ``the config``.
        limit: the most bytes that such a file has.
        links: whether ``path`` itself may be a symbolic link.
        hint: what to do where it cannot be opened.
        component: the pipeline component that it belongs to, for messages.

    Raises:
        BadModelError: it is missing, unreadable, a link that is not meant, no regular file, or too large.
    """
    name = f"{what} {path}".lstrip()
    try:
        descriptor = os_calls.open_file(path, links=links)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise BadModelError(f"cannot read {name}: {_reason(error)}", hint=hint, component=component) from error
    try:
        _check(os.fstat(descriptor), name, limit, hint, component)
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_input(path: Path, what: str = "", *, limit: int, links: bool = True, hint: str | None = None) -> bytes:
    """The content of a file from :func:`open_input`, at most ``limit`` bytes.

    Raises:
        BadModelError: as :func:`open_input`; or it cannot be read, or grows beyond the limit while it is read.
    """
    name = f"{what} {path}".lstrip()
    with open_input(path, what, limit=limit, links=links, hint=hint) as file:
        parts, size = [], 0
        try:
            while part := file.read(min(limit + 1 - size, 1 << 20)):
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise BadModelError(f"{name} grows while it is read", hint=hint)
        except OSError as error:
            raise BadModelError(f"cannot read {name}: {_reason(error)}", hint=hint) from error
    return b"".join(parts)


def copy_input(source: Path, target: Path, *, limit: int) -> None:
    """Copy a file from :func:`open_input` that is no link to a new file ``target``.

    Raises:
        BadModelError: as :func:`open_input`; or it is larger than it was when it was opened.
        OSError: it cannot be read, or ``target`` cannot be written.
    """
    with open_input(source, limit=limit, links=False) as file, open(target, "xb") as copy:
        left = os.fstat(file.fileno()).st_size
        while part := file.read(1 << 20):
            left -= len(part)
            if left < 0:
                raise BadModelError(f"{source} grows while it is read")
            copy.write(part)


def _check(status: os.stat_result, name: str, limit: int | None, hint: str | None, component: str | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        message = f"{name} is {kind_of(status)}, not a regular file"
        raise BadModelError(message, hint=hint or "Give a file.", component=component)
    if limit is not None and status.st_size > limit:
        raise BadModelError(
            f"{name} has {size_text(status.st_size)}, and such a file has at most {size_text(limit)}",
            hint=hint,
            component=component,
        )


def kind_of(status: os.stat_result) -> str:
    """The kind of a path that is no regular file, with an article."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFLNK: "a link",
    }
    return kinds.get(stat.S_IFMT(status.st_mode), "something else")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        known = {
            errno.ELOOP: "it is a symbolic link, or leads through links in a circle",
            errno.ENXIO: "it is a socket",
        }
        return known.get(error.errno or 0) or error.strerror or str(error)
    return str(error)
