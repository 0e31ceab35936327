"""Writer of a :class:`sdort.graph.model.Model` as ``model.onnx`` and one ``model.onnx.data``, streamed.

The graph is written without its weights. Those are evaluated and written piece by piece, a few at a time in a small
thread pool, so peak memory is the graph plus a bounded number of bytes in flight, whatever the size of the model.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sdort.errors import OutputError
from sdort.graph.model import Model
from sdort.graph.overflow import count_infinite, subtract_sources
from sdort.graph.weights import Stored
from sdort.machine.blas_threads import one_blas_thread
from sdort.machine.os_calls import os_calls
from sdort.onnx_io.data_file import Blob
from sdort.onnx_io.hashing import FileHash, hash_bytes
from sdort.onnx_io.serialize import Serialized, serialize
from sdort.tables import size_text

IN_FLIGHT = 384 * 2**20
"""Bytes of weights that may be in memory at a time, if none came in pieces; a larger one is still written, alone."""

WORKERS = min(4, os.cpu_count() or 1)
"""Reading, casting and writing release the interpreter lock; more threads only wait for the same disk."""

_AT_ONCE = 2**20
"""Bytes of a write. For larger ones Linux looks for larger pages, which takes twice the time where memory is in use."""

Advance = Callable[[float], None]


@dataclass
class WriteReport:
    """Size, hash and time of what :func:`save_model` wrote."""

    path: Path
    data_path: Path | None
    """The external data file; None if every tensor is small."""
    bytes: int = 0
    """Bytes of both files."""
    tensors: int = 0
    """Weights in the data file."""
    seconds: float = 0.0
    hashes: dict[Path, str] = field(default_factory=dict)
    """File -> its XXH3 hash, if it was asked for."""
    overflow_counts: dict[str, int] = field(default_factory=dict)
    """Initializer -> how many finite values became infinite when they were rounded to float16."""

    @property
    def overflowed(self) -> list[str]:
        """The initializers with values that float16 cannot hold."""
        return sorted(self.overflow_counts)


def save_model(
    model: Model, path: Path, *, advance: Advance | None = None, checksum: bool = False, sync: bool = False
) -> WriteReport:
    """Write ``path`` and, beside it, ``<name>.data`` with every weight above 1 KiB.

    Args:
        model: left as it is; its weights are evaluated one at a time.
        path: the ``.onnx`` file. Existing files are replaced only when everything is written.
        advance: called with the number of data bytes just written.
        checksum: also compute the files' XXH3 hashes, while they are being written.
        sync: wait until the bytes are on the disk.

    Raises:
        OutputError: the disk is full, the folder cannot be written, or the model reads from the file to be written.
        BadModelError: a weight cannot be read.
    """
    start = time.perf_counter()
    content = serialize(model, data_file(path).name)
    report = write(content, path, model.component, advance=advance, checksum=checksum, sync=sync)
    report.seconds = time.perf_counter() - start
    return report


def data_file(path: Path) -> Path:
    """The location of the weights of the ``.onnx`` file."""
    return path.with_name(path.name + ".data")


def write(
    content: Serialized,
    path: Path,
    component: str,
    *,
    advance: Advance | None = None,
    checksum: bool = False,
    sync: bool = False,
) -> WriteReport:
    """:func:`save_model` of what is serialised already, for the data file :func:`data_file`.

    Raises:
        OutputError: as for :func:`save_model`.
        BadModelError: a weight cannot be read, or has no values.
    """
    start = time.perf_counter()
    data_path = data_file(path)
    _refuse_own_source(content.blobs, (path, data_path), component)
    for weight in content.late.values():
        weight.load()
    report = WriteReport(path, data_path if content.blobs else None, tensors=len(content.blobs))
    report.overflow_counts.update(content.overflow_counts)
    with _output_errors(path, content, component), _temporary(path) as (temp, temp_data):
        if content.blobs:
            digest = _write_data(temp_data, content, report, advance, checksum, sync)
            os_calls.replace(temp_data, data_path)
            report.hashes.update({data_path: digest} if digest else {})
        _write_file(temp, content.proto, sync)
        os_calls.replace(temp, path)
    if checksum:
        report.hashes[path] = hash_bytes(content.proto)
    report.bytes = len(content.proto) + content.data_bytes
    report.seconds = time.perf_counter() - start
    return report


def _refuse_own_source(blobs: Sequence[Blob], targets: Sequence[Path], component: str) -> None:
    resolved = {target.resolve() for target in targets}
    sources = {leaf.path for blob in blobs for leaf in blob.weight.leaves() if isinstance(leaf, Stored)}
    for source in sources:
        if source.resolve() in resolved:
            raise OutputError(
                f"{source} cannot be written: the model reads its weights from it",
                component=component,
                hint="Choose another output.",
            )


@contextmanager
def _output_errors(path: Path, content: Serialized, component: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        size = len(content.proto) + content.data_bytes
        raise OutputError(
            f"cannot write {path} ({size_text(size)}): {error.strerror or error}",
            component=component,
            hint="Free some space, or choose another output folder.",
        ) from error


@contextmanager
def _temporary(path: Path) -> Iterator[tuple[Path, Path]]:
    """Hidden names beside ``path`` for the model and its data; removed if anything goes wrong."""
    token = secrets.token_hex(4)
    names = path.with_name(f".{path.name}.{token}"), path.with_name(f".{path.name}.data.{token}")
    try:
        yield names
    finally:
        for name in names:
            with suppress(OSError):
                name.unlink(missing_ok=True)


def _write_file(path: Path, content: bytes, sync: bool) -> None:
    with open(path, "wb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def _write_data(
    path: Path, content: Serialized, report: WriteReport, advance: Advance | None, checksum: bool, sync: bool
) -> str | None:
    with open(path, "w+b") as file, FileHash(file.fileno()) as digest:
        descriptor = file.fileno()
        os_calls.reserve(descriptor, content.data_bytes)
        finished = _Beginning(content.blobs)
        # Closed before the file is, also if advance() raises: no thread may write to a descriptor that is gone.
        with closing(_stream(content.blobs, descriptor)) as written:
            for blob, overflowed in written:
                if overflowed:
                    report.overflow_counts[blob.name] = overflowed
                if advance:
                    advance(blob.weight.nbytes)
                if checksum:
                    digest.extend(finished.add(blob))
        if sync:
            os.fsync(descriptor)
        return digest.hexdigest() if checksum else None


class _Beginning:
    """The length of the written beginning of a file whose blobs are finished in any order."""

    def __init__(self, blobs: Sequence[Blob]) -> None:
        self._waiting = deque(blobs)  # in the order of their offsets
        self._early: set[int] = set()
        self._end = 0

    def add(self, blob: Blob) -> int:
        """Note that ``blob`` is written. Returns the end of the beginning; what lies between two blobs is zero."""
        self._early.add(blob.offset)
        while self._waiting and self._waiting[0].offset in self._early:
            done = self._waiting.popleft()
            self._early.remove(done.offset)
            self._end = done.offset + done.weight.nbytes
        return self._end


def _stream(blobs: Sequence[Blob], descriptor: int) -> Generator[tuple[Blob, int], None, None]:
    """Write every blob; yields each with its count of overflowed values as it is done."""
    with one_blas_thread():
        yield from _written(blobs, descriptor, ThreadPoolExecutor(WORKERS))


def _written(
    blobs: Sequence[Blob], descriptor: int, pool: ThreadPoolExecutor
) -> Generator[tuple[Blob, int], None, None]:
    running: dict[Future[int], Blob] = {}
    used = 0
    try:
        for blob in blobs:
            while running and (used + blob.cost > IN_FLIGHT or len(running) > 2 * WORKERS):
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    used -= running[done].cost
                    yield running.pop(done), done.result()
            used += blob.cost
            running[pool.submit(_write_blob, blob, descriptor)] = blob
        for future, blob in running.items():
            yield blob, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _write_blob(blob: Blob, descriptor: int) -> int:
    weight, offset, infinite = blob.weight, blob.offset, 0
    end = offset + weight.nbytes
    try:
        for piece in weight.pieces():
            # A bug in a transform, if not; written, it would reach into the next tensor.
            if piece.dtype != weight.dtype or offset + piece.nbytes > end:
                raise RuntimeError(f"{blob.name}: {weight} evaluated to more, or to {piece.dtype}")
            _write_at(descriptor, piece.view(np.uint8).data, offset)
            offset += piece.nbytes
            infinite += count_infinite(piece)
    except MemoryError:
        raise OutputError(f"not enough memory for a tensor of {size_text(weight.nbytes)}", node=blob.name) from None
    if offset != end:
        raise RuntimeError(f"{blob.name}: {weight} evaluated to {end - offset} bytes less")
    return subtract_sources(infinite, weight)


def _write_at(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        count = os_calls.write_at(descriptor, view[:_AT_ONCE], offset)
        view, offset = view[count:], offset + count
