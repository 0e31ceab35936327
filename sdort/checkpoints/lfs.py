"""Pointers of git-lfs, which lie in a clone in the place of large files until they are fetched."""

from __future__ import annotations

import shlex
from pathlib import Path

from sdort.errors import BadModelError
from sdort.files.input_file import open_input

MAGIC = b"version https://git-lfs"


def is_pointer(path: Path) -> bool:
    """Whether a file is only a pointer to what should be there."""
    try:
        with open_input(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (BadModelError, OSError):  # whoever reads it says what is wrong
        return False


def pull_advice(path: Path) -> str:
    """The command that fetches what a pointer stands for."""
    return f"Fetch the files themselves:\n    git -C {shlex.quote(str(path.parent))} lfs pull"


def refuse_pointer(path: Path) -> None:
    """Raise BadModelError if a file is a pointer."""
    if is_pointer(path):
        raise BadModelError(f"{path} is a git-lfs pointer, not the file itself", hint=pull_advice(path))
