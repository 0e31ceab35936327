"""A bundle on disk: a folder with ``key.json``, which has the key and a hash of every other file.

| file | what it is |
|---|---|
| ``key.json`` | format version, key, date, SHA-256 and size of each file, and a hash of all that |
| ``tunable.json`` | what ONNX Runtime's ``get_tuning_results()`` returned |
| ``miopen/db``, ``miopen/cache`` | MIOpen's user database and its compiled kernels |
| ``programs`` | programs that MIGraphX compiled |
| ``ops.tsv`` | the table of sdort's own kernels |
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sdort.errors import BadModelError
from sdort.files.input_file import open_input, read_input
from sdort.files.json_text import parse_json
from sdort.machine.os_calls import os_calls
from sdort.machine.version import __version__
from sdort.tuning.key import Key, parse_key

FORMAT = 1
RECORD = "key.json"
TUNABLE, MIOPEN, PROGRAMS, OPS = "tunable.json", "miopen", "programs", "ops.tsv"

PASSING = (".lock", ".tmp", "-journal", "-wal", "-shm")
"""Ends of names of files that only matter while somebody writes. A bundle has none: SQLite, which reads the journal
beside a database, removes the file that the journal names, wherever it is."""

MAX_TEXT = 64 << 20
"""Bytes of ``tunable.json``; one of a large model has some hundred thousand."""

MAX_BYTES = 64 << 30
"""Bytes of all files of an archive; compiled programs hold a model's weights."""

MAX_RECORD = 4 << 20
"""Bytes of a ``key.json``; one with thousands of kernels has some hundred thousand."""
_MAX_DEPTH = 8
_END_OF_TIME = 1 << 40
"""Seconds since 1970 that no bundle was made after."""
_BLOCK = 1 << 20


class BundleError(BadModelError):
    """A bundle is damaged, unsafe, or of another format."""


@dataclass(frozen=True)
class File:
    """A file of a bundle."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Bundle:
    """A bundle as its ``key.json`` describes it; ``folder`` holds the files."""

    folder: Path
    key: Key
    made: int
    """Seconds since 1970."""
    files: dict[str, File]
    sdort: str = __version__
    first_run_s: float | None = None
    """How long opening the model and its first run took before there was a bundle."""

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


def seal(folder: Path, key: Key, first_run_s: float | None = None) -> None:
    """Write ``key.json`` for the files in ``folder``, and everything to the disk.

    Raises:
        OSError: the disk is full.
    """
    files = {name: File(_hash(folder / name), (folder / name).stat().st_size) for name in _names(folder)}
    body: dict[str, Any] = {
        "format": FORMAT,
        "sdort": __version__,
        "made": int(time.time()),
        "first_run_s": first_run_s,
        "key": key.to_json(),
        "files": {name: asdict(file) for name, file in sorted(files.items())},
    }
    text = json.dumps(body | {"sha256": _digest(body)}, indent=1, sort_keys=True)
    (folder / RECORD).write_text(text, encoding="utf-8")
    for path in (*(folder / name for name in files), folder / RECORD, *_folders(folder)):
        os_calls.sync(path)


def read_bundle(folder: Path) -> Bundle:
    """Read a bundle's ``key.json``; its files are not looked at (:func:`check_files`).

    Raises:
        BundleError: it is damaged, or of another format.
    """
    try:
        text = read_input(folder / RECORD, limit=MAX_RECORD, links=False)
        bundle = _parse(parse_json(text), folder)
    except BadModelError as error:
        raise BundleError(f"the tuning bundle {folder.name} cannot be read: {error.message}") from error
    except ValueError as error:
        raise BundleError(f"the tuning bundle {folder.name} cannot be read: {RECORD}: {error}") from error
    return bundle


def _parse(body: Any, folder: Path) -> Bundle:
    if not isinstance(body, dict):
        raise ValueError("it is no object")
    if body.get("format") != FORMAT:
        raise ValueError(f"its format is {body.get('format')!r}, this sdort reads {FORMAT}")
    if body.pop("sha256", None) != _digest(body):
        raise ValueError("it was changed or cut off")
    key = parse_key(body.get("key"))
    files = body.get("files")
    if not isinstance(files, dict) or type(body.get("made")) is not int or not 0 <= body["made"] < _END_OF_TIME:
        raise ValueError("it lacks the files or the date")
    described = {check_name(name): _file(entry) for name, entry in files.items()}
    return Bundle(folder, key, body["made"], described, str(body.get("sdort")), _seconds(body.get("first_run_s")))


def _file(value: Any) -> File:
    sound = isinstance(value, dict) and set(value) == {"sha256", "bytes"} and type(value["bytes"]) is int
    if not sound or value["bytes"] < 0 or not re.fullmatch(r"[0-9a-f]{64}", str(value["sha256"])):
        raise ValueError(f"{value!r} describes no file")
    return File(value["sha256"], value["bytes"])


def _seconds(value: Any) -> float | None:
    if value is not None and type(value) not in (int, float):
        raise ValueError(f"{value!r} is no time")
    return None if value is None else float(value)


def check_name(name: str) -> str:
    """``name`` if it is a file's place within a bundle.

    Raises:
        ValueError: it leads out of the folder, or is nothing that a bundle has, such as a database's journal.
    """
    parts = PurePosixPath(name).parts
    top = parts[0] if parts else ""
    inside = "/".join(parts) == name and not set(parts) & {"..", "."} and "\0" not in name and "\\" not in name
    known = (len(parts) == 1 and top in (TUNABLE, OPS)) or (len(parts) > 1 and top in (MIOPEN, PROGRAMS))
    if not inside or not known or len(parts) > _MAX_DEPTH or name.endswith(PASSING):
        raise ValueError(f"{name!r} is no place in a bundle")
    return name


def check_files(bundle: Bundle) -> None:
    """Compare every file with its hash.

    Raises:
        BundleError: which file is missing, was changed, or does not belong there.
    """
    where = f"the tuning bundle {bundle.folder.name} is damaged"
    if bundle.folder.name != bundle.name:
        raise BundleError(f"{where}: its name is not that of its key, {bundle.name}")
    for name, file in bundle.files.items():
        path = bundle.folder / name
        try:
            if path.is_symlink() or not os.path.isfile(path):
                raise BundleError(f"{where}: {name} is missing")
            if path.stat().st_size != file.bytes or _hash(path) != file.sha256:
                raise BundleError(f"{where}: {name} was changed or cut off")
        except OSError as error:
            raise BundleError(f"{where}: {name}: {error.strerror or error}") from error
        except BadModelError as error:  # it cannot be opened
            raise error if isinstance(error, BundleError) else BundleError(f"{where}: {error.message}") from error
    extra = sorted(set(_names(bundle.folder)) - set(bundle.files))
    if extra:
        raise BundleError(f"{where}: {extra[0]} does not belong to it")


def _names(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not os.path.isdir(path))
    return sorted(path.relative_to(folder).as_posix() for path in paths if path != folder / RECORD)


def _folders(folder: Path) -> list[Path]:
    return [*(path for path in folder.rglob("*") if os.path.isdir(path)), folder]


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with open_input(path, links=False) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
