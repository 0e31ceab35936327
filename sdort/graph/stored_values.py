"""Values of a tensor that lie in a file, read without a graph library: sessions look at them too."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sdort.errors import BadModelError
from sdort.files.input_file import open_input
from sdort.graph.pieces import piece_size
from sdort.graph.signature import Array


class StoredValues:
    """Raw little-endian, row-major bytes of a tensor of ``shape`` and ``dtype`` at ``offset`` of a file."""

    def __init__(self, path: Path, offset: int, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        self.path = path
        self.offset = offset
        self.shape = tuple(int(d) for d in shape)
        self.dtype = np.dtype(dtype)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def load(self) -> Array:
        array: Array = np.empty(self.shape, self.dtype)
        with self._opened() as file:
            self._fill(file, array.reshape(-1))
        return array

    def pieces(self, row: int = 1) -> Iterator[Array]:
        left, step = math.prod(self.shape), piece_size(row)
        buffer: Array = np.empty(min(left, step), self.dtype)
        with self._opened() as file:
            while left:
                piece = buffer[:left]
                self._fill(file, piece)
                left -= piece.size
                yield piece

    def bytes_through(self, buffer: Array) -> Iterator[Array]:
        """The bytes in pieces, uint8, each at the beginning of ``buffer`` until the next one is asked for.

        Args:
            buffer: uint8 [bytes].
        """
        left = self.nbytes
        with self._opened() as file:
            while left:
                piece = buffer[:left]
                self._fill(file, piece)
                left -= piece.size
                yield piece

    @contextmanager
    def _opened(self) -> Iterator[FileIO]:
        try:
            with open_input(self.path, "the weights") as file:
                file.seek(self.offset)
                yield typing.cast(FileIO, file)
        except OSError as error:
            raise BadModelError(f"cannot read weights from {self.path}: {error.strerror or error}") from error

    def _fill(self, file: FileIO, flat: Array) -> None:
        # A read, not a map: pages of a mapped file would count towards the process's memory.
        view = flat.view(np.uint8).data
        done = 0
        while done < len(view):
            count = file.readinto(view[done:])
            if not count:
                raise BadModelError(
                    f"{self.path} ends {len(view) - done} bytes before the end of a tensor",
                    hint="The file is truncated; copy or download it again.",
                )
            done += count
