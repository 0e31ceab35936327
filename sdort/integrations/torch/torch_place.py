"""Where torch and an execution provider meet: the device that both compute on, and the stream that orders them."""

from __future__ import annotations

from collections.abc import Iterator
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

    @contextmanager
    def running(self) -> Iterator[None]:
        """A block in which torch and the session compute on :attr:`stream`, after all that was asked of torch's current
        stream before, and before all that is asked of it later. The host waits for nothing.

        The session cannot take the current stream itself: which one that is changes from call to call, a session keeps
        the stream that it was made with, and torch's default stream has the address 0, which ONNX Runtime takes for
        none and which no graph of the device can be recorded on.
        """
        if self.stream is None:
            yield
            return
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            current.wait_stream(self.stream)

    def hand_over(self, tensor: torch.Tensor) -> None:
        """Let the memory of a tensor that was made in :meth:`running` be of use to the current stream until it is free
        there too."""
        if self.stream is not None:
            tensor.record_stream(torch.cuda.current_stream(self.device))


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
