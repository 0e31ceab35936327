"""Weights of the pieces of a graph that take turns in two slots of a device's memory.

A piece's session reads its weights in its slot. While it computes, those of the next piece are copied to the other slot
from memory of the host whose pages are locked, which the device reads itself. Where so much cannot be locked, they are
read from the files each time, of which the system keeps what it has memory for.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from sdort.console import detail
from sdort.errors import ProviderError
from sdort.graph.signature import Array
from sdort.graph.stored_values import StoredValues
from sdort.machine.gpus import free_memory
from sdort.runtime.device_block import ALIGNMENT, DeviceBlock, LockedMemory, call_runtime
from sdort.runtime.device_stream import DeviceStream, await_mark, set_mark
from sdort.runtime.placed_weights import STAGED, THREADS
from sdort.tables import size_text

_LOCKED_SHARE = 0.75
"""Of the host's free memory so much is locked at the most: nothing else can have it then."""
_TO_DEVICE = 1
"""The direction of a copy: ``cudaMemcpyHostToDevice``, and HIP's."""


class StreamedWeights:
    """The weights of pieces, in the order in which these run, again and again.

    Args:
        pieces: the values of each one's weights in the model's files, by name.
        vendor, device_id: of the GPU; an empty vendor is the host.
        stream: address of what the pieces compute on, where a run may return before its end; else 0.

    Raises:
        MemoryShortageError: the slots do not fit.
        BadModelError: the weights cannot be read.
    """

    def __init__(
        self, pieces: Sequence[Mapping[str, StoredValues]], vendor: str, device_id: int, stream: int = 0
    ) -> None:
        self._pieces = pieces
        self._vendor = vendor
        self._device_id = device_id
        self._stream = stream
        layouts = [_layout(piece) for piece in pieces]
        self._offsets = [offsets for offsets, _ in layouts]
        self.sizes = [size for _, size in layouts]
        """Bytes of each piece."""
        self._slot = max(self.sizes)
        self.block = DeviceBlock(vendor, device_id, min(2, len(pieces)) * self._slot)
        self._copies = DeviceStream(vendor, device_id) if vendor else None
        self._read = [self._copies.new_mark() for _ in range(2)] if self._copies else []
        """Marks behind the last run that reads a slot."""
        self._locked = self._lock()
        self._reader = ThreadPoolExecutor(1, "sdort-offload")
        self._reading: dict[int, Future[None]] = {}
        """Reads that go on, by slot."""
        # Nothing is freed that is still copied from or to.
        weakref.finalize(self, _end, self._reader, vendor, self._copies.address if self._copies else 0).atexit = False
        self._held: list[int | None] = [None, None]
        """The piece whose weights each slot has, or is going to have."""
        self._seconds, self._copied = 0.0, 0
        self._values: list[Any] = []

    def _lock(self) -> list[LockedMemory]:
        """Locked memory with the weights of each piece as its slot has them; nothing where there is none."""
        needed, free = sum(self.sizes), free_memory("", 0)
        if not self._vendor:
            return []
        try:
            if free is not None and needed > _LOCKED_SHARE * free:
                raise ProviderError(f"{size_text(free)} of the host's memory are free")
            locked = [LockedMemory(self._vendor, self._device_id, size) for size in self.sizes]
        except ProviderError as error:
            detail(f"--offload: {size_text(needed)} of weights are read from files in every step: {error.message}")
            return []
        with ThreadPoolExecutor(THREADS, "sdort-weights") as pool:
            for piece, offsets, memory in zip(self._pieces, self._offsets, locked, strict=True):
                places = (memory.values[offset : offset + piece[name].nbytes] for name, offset in offsets.items())
                deque(pool.map(_fill, [piece[name] for name in offsets], places), maxlen=0)
        return locked

    def values(self, piece: int) -> dict[str, Any]:
        """The weights of a piece in its slot, as ``OrtValue`` by name, which they are now; whoever has them holds this
        object."""
        started = time.perf_counter()
        self.ask_for(piece)
        self._await_copy(piece)
        self._seconds += time.perf_counter() - started
        self._copied += self.sizes[piece]
        first = piece % 2 * self._slot
        stored = self._pieces[piece]
        values = {
            name: self.block.value(first + offset, stored[name].shape, stored[name].dtype)
            for name, offset in self._offsets[piece].items()
        }
        self._values += values.values()  # a session does not hold them
        return values

    @property
    def speed(self) -> float:
        """Bytes a second of the copies that :meth:`values` made."""
        return self._copied / max(self._seconds, 1e-9)

    def begin(self, piece: int) -> None:
        """Let a piece's run, which comes next, have its weights.

        Raises:
            BadModelError: they cannot be read.
            ProviderError: the device fails.
        """
        self.ask_for(piece)
        if self._copies and self._stream:
            if piece % 2 in self._reading:
                self._reading.pop(piece % 2).result()
            await_mark(self._vendor, self._copies.marks[piece % 2], self._stream)
        else:
            self._await_copy(piece)

    def end(self, piece: int) -> None:
        """Say that a piece's run was asked for: the weights of the next one that has its slot are copied to it."""
        if self._stream:
            set_mark(self._vendor, self._read[piece % 2], self._stream)
        following = piece + 2 if piece + 2 < len(self._pieces) else piece % 2
        self.ask_for(following)

    def ask_for(self, piece: int) -> None:
        """Begin to copy the weights of a piece to its slot, once what was asked for has read what is there."""
        slot = piece % 2
        if self._held[slot] == piece:
            return
        self._held[slot] = piece
        if self._locked:
            self._copy(piece)
        else:
            earlier = self._reading.pop(slot, None)
            if earlier:
                earlier.result()
            first, stored = slot * self._slot, self._pieces[piece]
            places = [(first + offset, stored[name]) for name, offset in self._offsets[piece].items()]
            waited = self._copies if self._stream else None
            self._reading[slot] = self._reader.submit(_read, self.block, places, waited, *self._read[slot : slot + 1])

    def _copy(self, piece: int) -> None:
        """Ask for the copy from locked memory."""
        assert self._copies is not None
        slot, call = piece % 2, call_runtime
        call(self._vendor, "SetDevice", self._device_id)
        if self._stream:
            self._copies.await_mark(self._read[slot])
        target, source = ctypes.c_void_p(self.block.address + slot * self._slot), self._locked[piece].address
        size, stream = ctypes.c_size_t(self.sizes[piece]), ctypes.c_void_p(self._copies.address)
        call(self._vendor, "MemcpyAsync", target, ctypes.c_void_p(source), size, _TO_DEVICE, stream)
        self._copies.set_mark(self._copies.marks[slot])

    def _await_copy(self, piece: int) -> None:
        """Wait until a piece's weights are in its slot."""
        slot = piece % 2
        if slot in self._reading:
            self._reading.pop(slot).result()
        elif self._copies and self._locked:
            self._copies.reach(self._copies.marks[slot])


def _layout(piece: Mapping[str, StoredValues]) -> tuple[dict[str, int], int]:
    """Where each weight lies in a slot, and the bytes of all."""
    offsets, end = dict[str, int](), 0
    for name, values in piece.items():
        offsets[name] = end
        end += values.nbytes + -values.nbytes % ALIGNMENT
    return offsets, end


def _fill(values: StoredValues, place: Array) -> None:
    deque(values.bytes_through(place), maxlen=0)


def _read(
    block: DeviceBlock, places: Sequence[tuple[int, StoredValues]], stream: DeviceStream | None, mark: int = 0
) -> None:
    """Read weights from the files to their places in a block, in a thread that does not hold who asked for it.

    Args:
        stream: of the device, where it is to reach ``mark`` before.
    """
    if block.vendor:
        call_runtime(block.vendor, "SetDevice", block.device_id)
    if stream:
        stream.reach(mark)
    buffer: Array = np.empty(STAGED, np.uint8)
    for place, values in places:
        for part in values.bytes_through(buffer):
            block.write(place, part)
            place += part.nbytes
    block.synchronize()


def _end(reader: ThreadPoolExecutor, vendor: str, stream: int) -> None:
    reader.shutdown(cancel_futures=True)
    if vendor:
        with suppress(ProviderError):  # what failed first says more
            call_runtime(vendor, "StreamSynchronize", ctypes.c_void_p(stream))
