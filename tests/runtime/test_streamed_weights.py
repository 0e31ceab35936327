"""Weights that take turns in two slots: on a device whose streams compute as late, or as early, as they may."""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdort.errors import BadModelError
from sdort.graph.stored_values import StoredValues
from sdort.runtime import device_block, streamed_weights
from sdort.runtime.device_block import ALIGNMENT
from sdort.runtime.device_stream import DeviceStream
from sdort.runtime.streamed_weights import StreamedWeights

SIZES = [[700, 100], [1300], [300, 300, 300], [900]]
"""Bytes of each piece's weights."""


class Device:
    """CUDA's runtime over the host's memory. What a stream is asked for waits in a queue until somebody waits for it.

    Attributes:
        order: numbers of streams, in the order in which they go on where several may.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._libc.malloc.restype = ctypes.c_void_p
        self.held, self.locked = set[int](), set[int]()
        self.locks = True
        self.copies = 0
        """Copies that were asked for of a stream."""
        self.streams: dict[int, deque[Callable[[], bool]]] = {}
        self.order: list[int] = []
        self.reached: dict[int, int] = {}
        self.asked: dict[int, int] = {}
        """How often each event was reached, and how often a stream was asked for it."""
        self._numbers = itertools.count(1)

    def _new(self, pointer: Any) -> int:
        number = next(self._numbers)
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] = number
        return number

    def _memory(self, pointer: Any, size: ctypes.c_size_t, kept: set[int]) -> int:
        address = self._libc.malloc(ctypes.c_size_t(size.value + ALIGNMENT))
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] = address
        kept.add(address)
        return 0

    def cudaSetDevice(self, number: int) -> int:
        return 0

    def cudaGetLastError(self) -> int:
        return 0

    def cudaMalloc(self, pointer: Any, size: ctypes.c_size_t) -> int:
        return self._memory(pointer, size, self.held)

    def cudaHostAlloc(self, pointer: Any, size: ctypes.c_size_t, flags: Any) -> int:
        return self._memory(pointer, size, self.locked) if self.locks else 2

    def cudaFree(self, address: ctypes.c_void_p) -> int:
        self.held.remove(address.value or 0)
        self._libc.free(address)
        return 0

    def cudaFreeHost(self, address: ctypes.c_void_p) -> int:
        assert not any(self.streams.values()), "something is still copied from it"
        self.locked.remove(address.value or 0)
        self._libc.free(address)
        return 0

    def cudaMemcpy(self, target: ctypes.c_void_p, source: ctypes.c_void_p, size: ctypes.c_size_t, kind: int) -> int:
        ctypes.memmove(target, source, size.value)
        return 0

    def cudaDeviceSynchronize(self) -> int:
        return 0

    def cudaStreamCreateWithFlags(self, pointer: Any, flags: Any) -> int:
        self.streams[self._new(pointer)] = deque()
        self.order = list(self.streams)
        return 0

    def cudaEventCreateWithFlags(self, pointer: Any, flags: Any) -> int:
        number = self._new(pointer)
        self.reached[number] = self.asked[number] = 0
        return 0

    def cudaStreamDestroy(self, stream: ctypes.c_void_p) -> int:
        return 0

    def cudaEventDestroy(self, event: ctypes.c_void_p) -> int:
        return 0

    def ask(self, stream: int, work: Callable[[], Any]) -> None:
        """Put work at the end of a stream."""
        self.streams[stream].append(lambda: work() is not False)

    def cudaMemcpyAsync(
        self,
        target: ctypes.c_void_p,
        source: ctypes.c_void_p,
        size: ctypes.c_size_t,
        kind: int,
        stream: ctypes.c_void_p,
    ) -> int:
        assert kind == 1
        self.copies += 1
        self.ask(stream.value or 0, lambda: ctypes.memmove(target, source, size.value))
        return 0

    def cudaEventRecord(self, event: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
        number = event.value or 0
        self.asked[number] += 1
        time = self.asked[number]
        self.ask(stream.value or 0, lambda: self.reached.update({number: time}))
        return 0

    def cudaStreamWaitEvent(self, stream: ctypes.c_void_p, event: ctypes.c_void_p, flags: Any) -> int:
        number = event.value or 0
        time = self.asked[number]
        self.ask(stream.value or 0, lambda: self.reached[number] >= time)
        return 0

    def cudaEventSynchronize(self, event: ctypes.c_void_p) -> int:
        number = event.value or 0
        time = self.asked[number]
        self._go_on(lambda: self.reached[number] >= time)
        return 0

    def cudaStreamSynchronize(self, stream: ctypes.c_void_p) -> int:
        self._go_on(lambda: not self.streams[stream.value or 0])
        return 0

    def _go_on(self, done: Callable[[], bool]) -> None:
        """Let the streams compute until something is done."""
        while not done():
            assert any(self._step(stream) for stream in self.order), "all streams wait"

    def _step(self, stream: int) -> bool:
        queue = self.streams[stream]
        if queue and queue[0]():
            queue.popleft()
            return True
        return False


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device()
    monkeypatch.setattr(device_block, "_loaded", lambda _: made)
    monkeypatch.setitem(device_block.KINDS, "nvidia", device_block.KINDS[""])
    yield made
    gc.collect()
    assert (made.held, made.locked) == (set(), set())


def pieces(folder: Path, count: int) -> tuple[list[dict[str, StoredValues]], list[dict[str, Any]]]:
    """Weights in a file, and their values."""
    rng = np.random.default_rng(0)
    stored, values, offset = list[dict[str, StoredValues]](), list[dict[str, Any]](), 0
    with (folder / "weights").open("wb") as file:
        for number in range(count):
            stored.append({})
            values.append({})
            for size in SIZES[number % len(SIZES)]:
                name = f"w{number}.{len(stored[-1])}"
                stored[-1][name] = StoredValues(folder / "weights", offset, (size,), np.uint8)
                values[-1][name] = rng.integers(0, 256, size, np.uint8)
                file.write(values[-1][name].tobytes())
                offset += size
    return stored, values


def run(device: Device, folder: Path, count: int, *, stream: bool, copies_first: bool, steps: int = 3) -> list[int]:
    """The pieces whose runs found other weights than their own.

    Args:
        stream: whether runs return before their end, and are waited for after all steps; else each is done at once.
        copies_first: whether copies are made before runs where both may go on.
    """
    compute = DeviceStream("nvidia", 0) if stream else None
    stored, expected = pieces(folder, count)
    streamed = StreamedWeights(stored, "nvidia", 0, compute.address if compute else 0)
    device.order.sort(reverse=copies_first)
    read = [streamed.values(number) for number in range(count)]
    wrong: list[int] = []

    def look(number: int) -> None:
        for name, value in read[number].items():
            if not np.array_equal(value.numpy(), expected[number][name]):
                wrong.append(number)

    for _ in range(steps):
        for number in range(count):
            streamed.begin(number)
            if compute:
                device.ask(compute.address, partial(look, number))
            else:
                look(number)
            streamed.end(number)
    if compute:
        compute.wait()
    return wrong


@pytest.mark.parametrize("copies_first", [True, False])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_each_run_reads_its_own_weights(
    stream: bool, locks: bool, count: int, copies_first: bool, device: Device, tmp_path: Path
) -> None:
    device.locks = locks
    assert run(device, tmp_path, count, stream=stream, copies_first=copies_first) == []
    if locks:
        # Each once to be opened, then in every step, and the first ones for the next step. What has a slot alone stays.
        assert device.copies == {2: 2, 3: 3 + 3 * 2 + 1, 4: 4 + 3 * 4 + 2, 5: 5 + 3 * 5 + 2}[count]


@pytest.mark.parametrize(("missing", "copies_first"), [("await_mark", False), ("_copies.await_mark", True)])
def test_a_slot_is_neither_read_nor_written_too_early(
    missing: str, copies_first: bool, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one of the two waits the device would."""
    if missing == "await_mark":
        monkeypatch.setattr(streamed_weights, "await_mark", lambda *_: None)
    else:
        monkeypatch.setattr(DeviceStream, "await_mark", lambda *_: None)
    assert run(device, tmp_path, 4, stream=True, copies_first=copies_first)


def test_what_is_copied_is_read_again_where_so_much_cannot_be_locked(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_weights, "free_memory", lambda *_: 3000)
    assert run(device, tmp_path, 4, stream=True, copies_first=True) == []
    assert (device.copies, device.locked) == (0, set())


def test_a_file_that_ends_early_is_told_in_the_run(tmp_path: Path) -> None:
    stored, _ = pieces(tmp_path, 3)
    streamed = StreamedWeights(stored, "", 0)
    (tmp_path / "weights").write_bytes(b"")
    with pytest.raises(BadModelError, match="ends 700 bytes before the end of a tensor"):
        streamed.begin(0)
