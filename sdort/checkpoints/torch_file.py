"""Files that ``torch.save`` wrote: tables of tensors, which are described and stay in the file.

Both formats are read, without torch (:mod:`sdort.checkpoints.torch_pickle`): the zip file since torch 1.6, and what was
before it, in which many upscalers are published (torch/serialization.py).
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from sdort.checkpoints.lfs import refuse_pointer
from sdort.checkpoints.torch_pickle import Storage, TorchTensor, read_torch_pickle
from sdort.errors import BadModelError
from sdort.files.input_file import open_input
from sdort.graph.pieces import contiguous
from sdort.graph.signature import Array
from sdort.graph.weights import Stored, Weight

_MAX_PICKLE = 1 << 25
"""Bytes of the pickle, without the values of tensors: that of a Stable Diffusion checkpoint has less than a million."""
_LEGACY = 0x1950A86A20F9469CFC6C
"""Number at the beginning of files before torch 1.6."""
_DEPTH = 3
"""Tables in each other that are looked into: a checkpoint, its networks, their tensors."""

Places = Mapping[str, tuple[int, int]]
"""Key of a storage -> offset and bytes of its values in the file."""


class _Strided(Weight):
    """A tensor whose values do not lie row by row.

    Args:
        span: all from its first to its last value.
        strides: from one value to the next along each axis, in values.
    """

    def __init__(self, span: Stored, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        super().__init__(shape, span.dtype)
        self.span, self.strides = span, tuple(step * span.dtype.itemsize for step in strides)

    def load(self) -> Array:
        return contiguous(np.lib.stride_tricks.as_strided(self.span.load(), self.shape, self.strides, writeable=False))


def read_torch_file(path: Path) -> dict[str, Any]:
    """The table in a file of ``torch.save``: name -> a :class:`Weight`, a table, or what is of no use here.

    Raises:
        BadModelError: the file cannot be read, is none of torch's, is damaged, or holds no table.
    """
    refuse_pointer(path)
    try:
        with open_input(path) as raw, io.BufferedReader(cast("io.RawIOBase", raw)) as file:
            is_zip = file.peek(2)[:2] == b"PK"
            size = os.fstat(raw.fileno()).st_size
            content, places = _read_zip(file, size) if is_zip else _read_legacy(file, size)
            described = _described(content, path, places, _DEPTH)
    except BadModelError:
        raise
    except Exception as error:  # a stranger's file ends the parsers in whatever way
        reason = (
            str(error) if type(error) is ValueError and len(str(error)) < 100 else "it is damaged, or of another kind"
        )
        raise BadModelError(
            f"{path} is no file of PyTorch's that sdort reads: {reason}",
            hint="Copy or download it again, or get the same model as .safetensors.",
        ) from error
    if not isinstance(described, dict):
        raise BadModelError(f"{path} holds something else than named tensors")
    return described


def _read_zip(file: BinaryIO, size: int) -> tuple[Any, Places]:
    """The format since torch 1.6: ``NAME/data.pkl``, and ``NAME/data/KEY`` for each storage, all uncompressed."""
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        name = next((name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1), None)
        if name is None:
            raise ValueError("it is an archive of something else")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):
            raise ValueError("its parts are compressed")
        folder = name.removesuffix("data.pkl")
        order = entries.get(f"{folder}byteorder")
        if order is not None and order.file_size < 10 and archive.read(order) != b"little":
            raise ValueError("its numbers are big-endian")
        if entries[name].file_size > _MAX_PICKLE:
            raise ValueError("its pickle is too large")
        content = read_torch_pickle(io.BytesIO(archive.read(name)))
    data = f"{folder}data/"
    places = {
        name.removeprefix(data): (_data_offset(file, entry), entry.file_size)
        for name, entry in entries.items()
        if name.startswith(data)
    }
    if any(offset + length > size for offset, length in places.values()):
        raise ValueError("it is cut off")
    return content, places


def _data_offset(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Where the values of an entry begin: behind its local header, whose name and extra field have lengths of their
    own (PKWARE's APPNOTE, 4.3.7)."""
    file.seek(entry.header_offset)
    header = file.read(30)
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise ValueError("it is damaged")
    name, extra = struct.unpack("<HH", header[26:30])
    return entry.header_offset + 30 + int(name) + int(extra)


def _read_legacy(file: BinaryIO, size: int) -> tuple[Any, Places]:
    """The format before torch 1.6: five pickles, then each storage's number of elements and its values."""
    if read_torch_pickle(file) != _LEGACY:
        raise ValueError("it has no mark of PyTorch's at its beginning")
    read_torch_pickle(file)  # the format's version
    system = read_torch_pickle(file)
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise ValueError("its numbers are big-endian")
    storages: dict[str, Storage] = {}
    content = read_torch_pickle(file, storages)
    keys = read_torch_pickle(file)
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        (count,) = struct.unpack("<q", file.read(8))
        if key not in storages:
            raise ValueError("it has values of a kind that sdort does not know")
        length = count * storages[key].dtype.itemsize
        if count < 0 or file.tell() + length > size:
            raise ValueError("it is cut off")
        places[key] = (file.tell(), length)
        file.seek(length, os.SEEK_CUR)
    return content, places


def _described(value: Any, path: Path, places: Places, depth: int) -> Any:
    if isinstance(value, TorchTensor):
        return _weight(value, path, places)
    if not isinstance(value, dict) or not depth:
        return value
    return {str(name): _described(part, path, places, depth - 1) for name, part in value.items()}


def _weight(tensor: TorchTensor, path: Path, places: Places) -> Weight:
    storage, shape, strides = tensor.storage, tensor.shape, tensor.strides
    if storage.key not in places:
        raise ValueError("the values of a tensor are missing")
    offset, length = places[storage.key]
    first, count = storage.first + tensor.offset, math.prod(shape)
    last = first + sum((side - 1) * step for side, step in zip(shape, strides, strict=True))
    if count and not 0 <= first <= last < length // storage.dtype.itemsize:
        raise ValueError("a tensor lies outside of its values")
    if count > max(last - first + 1, 1):
        raise ValueError("a tensor has more elements than values")
    start = offset + first * storage.dtype.itemsize
    dense = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if count < 2 or all(step == want or side == 1 for side, step, want in zip(shape, strides, dense, strict=True)):
        return Stored(path, start, shape, storage.dtype)
    return _Strided(Stored(path, start, (last - first + 1,), storage.dtype), shape, strides)
