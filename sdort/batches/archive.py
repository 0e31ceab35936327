"""All images of a batch in few files, with what the journal says of each: Parquet, or tar files of WebDataset's form.

WebDataset's form (https://github.com/webdataset/webdataset): the files of a sample follow each other, under one key.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sdort.batches.batch_options import Archive
from sdort.batches.journal import IMAGES, entries_in
from sdort.console import progress
from sdort.errors import BadModelError, OutputError
from sdort.files.input_file import read_input
from sdort.files.staging import staged_output
from sdort.machine.optional_packages import of_failed_import

SHARD_BYTES = 1 << 30
"""Bytes of images in a tar file, as WebDataset's readers like them."""
_ROWS = 64
"""Images that are held at once for a Parquet file: a row group."""


def check_archive(kind: Archive | None) -> None:
    """Check what writing an archive needs, before anything is drawn.

    Raises:
        MissingPackageError: it is a Parquet file, and pyarrow is not installed.
    """
    if kind == "parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise of_failed_import(error) or error from error


def write_archive(kind: Archive, folder: Path) -> list[Path]:
    """Write all images that the journal of a folder has; an archive that is there is replaced.

    Returns:
        ``images.parquet``, or ``images-000000.tar`` and so on.

    Raises:
        BadModelError: an image's file is not as the journal says.
        OutputError: a file cannot be written.
    """
    entries = [entry for entry in entries_in(folder) if entry["file"]]
    with progress(f"images.{'parquet' if kind == 'parquet' else 'tar'}", len(entries)) as advance:
        images = _images(folder, entries, advance)
        return _write_parquet(folder, images) if kind == "parquet" else list(_write_tars(folder, images))


def _images(folder: Path, entries: Sequence[dict[str, Any]], advance: Any) -> Iterator[tuple[dict[str, Any], bytes]]:
    for entry in entries:
        path = folder / entry["file"]
        content = read_input(path, "the image", limit=entry["bytes"])
        if len(content) != entry["bytes"]:
            raise BadModelError(
                f"{path} is not as {IMAGES} says", hint="Run the same sdort batch again: it is then drawn again."
            )
        yield entry, content
        advance(1)


def _write_parquet(folder: Path, images: Iterator[tuple[dict[str, Any], bytes]]) -> list[Path]:
    import pyarrow
    from pyarrow import parquet

    texts, numbers = ("id", "prompt", "file", "sha256", "model", "key"), ("line", "index", "seed", "bytes")
    columns = [(name, pyarrow.string()) for name in texts] + [(name, pyarrow.int64()) for name in numbers]
    schema = pyarrow.schema([*columns, ("seconds", pyarrow.float64()), ("image", pyarrow.binary())])
    path = folder / "images.parquet"
    with staged_output(path) as file, parquet.ParquetWriter(file, schema) as writer:
        rows: list[dict[str, Any]] = []
        for entry, content in images:
            rows.append({**entry, "image": content})
            if len(rows) == _ROWS:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                rows.clear()
        if rows:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
    return [path]


def _write_tars(folder: Path, images: Iterator[tuple[dict[str, Any], bytes]]) -> Iterator[Path]:
    number, waiting = 0, next(images, None)
    while waiting is not None:
        path, size = folder / f"images-{number:06}.tar", 0
        try:
            with staged_output(path) as file, tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                while waiting is not None and (not size or size + len(waiting[1]) <= SHARD_BYTES):
                    entry, content = waiting
                    size += len(content)
                    stem, _, suffix = entry["file"].rpartition(".")
                    key = stem.replace(".", "%2E")  # a key ends at the first point; no id has a %
                    _add(tar, f"{key}.{suffix}", content)
                    _add(tar, f"{key}.json", json.dumps(entry, ensure_ascii=False).encode())
                    waiting = next(images, None)
        except tarfile.TarError as error:
            raise OutputError(f"cannot write {path}: {error}") from error
        yield path
        number += 1


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
