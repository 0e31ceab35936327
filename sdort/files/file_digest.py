"""The SHA-256 of a file, by which model sites tell files from each other."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from sdort.files.input_file import open_input

_PIECE = 1 << 20
_MOST_KEPT = 64
_kept: OrderedDict[tuple[object, ...], str] = OrderedDict()
"""Path, identity and kind of a hash -> the hash."""


def file_digest(path: Path, *, tensors: bool = False, advance: Callable[[float], None] | None = None) -> str:
    """The SHA-256 of a file in hexadecimal, computed once while the file stays the same on disk.

    Args:
        tensors: of what stands behind a safetensors header alone, which editors of its metadata leave as it is:
            A1111's hash of a LoRA and Civitai's "AutoV3" are the first twelve digits.
        advance: called with the number of bytes that were just read.

    Raises:
        BadModelError: it cannot be read.
    """
    with open_input(path) as file:
        status = os.fstat(file.fileno())
    identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    key = path.absolute(), identity, tensors
    if key not in _kept:
        _kept[key] = _digest(path, tensors, advance or (lambda _: None))
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return _kept[key]


def _digest(path: Path, tensors: bool, advance: Callable[[float], None]) -> str:
    digest = hashlib.sha256()
    with open_input(path) as file:
        if tensors:  # the header's length in bytes comes first
            file.seek(8 + int.from_bytes(file.read(8), "little"))
        while piece := file.read(_PIECE):
            digest.update(piece)
            advance(len(piece))
    return digest.hexdigest()
