"""Files that people name without their folder and suffix."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from sdort.errors import UsageError

MOST_FILES = 100_000
"""Files that are looked through: a folder with more was hardly meant."""


def files_below(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files of a folder and its subfolders with one of ``suffixes``, in the order of their names.

    Links to folders are followed, each folder once.

    Raises:
        UsageError: there are more than :data:`MOST_FILES` files.
    """
    found = []
    for number, path in enumerate(_walk(folder)):
        if number == MOST_FILES:
            raise UsageError(f"{folder} has more than {MOST_FILES:,} files", hint="Give the folder of these files.")
        if path.suffix.lower() in suffixes:
            found.append(path)
    return sorted(found)


def _walk(folder: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(place, name) for name in names)
