"""Hashes of files that were read before, remembered by the files' identity on disk."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sdort.files.staging import real
from sdort.files.user_folders import checked_folder
from sdort.files.verified_cache import VerifiedCache, key_of
from sdort.onnx_io.component_file import SETTLED_NS, Identity, file_identity

_CACHE_LIMIT = 2**20


class RememberedHashes:
    """The hashes of the files of a folder: path in it -> identity on disk and hash.

    Args:
        algorithm: the hash's name; each has a record of its own.
    """

    def __init__(self, folder: Path, algorithm: str) -> None:
        self._folder = folder
        self._cache = VerifiedCache(checked_folder(), "the record of checked files", ".json", _CACHE_LIMIT)
        self._key = {"folder": str(real(folder)), "hash": algorithm}
        self._is_new = False
        known = self._cache.load_json("files", self._key)
        self._files: dict[str, Any] = known if isinstance(known, dict) else {}

    def find(self, place: str) -> str | None:
        """The hash of a file that is the same as when it was added, else None."""
        identity, entry = file_identity(self._folder / place), self._files.get(place)
        if identity and isinstance(entry, list) and entry[:-1] == [*identity]:
            return str(entry[-1])
        return None

    def add(self, place: str, identity: Identity | None, digest: str) -> None:
        """Remember a hash, if the file is still the one of ``identity``, which was taken before it was read."""
        same = identity == file_identity(self._folder / place)
        if identity and same and time.time_ns() - max(identity[-2:]) > SETTLED_NS:
            self._files[place] = [*identity, digest]
            self._is_new = True

    def keep(self) -> None:
        """Store what is new; what was remembered of folders that are gone goes."""
        if not self._is_new:
            return
        self._cache.store("files", self._key, json.dumps(self._files).encode())
        for path in self._cache.folder.glob(f"files-*{self._cache.suffix}"):
            folder = (key_of(path) or self._key).get("folder")
            with suppress(OSError):  # another process cleans up
                if isinstance(folder, str) and not os.path.lexists(folder):
                    path.unlink()
