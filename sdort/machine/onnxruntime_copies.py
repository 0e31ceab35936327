"""The copies of ONNX Runtime on Python's path, found by their files.

Every distribution of it installs the same import package, ``onnxruntime``, and anybody may publish one under a name of
their own: what tells is the list of files (``RECORD``) that each distribution keeps.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "onnxruntime"
"""The import name."""


@dataclass(frozen=True)
class Flavour:
    """A distribution, such as ``onnxruntime-rocm`` ``1.22.2``."""

    distribution: str
    version: str


@dataclass(frozen=True)
class RuntimeCopy:
    """A folder of Python's path with the package in it.

    Attributes:
        folder: such as ``.../site-packages``.
        owners: the distributions that installed it, by name; several lie over each other.
        records: the folders in ``folder`` with what those say of themselves.
    """

    folder: Path
    owners: tuple[Flavour, ...]
    records: tuple[Path, ...]


def find_copies(path: Iterable[str]) -> list[RuntimeCopy]:
    """The copies in these folders, in their order: Python imports the first, and the others are hidden.

    Without any, the distributions whose code is gone: uninstalling one of two takes the other's files along.
    """
    folders = [Path(folder) for folder in dict.fromkeys(os.path.realpath(entry) for entry in path)]
    copies = [_copy(folder) for folder in folders if os.path.isfile(folder / PACKAGE / "__init__.py")]
    return copies or [copy for copy in map(_copy, filter(os.path.isdir, folders)) if copy.records]


@cache
def _copy(folder: Path) -> RuntimeCopy:
    found = sorted((_named(record), record) for record in _records(folder) if _installs_it(record))
    owners = tuple(Flavour(name, version) for (name, version), _ in found)
    return RuntimeCopy(folder, owners or (_unowned(folder),), tuple(record for _, record in found))


def _records(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")) and entry.is_dir():
                yield Path(entry.path)


def _installs_it(record: Path) -> bool:
    """Whether a distribution lists the package's code among its files: what only adds to it lies over nothing."""
    listed = _bytes(record / "RECORD")
    if listed is not None:
        return b"\nonnxruntime/__init__.py," in b"\n" + listed
    top = _bytes(record / "top_level.txt") or b""  # of a package of Linux, which has no RECORD
    return PACKAGE.encode() in top.split()


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _named(record: Path) -> tuple[str, str]:
    """Name and version of a distribution; what its metadata does not say, its folder's name does."""
    text = (_bytes(record / "METADATA") or _bytes(record / "PKG-INFO") or b"").decode(errors="replace")
    fields = dict(re.findall(r"^(Name|Version): *(\S+) *$", text.partition("\n\n")[0], re.MULTILINE))
    name, _, version = record.stem.partition("-")
    return fields.get("Name", name.replace("_", "-")), fields.get("Version", version)


def _unowned(folder: Path) -> Flavour:
    """A copy that no distribution lists, by what ONNX Runtime's own build wrote into it."""
    text = (_bytes(folder / PACKAGE / "capi" / "build_and_package_info.py") or b"").decode(errors="replace")
    fields = dict(re.findall(r"^(package_name|__version__) *= *['\"]([^'\"]+)['\"]", text, re.MULTILINE))
    return Flavour(fields.get("package_name", PACKAGE), fields.get("__version__", "unknown"))
