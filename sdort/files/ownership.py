"""Who can change a file whose code this process is to run.

Owners and modes are looked at, of all that a path passes through. Access control lists that go beyond a file's group,
and the server of a network's file system, are not.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

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
        if status.st_uid not in (0, os.geteuid()):
            return f"{name} belongs to {_account(status.st_uid)}"
        if not is_link and can_others_write(status):
            return f"other accounts can write {name}"
    return None


def can_others_write(status: os.stat_result) -> bool:
    """Whether accounts besides the owner and root may write a file, or replace the files of a folder."""
    # In a sticky folder, such as /tmp, everybody can make files and nobody can replace another's.
    if status.st_mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode):
        return False
    return bool(status.st_mode & stat.S_IWOTH) or bool(status.st_mode & stat.S_IWGRP and not _is_private(status))


def _way(path: Path) -> Iterator[Path]:
    """The root, and then each folder and link that a path passes through, up to the file."""
    place, links = Path("/"), 0
    left = [*reversed(os.path.join(os.getcwd(), path).split("/"))]
    yield place
    while left:
        part = left.pop()
        if part in ("", ".", ".."):
            place = place.parent if part == ".." else place
            continue
        step = place / part
        yield step
        if not os.path.islink(step):
            place = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = os.readlink(step)
        place = Path("/") if target.startswith("/") else place
        left += reversed(target.split("/"))


def _is_private(status: os.stat_result) -> bool:
    """Whether the owner is the only member of the group."""
    if status.st_gid == 0:
        return True
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == status.st_gid and owner.pw_name == group.gr_name and {*group.gr_mem} <= {owner.pw_name}


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the account {uid}"
