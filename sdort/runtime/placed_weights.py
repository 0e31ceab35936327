"""A session's weights in one block of the device's memory, which the session reads where they are.

ONNX Runtime allocates every initializer alone, and a GPU's driver gives memory in pieces of 2 MiB: of a UNet's weights
that takes a sixth more than they have.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from sdort.graph.domains import MICROSOFT
from sdort.graph.signature import Array
from sdort.graph.stored_values import StoredValues
from sdort.onnx_io.branches import outer_names
from sdort.onnx_io.external import ExternalData
from sdort.runtime.device_block import ALIGNMENT, DeviceBlock

LEAST = 1 << 16
"""Bytes of the smallest weight that is placed; ONNX Runtime packs smaller ones."""
THREADS = 4
"""Weights that are read at a time: one is read while another one is copied."""
STAGED = 1 << 22
"""Bytes of the memory that each of them is read to and copied from."""
READERS = {
    ("", "MatMul"): {0, 1},
    ("", "Gemm"): {0, 1},
    ("", "Conv"): {1},
    ("", "Gather"): {0},
    (MICROSOFT, "NhwcConv"): {1},
    (MICROSOFT, "Attention"): {1},
    (MICROSOFT, "MatMulNBits"): {1, 2, 3},
}
"""Operators, and which of their inputs: what every GPU provider computes itself, and does not leave to the CPU, which
could not read the device's memory."""
_DTYPES: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.UINT8: np.dtype(np.uint8),
}


class PlacedWeights:
    """Initializers of a model in one block of a device's memory.

    Args:
        stored: their values in the model's files, by name.
        vendor, device_id: of the GPU; an empty vendor is the host.
        tied: whether those that have one place in the files have one here.

    Raises:
        MemoryShortageError: they do not fit.
        BadModelError: they cannot be read.
    """

    def __init__(self, stored: Mapping[str, StoredValues], vendor: str, device_id: int, *, tied: bool = True) -> None:
        places: dict[object, int] = {}
        end = 0
        self._stored = dict(stored)
        self._offsets: dict[str, int] = {}
        for name, values in stored.items():
            place = _place(values) if tied else name
            if place not in places:
                places[place] = end
                end += values.nbytes + -values.nbytes % ALIGNMENT
            self._offsets[name] = places[place]
        self.block = DeviceBlock(vendor, device_id, end)
        self.load({offset: name for name, offset in self._offsets.items()}.values())
        self.initializers = {
            name: self.block.value(self._offsets[name], values.shape, values.dtype) for name, values in stored.items()
        }
        """Weights that a session is opened on, as ``OrtValue`` by name: whoever has them holds this object."""

    def load(self, names: Iterable[str]) -> None:
        """Write the values that the files have.

        Args:
            names: one at least.

        Raises:
            BadModelError: they cannot be read.
        """
        names = list(names)
        piece = min(STAGED, max(self._stored[name].nbytes for name in names))
        with self.block.staging(THREADS * piece) as memory, ThreadPoolExecutor(THREADS, "sdort-weights") as pool:
            buffers = SimpleQueue[Array]()
            for buffer in memory.reshape(THREADS, piece):
                buffers.put(buffer)
            deque(pool.map(partial(self._load, buffers), names), maxlen=0)
            self.block.synchronize()

    def load_one(self, name: str) -> None:
        """Write the values that the files have of one weight, in any thread; errors are as there."""
        buffers = SimpleQueue[Array]()
        buffers.put(np.empty(min(STAGED, self._stored[name].nbytes), np.uint8))
        self._load(buffers, name)
        self.block.synchronize()

    def _load(self, buffers: SimpleQueue[Array], name: str) -> None:
        """Copy a weight through one of ``buffers``, of which each thread finds one."""
        offset, buffer = self._offsets[name], buffers.get()
        try:
            for piece in self._stored[name].bytes_through(buffer):
                self.block.write(offset, piece)
                offset += piece.nbytes
        finally:
            buffers.put(buffer)


def _place(values: StoredValues) -> tuple[Path, int, int]:
    return values.path, values.offset, values.nbytes


def placeable(model: onnx.ModelProto, path: Path, component: str, but: Collection[str] = ()) -> dict[str, StoredValues]:
    """The initializers of a model that can be placed: large ones of float types and uint8, beside its file, that
    nothing but :data:`READERS` reads.

    Args:
        path: the model's file.
        but: names of those that somebody else places.

    Raises:
        BadModelError: their data is not where the model says.
    """
    external = ExternalData(path, component)
    read = _reads(model)
    found: dict[str, StoredValues] = {}
    for tensor in model.graph.initializer:
        dtype = _DTYPES.get(tensor.data_type)
        if dtype is None or tensor.data_location != TensorProto.EXTERNAL or tensor.name in but:
            continue
        readers = read[tensor.name]
        large = dtype.itemsize * math.prod(tensor.dims) >= LEAST
        if large and readers and all(index in READERS.get(reader, ()) for reader, index in readers):
            found[tensor.name] = StoredValues(*external.locate(tensor), tensor.dims, dtype)
    return found


def _reads(model: onnx.ModelProto) -> Mapping[str, list[tuple[tuple[str, str], int]]]:
    """Who reads each value: the operator and its input. What an inner graph reads, or the model gives, has no name."""
    read: defaultdict[str, list[tuple[tuple[str, str], int]]] = defaultdict(list)
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            read[name].append(((node.domain.replace("ai.onnx", ""), node.op_type), index))
        for name in outer_names(node):
            read[name].append((("", ""), 0))
    for value in (*model.graph.output, *model.graph.input):
        read[value.name].append((("", ""), 0))
    return read
