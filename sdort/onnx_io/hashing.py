"""The XXH3 hash (128 bits) of a file, computed while it is being written, or of one that lies there.

It notices damage, as a checksum does, at the speed of memory: SHA-256 would take twice as long as the writing. It is
no proof against someone who forges a file, and one beside the file would be none either.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import xxhash

from sdort.machine.os_calls import os_calls

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
            count = os_calls.read_into(self._descriptor, self._buffer[: end - start], start)
            if not count:
                raise OSError(f"{end - start} bytes that were written cannot be read back")
            self._digest.update(self._buffer[:count])
            start += count


def hash_open(descriptor: int, goes_on: Callable[[], bool] = lambda: True) -> str:
    """The XXH3 hash, 128 bits in hexadecimal, of an open file from where it stands; ``xxh128sum`` prints the same.

    Args:
        goes_on: asked after every block; where it says no, what is returned is the hash of a beginning.

    Raises:
        OSError: it cannot be read.
    """
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_BLOCK))
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        while (count := file.readinto(buffer)) and goes_on():
            digest.update(buffer[:count])
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    """:func:`hash_open` of a file of sdort's own.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        return hash_open(file.fileno())


def hash_bytes(content: bytes) -> str:
    """The XXH3 hash, 128 bits in hexadecimal, of bytes in memory."""
    return xxhash.xxh3_128_hexdigest(content)
