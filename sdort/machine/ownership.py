"""Who can change a file whose code this process is to run."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


def why_foreign(path: Path) -> str | None:
    """Why a file is not this account's own: another account owns it, or can write it or a folder above it.

    Root counts as trusted, and so does a group of the owner alone, which some distributions give every account.

    Raises:
        OSError: it cannot be looked at.
    """
    real = Path(os.path.realpath(path))
    status = real.stat()
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to {_account(status.st_uid)}"
    for place in (real, *real.parents):
        status = place.stat()
        # In a sticky folder, such as /tmp, everybody can make files and nobody can replace another's.
        if status.st_mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode):
            continue
        if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_private(status)):
            return f"other accounts can write {'it' if place == real else place}"
    return None


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
