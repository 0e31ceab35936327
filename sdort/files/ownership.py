"""Who can change a file whose code this process is to run.

Owners and modes are looked at, of all that a path passes through. Access control lists that go beyond a file's group,
and the server of a network's file system, are not.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sdort.machine.os_calls import os_calls

_MOST_LINKS = 40
"""Symbolic links of a path, as Linux follows them."""


def why_foreign(path: Path) -> str | None:
    """Why a file is not this account's own: another account owns it or can write it, or what its path passes through.

    That is each folder above it, each symbolic link on the way, and the folders above what those lead to. Root counts
    as trusted, and so does a group of the owner alone, which some distributions give every account.

    Raises:
        OSError: it cannot be looked at.
    """
    way = [*_way(path)]
    for place in reversed(way):
        is_link = stat.S_ISLNK(os.lstat(place).st_mode)
        status = os.lstat(place) if is_link else place.stat()
        name = "it" if place == way[-1] else str(place)
        if foreign := os_calls.why_foreign(status, place):
            return f"{name} {foreign}"
        if not is_link and os_calls.can_others_write(status):
            return f"other accounts can write {name}"
    return None


def _way(path: Path) -> Iterator[Path]:
    """The root, and then each folder and link that a path passes through, up to the file."""
    whole, links = Path(os.getcwd(), path), 0
    place, left = Path(whole.anchor), [*reversed(whole.parts[1:])]
    yield place
    while left:
        part = left.pop()
        if part == "..":
            place = place.parent
            continue
        step = place / part
        yield step
        if not os.path.islink(step):
            place = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(step))
        place = Path(target.anchor or place)
        left += reversed(target.parts[1:] if target.anchor else target.parts)
