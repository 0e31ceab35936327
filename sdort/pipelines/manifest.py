"""``sdort.json``: the list of the files that sdort wrote into its folder, and what it says of how they came to be.

The list tells what was damaged or mixed up, and what in a folder is sdort's own. It is a file like any other, which a
stranger may have written: names in it are compared with names that are there, and are never followed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from sdort.checkpoints.configs import MANIFEST, read_manifest, write_json
from sdort.errors import BadModelError, OutputError
from sdort.files.input_file import open_input
from sdort.onnx_io.hashing import hash_file, hash_open
from sdort.pipelines.remembered_hashes import RememberedHashes

SIGNATURE = "model.sig"
"""The file that holds a folder's signature, made last: no list can name its hash."""

SMALL = 4 * 2**20
"""Bytes up to which a file is compared at once: hashing it costs less than a look at what is remembered."""

FILES = "files"
"""The manifest's field with the list."""

_DIGEST = re.compile(r"[0-9a-f]{32}")
_NAMED = 3
"""Files that a message names where there are many."""


@dataclass(frozen=True)
class ListedFile:
    """A file as sdort wrote it.

    Attributes:
        bytes: its size.
        xxh128: its XXH3 hash of 128 bits in hexadecimal, as ``xxh128sum`` prints it.
    """

    bytes: int
    xxh128: str


def write_listed_files(folder: Path, content: Mapping[str, Any], hashes: Mapping[Path, str]) -> None:
    """Write ``sdort.json`` with ``content`` and the list of all files in the folder.

    Args:
        folder: where it goes; all other files are there.
        hashes: the hashes that are known already, by file; the others are read.

    Raises:
        OutputError: a file cannot be read, or the manifest cannot be written.
    """
    listed = {}
    try:
        for place in sorted(places_in(folder)):
            path = folder / place
            if place != MANIFEST:
                listed[place] = asdict(ListedFile(path.stat().st_size, hashes.get(path) or hash_file(path)))
    except OSError as error:
        raise OutputError(f"cannot read {error.filename} again: {error.strerror or error}") from error
    write_json(folder / MANIFEST, {**content, FILES: listed})


def listed_files(folder: Path, manifest: Mapping[str, Any] | None = None) -> dict[str, ListedFile] | None:
    """The files that sdort wrote into a folder, by their paths in it; None where its manifest has no list, or is none.

    Args:
        manifest: the folder's, where it was read already.

    Raises:
        BadModelError: the manifest cannot be read, or lists what cannot be a file of its folder.
    """
    files = (read_manifest(folder) if manifest is None else manifest).get(FILES)
    if files is None:
        return None
    if not isinstance(files, dict):
        raise _broken(folder, f"{FILES} is no JSON object")
    return {place: _listed(folder, place, entry) for place, entry in files.items()}


def why_foreign(folder: Path) -> str | None:
    """Why a folder holds more than sdort wrote there, as the end of a sentence that begins with its name; else None.

    All that it holds has to be a regular file that its list names, and has to be as it was listed: a file that its user
    edited, or that somebody added to a list, is not sdort's. Files of the list may be missing.
    """
    present = sorted(places_in(folder))
    if not present:
        return None
    try:
        listed = listed_files(folder)
    except BadModelError as error:
        return f"may hold files that are not sdort's ({error.message})"
    if listed is None and MANIFEST not in present:
        return f"was not written by sdort: it has no {MANIFEST}, and holds {named(present)}"
    if listed is None:
        return f"is of an older sdort, whose {MANIFEST} does not say which files are its own"
    own = {*listed, MANIFEST, SIGNATURE}
    others = [place for place in present if place not in own or not is_plain(folder / place)]
    if others:
        return f"holds what sdort did not write there: {named(others)}"
    changed = _changed(folder, present, listed)
    return f"holds files that are not as sdort wrote them, edited or damaged: {named(changed)}" if changed else None


def changed_files(folder: Path) -> list[str]:
    """The files of a folder that are not as its list says: edited or damaged since; none where it has no list.

    Raises:
        BadModelError: the manifest cannot be read.
    """
    listed = listed_files(folder) if folder.is_dir() else None
    return _changed(folder, sorted(places_in(folder)), listed) if listed else []


def _changed(folder: Path, present: Sequence[str], listed: Mapping[str, ListedFile]) -> list[str]:
    hashes = RememberedHashes(folder, "xxh128")
    return [place for place in present if place in listed and not _is_as_listed(folder, place, listed[place], hashes)]


def _is_as_listed(folder: Path, place: str, file: ListedFile, hashes: RememberedHashes) -> bool:
    if (folder / place).stat().st_size != file.bytes:
        return False
    return (file.bytes > SMALL and hashes.find(place) == file.xxh128) or _hash(folder / place) == file.xxh128


_HASHES: dict[tuple[int, ...], str] = {}
"""By the file's identity on disk, which stays when the folder is renamed: a folder is looked at several times before it
is replaced."""


def _hash(path: Path) -> str | None:
    """The hash of a file; None where it cannot be read."""
    try:
        with open_input(path, links=False) as file:
            status = os.fstat(file.fileno())
            identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if identity not in _HASHES:
                _HASHES[identity] = hash_open(file.fileno())
    except BadModelError:
        return None
    return _HASHES[identity]


def named(places: Sequence[str]) -> str:
    """The first files, and how many more there are."""
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return ", ".join(places[:_NAMED]) + more


def places_in(folder: Path, above: str = "") -> Iterator[str]:
    """Paths of all that lies in a folder and is no folder itself; links are not followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from places_in(Path(entry.path), f"{above}{entry.name}/")
            else:
                yield f"{above}{entry.name}"


def is_plain(path: Path) -> bool:
    """Whether a path is that of a regular file itself, not of a link to one."""
    return stat.S_ISREG(path.lstat().st_mode)


def _listed(folder: Path, place: str, entry: Any) -> ListedFile:
    if place == MANIFEST or "\0" in place or not is_inside(place):
        raise _broken(folder, f"it lists {place[:200]!r}, which cannot be a file of its folder")
    size, digest = (entry.get(key) for key in ("bytes", "xxh128")) if isinstance(entry, dict) else (None, None)
    if type(size) is not int or size < 0 or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _broken(folder, f"{place[:200]!r} has no size or no hash in it")
    return ListedFile(size, digest)


def is_inside(place: str) -> bool:
    """Whether text is the path of something below a folder, in its plain form."""
    parts = PurePosixPath(place).parts
    plain = bool(parts) and parts[0] != "/" and ".." not in parts and "/".join(parts) == place
    return plain and PurePath(place).parts == parts  # Windows has backslashes and drives


def _broken(folder: Path, problem: str) -> BadModelError:
    return BadModelError(
        f"{folder / MANIFEST} is broken: {problem}", hint="Copy or download the folder again, or make it anew."
    )
