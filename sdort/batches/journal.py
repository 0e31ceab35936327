"""The journal of a batch: a line of JSON for each image, written after the image's file is in its place.

A process that is killed between the two leaves an image that is drawn again; one that is killed while it writes a line
leaves a part of it, which is cut off. So no image is lost, and none is drawn twice but those that were under way.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sdort.errors import BadModelError, OutputError
from sdort.files.input_file import open_input
from sdort.files.json_text import parse_json
from sdort.generation.resumed_prompts import record_in
from sdort.machine.os_calls import os_calls

IMAGES, SET_ASIDE = "images.jsonl", "set_aside.jsonl"
"""Files beside the images: the journal, and the lines that nothing could be drawn of in the last run."""


@dataclass(frozen=True)
class Entry:
    """An image of a batch.

    Attributes:
        id: of its line.
        line: in the file of prompts, from 1.
        index: among the images of its line, from 0.
        seed: of its noise.
    prompt: as it was drawn.
        file: its name in the folder; None where a safety checker withheld it.
        bytes: of the file; None without one.
        sha256: of the file, in hexadecimal; None without one.
        seconds: from the start of its job until it was written, divided by the images until then.
        model: the checkpoint.
        key: a hash of all that it was drawn with.
    """

    id: str
    line: int
    index: int
    seed: int
    prompt: str
    file: str | None
    bytes: int | None
    sha256: str | None
    seconds: float
    model: str
    key: str


class Journal:
    """The images that a folder has; :func:`open_journal` opens it."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self._descriptor = descriptor
        self._done: set[tuple[str, int]] = set()
        self._keys: dict[str, str] = {}
        self._files: set[str] = set()
        self._owners: dict[str, tuple[str, int]] = {}

    def add(self, entry: Entry) -> None:
        """Write the line of an image whose file is in its place."""
        _append(self._descriptor, self.folder / IMAGES, asdict(entry))
        self._done.add((entry.id, entry.index))

    def has(self, name: str, index: int) -> bool:
        """Whether an image is there."""
        return (name, index) in self._done

    def owner(self, file: str, name: str, index: int) -> str:
        """The id of the line whose image has a file: this one, unless an image of another has it already."""
        own = self._owners.setdefault(os.path.normcase(file), (name, index))
        return name if own == (name, index) else own[0]

    def may_write(self, path: Path) -> bool:
        """Whether a file is not there, is the journal's, or an image that was drawn by a process that was killed."""
        return path.name in self._files or not os.path.lexists(path) or record_in(path) is not None

    def key_of(self, name: str) -> str | None:
        """The key of a line's images; None where it has none."""
        return self._keys.get(name)

    def read(self, lines: Iterable[bytes]) -> int:
        """Take the entries of an earlier run; returns the bytes of whole lines."""
        end = 0
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return end
            entry = _entry(self.folder / IMAGES, number, line)
            if entry["file"]:
                self._files.add(entry["file"])
                self._owners[os.path.normcase(entry["file"])] = entry["id"], entry["index"]
            if entry["file"] is None or _is_there(self.folder / entry["file"], entry["bytes"]):
                self._done.add((entry["id"], entry["index"]))
                self._keys[entry["id"]] = entry["key"]
            end += len(line)
        return end


def entries_in(folder: Path) -> list[dict[str, Any]]:
    """The entries of a journal, of each image the last one, in the order of the lines.

    Raises:
        BadModelError: the journal cannot be read, or is none of sdort's.
    """
    path, found = folder / IMAGES, dict[tuple[str, int], dict[str, Any]]()
    with open_input(path, "the journal") as file:
        for number, line in enumerate(io.BufferedReader(file), 1):  # type: ignore[type-var]
            entry = _entry(path, number, line)
            found[entry["id"], entry["index"]] = entry  # the number of its line may be another's by now
    return sorted(found.values(), key=lambda entry: (entry["line"], entry["id"], entry["index"]))


@contextmanager
def open_journal(folder: Path) -> Iterator[Journal]:
    """The journal in a folder, which is made where there is none; no other process has it meanwhile.

    A folder that was made and has no image in the end is gone again.

    Raises:
        OutputError: the folder cannot be written, or another process writes to it.
        BadModelError: the journal is none of sdort's.
    """
    path = folder / IMAGES
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _open_locked(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
    try:
        journal = Journal(folder, descriptor)
        with open_input(path, "the journal") as file:
            whole = journal.read(io.BufferedReader(file))  # type: ignore[type-var]
        os.ftruncate(descriptor, whole)
        yield journal
    finally:
        if not os.fstat(descriptor).st_size:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # it is not empty: others' files, or lines that were set aside
                folder.rmdir()
        os.close(descriptor)


def _open_locked(path: Path) -> int:
    """A descriptor of the file, which this process alone has."""
    while True:
        descriptor = os_calls.open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, links=False)
        try:
            os_calls.lock(descriptor)
        except BlockingIOError as error:
            os.close(descriptor)
            raise OutputError(
                f"another sdort batch writes to {path.parent}", hint="Wait until it ends, or choose another --out."
            ) from error
        except OSError:  # a file system without locks
            return descriptor
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # who held it removed it


class SetAside:
    """The file of lines that nothing could be drawn of; it begins anew with each run, and is there only with lines.

    Raises:
        OutputError: that of an earlier run cannot be removed.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SET_ASIDE
        self._lines: set[int] = set()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {error.strerror}") from error

    @property
    def count(self) -> int:
        """The number of lines that are set aside."""
        return len(self._lines)

    def add(self, line: int, name: str | None, problem: str) -> None:
        """Set a line aside; one of several images is said once."""
        if line in self._lines:
            return
        self._lines.add(line)
        try:
            descriptor = os_calls.open_file(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, links=False)
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {error.strerror}") from error
        try:
            _append(descriptor, self._path, {"id": name, "line": line, "problem": problem})
        finally:
            os.close(descriptor)


def _append(descriptor: int, path: Path, content: dict[str, Any]) -> None:
    line = json.dumps(content, ensure_ascii=False).encode() + b"\n"
    try:
        written = os.write(descriptor, line)
        if written != len(line):
            raise OSError(None, "the disk is full")
        os.fsync(descriptor)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


_TYPES: dict[str, Any] = {
    "id": str,
    "line": int,
    "index": int,
    "seed": int,
    "prompt": str,
    "file": (str, type(None)),
    "key": str,
}


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except ValueError:
        found = None
    whole = isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in _TYPES.items())
    if not isinstance(found, dict) or not whole or (found["file"] and os.path.basename(found["file"]) != found["file"]):
        raise BadModelError(
            f"line {number} of {path} is none of a journal of sdort batch",
            hint="Choose another folder, or take the line out: its image is then drawn again.",
        )
    return found


def _is_there(path: Path, size: Any) -> bool:
    try:
        return bool(path.lstat().st_size == size)
    except OSError:
        return False
