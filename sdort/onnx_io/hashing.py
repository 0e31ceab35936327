"""The XXH3 hash (128 bits) of a file, computed while it is being written.

It notices damage, as a checksum does, at the speed of memory: SHA-256 would take twice as long as the writing. It is
no proof against someone who forges a file, and one beside the file would be none either.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import xxhash

_BLOCK = 2**20
"""Bytes that are read and hashed at a time: few enough for the cache, many for a step of the interpreter."""


class FileHash:
    """Hashes the finished beginning of a file in a thread of its own, which ends with the ``with`` block.

    The bytes are read back from the file, that is from the system's cache: its parts are finished in any order, but a
    hash takes them in theirs.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._digest = xxhash.xxh3_128()
        self._buffer = memoryview(bytearray(_BLOCK))
        self._end = 0
        self._pool = ThreadPoolExecutor(1)
        self._parts: list[Future[None]] = []

    def __enter__(self) -> FileHash:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def extend(self, end: int) -> None:
        """Hash up to byte ``end``: all before it has been written."""
        self._parts.append(self._pool.submit(self._update, self._end, end))
        self._end = end

    def hexdigest(self) -> str:
        """The hash of all bytes up to the last ``end``.

        Raises:
            OSError: the file cannot be read, or is shorter.
        """
        for part in self._parts:
            part.result()
        return self._digest.hexdigest()

    def _update(self, start: int, end: int) -> None:
        while start < end:
            count = os.preadv(self._descriptor, [self._buffer[: end - start]], start)
            if not count:
                raise OSError(f"{end - start} bytes that were written cannot be read back")
            self._digest.update(self._buffer[:count])
            start += count


def hash_file(path: Path) -> str:
    """The XXH3 hash, 128 bits in hexadecimal, of a file that fits into memory; ``xxh128sum`` prints the same."""
    return xxhash.xxh3_128_hexdigest(path.read_bytes())
