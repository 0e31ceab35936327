"""Where torch and an execution provider meet: the device that both compute on, and the stream that orders them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from sdort.providers.provider import Provider

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class TorchPlace:
    """The memory in which torch and a session hand each other tensors.

    Attributes:
        device: torch's. The CPU also where the provider's GPU is none of torch's: ONNX Runtime copies then.
        stream: what the session computes on, a stream of torch's; None on the CPU.
    """

    device: torch.device
    stream: Any = None

    @property
    def memory(self) -> tuple[str, int]:
        """The device's name and index as ONNX Runtime's ``IOBinding`` takes them; a ROCm build says cuda too."""
        return self.device.type, self.device.index or 0

    @property
    def address(self) -> int:
        """The stream's address, as ``RuntimeOptions.stream`` takes it."""
        return int(self.stream.cuda_stream) if self.stream else 0


class StreamOrder:
    """The order of a session's work on :attr:`TorchPlace.stream` and of torch's on the streams of those who call.

    The session cannot take torch's current stream itself: which one that is changes from call to call, a session keeps
    the stream that it was made with, and torch's default stream has the address 0, which ONNX Runtime takes for none
    and which no graph of the device can be recorded on. So torch hands inputs over, and takes outputs back, on the
    stream of the caller; the host waits for nothing. One thread at a time; on the CPU there is nothing to order.
    """

    def __init__(self, place: TorchPlace) -> None:
        self.place = place
        self._current: Any = None
        """Torch's stream in this call; None on the CPU."""
        self._address: int | None = None
        """Its address; None before the first call, and while a graph is captured."""
        self._has_left = False
        if place.stream is not None:
            self._given, self._done, self._left = (torch.cuda.Event() for _ in range(3))

    def begin(self) -> None:
        """Begin a call. Memory that is kept from call to call may be used on torch's current stream from now on."""
        if self.place.stream is None:
            return
        address = torch._C._cuda_getCurrentRawStream(self.place.device.index)  # current_stream() takes microseconds
        if torch.cuda.is_current_stream_capturing():  # what is captured can wait for nothing outside of it
            address = None
        elif address == self._address:
            return
        self._current, self._address = torch.cuda.current_stream(self.place.device), address
        if address is not None and self._has_left:
            self._current.wait_event(self._left)

    def end(self) -> None:
        """End a call: one on another stream will wait for what was asked of this one's."""
        if self._address is not None:
            self._left.record(self._current)
            self._has_left = True

    def run(self, call: Callable[[], object]) -> None:
        """Let the session compute, after all that was asked of torch's current stream before, and before all that is
        asked of it later."""
        if self._current is None:
            call()
            return
        self._given.record(self._current)
        self.place.stream.wait_event(self._given)
        try:
            call()
        finally:
            self._done.record(self.place.stream)
            self._current.wait_event(self._done)

    @contextmanager
    def making(self) -> Iterator[None]:
        """A block in which torch too computes and allocates on the session's stream: what is made there is kept, and
        the memory goes back to where all who use it are waited for."""
        if self._current is None:
            yield
            return
        self.place.stream.wait_stream(self._current)
        try:
            with torch.cuda.stream(self.place.stream):
                yield
        finally:
            self._current.wait_stream(self.place.stream)


def find_place(provider: Provider, device_id: int) -> TorchPlace:
    """Where torch and a provider's session meet.

    The GPU, where this build of torch computes on GPUs of that vendor (torch calls AMD's ``cuda`` too) and the provider
    takes a stream; else the CPU.
    """
    builds = {"nvidia": torch.version.cuda, "amd": torch.version.hip}
    shared = provider.device and provider.stream and builds.get(provider.vendor) and torch.cuda.is_available()
    if not shared:
        return TorchPlace(_CPU)
    device = torch.device("cuda", device_id)
    return TorchPlace(device, torch.cuda.Stream(device))
