"""The mark by which the model that a pipeline was made from is known again, at the path where it lay.

``sdort.json`` says where a pipeline's original lay. It is a file that a stranger may have written, and the path may be
that of a file or folder of the user's own; or another model lies there by now. So the path is followed only where the
mark fits. Who does not know the original cannot make its mark. The first half of the mark is of names, sizes,
``sdort.json`` and ``model_index.json``; weights are opened only where it fits.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from sdort.checkpoints.configs import CONFIG_BYTES, INDEX, MANIFEST, TABLE_BYTES, read_config
from sdort.errors import BadModelError
from sdort.files.input_file import open_input, read_input
from sdort.files.model_folder import belongs
from sdort.machine.os_calls import os_calls
from sdort.pipelines.manifest import FILES

ORIGIN = "origin"
"""The manifest's field with the mark of what the pipeline was made from."""

_WEIGHTS = (".onnx", ".data", ".onnx_data", ".pb", ".safetensors", ".bin")
_MOST_FILES = 10_000
"""Entries of a folder of models that are looked at; published ones have fewer than 100."""

_SAMPLES, _SAMPLE = 64, 1024
"""Pieces of each file of weights, and bytes of each. An adapter merged into a UNet changes a sixth of its weights or
more: that none of 64 pieces is among them is one case in 100,000."""
_PARTS = 4
"""Files of weights that a single file stands for."""


def origin_mark(folder: Path) -> dict[str, str | None]:
    """The mark of a model's folder or single file, for the manifest of what is made from it.

    Returns:
        ``description``: SHA-256 of the list in its ``sdort.json``; without one of its ``model_index.json`` and of the
        names and sizes of its weights; of a file of its size. ``weights``: SHA-256 of samples of these; None with a
        list, which has hashes.
    """
    listed = _list_of(folder)
    if listed is not None:
        return {"description": _sha256(listed), "weights": None}
    return {"description": _described(folder), "weights": _sampled(folder)}


def has_mark(folder: Path, mark: Mapping[str, Any]) -> bool:
    """Whether a folder or file is the one that :func:`origin_mark` described, wherever it lies."""
    with suppress(BadModelError, OSError):
        listed = _list_of(folder)
        described = _sha256(listed) if listed is not None else _described(folder)
        if described != mark.get("description"):
            return False
        return mark.get("weights") == (None if listed is not None else _sampled(folder))
    return False


def _list_of(folder: Path) -> bytes | None:
    """The list of the folder's ``sdort.json`` in one form; None where there is none."""
    path = folder / MANIFEST
    if not path.is_file() or not _belongs(path, folder):
        return None
    with suppress(BadModelError):
        listed = read_config(path, limit=TABLE_BYTES).get(FILES)
        return None if listed is None else json.dumps(listed, sort_keys=True).encode()
    return None


def _described(folder: Path) -> str:
    path = folder / INDEX
    index = read_input(path, limit=CONFIG_BYTES) if path.is_file() and _belongs(path, folder) else b""
    sizes = [[place, path.stat().st_size] for place, path in _weights(folder)]
    return _sha256(index + json.dumps(sizes).encode())


def _sampled(folder: Path) -> str:
    digest = hashlib.sha256()
    files = _weights(folder)
    samples = _SAMPLES * (_PARTS if folder.is_file() else 1)
    for _, path in files:
        with open_input(path) as file:
            size = os.fstat(file.fileno()).st_size
            for index in range(samples):
                digest.update(os_calls.read_at(file.fileno(), _SAMPLE, max(size - _SAMPLE, 0) * index // (samples - 1)))
    return digest.hexdigest()


def _weights(folder: Path) -> list[tuple[str, Path]]:
    """The files of weights in a folder and in the folders in it, by their paths in it; sorted. Of a file itself, whose
    name says nothing of it."""
    if folder.is_file():
        return [("", folder)]
    within = (path for path in _entries(folder) if path.is_dir() and _belongs(path, folder))
    paths = islice(chain(_entries(folder), *map(_entries, within)), _MOST_FILES)
    return sorted(
        (path.relative_to(folder).as_posix(), path)
        for path in paths
        if path.suffix in _WEIGHTS and _belongs(path, folder) and stat.S_ISREG(path.stat().st_mode)
    )


def _entries(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        yield from (Path(entry.path) for entry in entries if not entry.name.startswith("."))


def _belongs(path: Path, folder: Path) -> bool:
    return belongs(Path(os.path.realpath(path)), Path(os.path.realpath(folder)))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
