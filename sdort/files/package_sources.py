"""The content of a package's Python sources as one hash, found without importing the package.

An edited package of the same version is another package. Reading all sources of diffusers and transformers takes 30
ms, so the hash is kept in a cache under what the file system says of every file, which takes 5 ms.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sdort.errors import MissingPackageError, SdortError
from sdort.files.verified_cache import VerifiedCache
from sdort.machine.distributions import pip
from sdort.machine.optional_packages import REQUIREMENTS, need_packages

_SETTLED_NS = 2_000_000_000
"""Nanoseconds after which a file's next change has another time, on network file systems too."""

_File = tuple[str, int, int, int, int, int]
"""The path below the package's folder, the device, inode, size, and times of the content's and the status' change."""


@dataclass(frozen=True)
class PackageSources:
    """The Python sources of a package."""

    digest: str
    """SHA-256 of all paths and contents."""
    changed_ns: int
    """When the last one changed, in nanoseconds since 1970."""


def package_folder(name: str) -> Path:
    """The folder of an installed package.

    Raises:
        MissingPackageError: it is not installed.
    """
    if name in REQUIREMENTS:
        need_packages(name, what="reading its sources")
    spec = importlib.util.find_spec(name)  # of a top package: imports nothing
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackageError(f"{name} is not installed", hint=f"Install it:\n{pip('install', name)}")
    return Path(next(iter(spec.submodule_search_locations)))


def read_sources(
    folder: Path, memo: VerifiedCache, only: Mapping[str, Collection[str]] | None = None
) -> PackageSources:
    """Hash the ``.py`` files of a package.

    Args:
        folder: the package's folder.
        memo: keeps hashes between runs.
        only: folder of the package -> the names of those of its subfolders that are read; elsewhere all are.

    Raises:
        SdortError: a file cannot be read.
    """
    try:
        files = sorted(_files(str(folder), "", only or {}))
        changed = max((max(file[-2:]) for file in files), default=0)
        key = {"folder": str(folder), "files": hashlib.sha256(repr(files).encode()).hexdigest()}
        known = memo.load(folder.name, key)
        digest = known.decode("ascii", "replace") if known else _hash(folder, files)
        if not known and time.time_ns() - changed > _SETTLED_NS:
            memo.store(folder.name, key, digest.encode())
    except OSError as error:
        raise SdortError(
            f"cannot read the sources of {folder.name}: {error}", hint="Install it again, then repeat the command."
        ) from error
    return PackageSources(digest, changed)


def _files(folder: str, below: str, only: Mapping[str, Collection[str]]) -> Iterator[_File]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = below + entry.name
            if entry.name.endswith(".py"):
                s = entry.stat()
                yield path, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns
            elif entry.name != "__pycache__" and entry.is_dir():
                parent = below.rstrip("/")
                if parent not in only or entry.name in only[parent]:
                    yield from _files(entry.path, f"{path}/", only)


def _hash(folder: Path, files: list[_File]) -> str:
    digest = hashlib.sha256()
    for path, *_ in files:
        content = (folder / path).read_bytes()
        digest.update(f"{path}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()


@cache
def process_start_ns() -> int:
    """When this process began, to a second; in nanoseconds since 1970."""
    import psutil

    return int(psutil.Process().create_time() * 1e9)
