"""Peak memory of the process and of the device during a call.

Both are growth over what was in use before the model was opened, so that Python, torch, another pipeline that is open
at the same time, and other programs on the card do not count.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.machine.gpus import memory_reader
from sdort.machine.os_calls import os_calls
from sdort.providers.provider import Provider

MIB = 1 << 20
_PERIOD = 0.002
"""Seconds between two looks."""
_PROCESS = Path("/proc/self")
_SLACK = 4 * MIB
"""The kernel counts pages in batches per core, and other threads go on."""


def resident() -> int:
    """Bytes of memory that the process holds now."""
    import psutil

    return int(psutil.Process().memory_info().rss)


@dataclass
class Peak:
    """Bytes at the highest point; None where the machine does not tell."""

    host: int = 0
    device: int | None = None


class Meter:
    """Measures what one engine holds, while others may be open beside it.

    What the engine holds is the sum of what memory grew by while it was at work, so that it does not matter what else
    was opened in between.
    """

    def __init__(self, provider: Provider, device_id: int) -> None:
        self._device_used = device_reader(provider, device_id)
        self._held = Peak(0, 0)

    def forget(self) -> None:
        """The engine was closed."""
        self._held = Peak(0, 0)

    @contextmanager
    def peak(self) -> Iterator[Peak]:
        """Measure memory while the block runs; the result is filled in at its end."""
        result = Peak()
        _return_freed_memory()
        device = _Sampler(self._device_used)
        # The kernel keeps the peak itself, and it can be set back; where it cannot, a thread looks often.
        exact = _reset_peak()
        host = _Sampler(None if exact else resident)
        start = resident()
        with device, host:
            yield result
        highest = peak_resident() if exact else host.highest
        result.host = self._held.host + max(0, (highest or start) - start)
        # What the block freed may still lie with the allocators: the engine does not hold it.
        _return_freed_memory()
        device.look()
        self._held.host = max(0, self._held.host + resident() - start)
        if device.first is not None and device.highest is not None and device.last is not None:
            held = self._held.device or 0
            result.device = held + device.highest - device.first
            self._held.device = max(0, held + device.last - device.first)


class _Sampler:
    """A thread that reads a number again and again and keeps the highest; idle when there is nothing to read."""

    def __init__(self, read: Callable[[], int | None] | None) -> None:
        self.first: int | None = None
        self.highest: int | None = None
        self.last: int | None = None
        self._read = read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def look(self) -> None:
        """Read now, in the caller's thread."""
        value = self._read() if self._read else None
        if value is not None:
            self.first = value if self.first is None else self.first
            self.highest = max(value, self.highest or 0)
            self.last = value

    def _loop(self) -> None:
        while not self._stop.wait(_PERIOD):
            self.look()

    def __enter__(self) -> _Sampler:
        self.look()
        if self._read:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        if self._read:
            self._thread.join()
        self.look()


def return_freed_pages() -> None:
    """Give pages of the host's memory that are free, and that the C library keeps, back to the system."""
    with suppress(OSError, AttributeError):  # only glibc has it
        os_calls.c_library().malloc_trim(0)


def _return_freed_memory() -> None:
    """Give back freed pages and torch's cache of the device; what is kept would hide the growth of the next model."""
    return_freed_pages()
    if torch_on_gpu():
        sys.modules["torch"].cuda.empty_cache()


def torch_on_gpu() -> bool:
    """Whether torch uses a GPU in this process, so that a :class:`Meter` leaves its cache of memory empty."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _reset_peak(process: Path = _PROCESS) -> bool:
    """Set the kernel's record of the peak back to what is resident now (Linux); False if it did not go there.

    Containers may forbid it, and a sandbox that only imitates Linux may accept it and do nothing.
    """
    try:
        (process / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    peak = peak_resident(process)
    return peak is not None and peak <= resident() + _SLACK


def peak_resident(process: Path = _PROCESS) -> int | None:
    """Bytes that the process held at its highest point; None where the kernel does not tell."""
    with suppress(OSError, ValueError, StopIteration):
        lines = (process / "status").read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    return None


def device_reader(provider: Provider, device_id: int) -> Callable[[], int | None] | None:
    """A function that reads how many bytes of the device are in use, by all programs; None where nothing tells."""
    if not provider.on_gpu:
        return None
    read = memory_reader(provider.vendor, device_id)

    def used() -> int | None:
        memory = read() if read else None
        return memory.used if memory else None

    return used if used() is not None else None


class DeviceGrowth:
    """Bytes of the device that are in use beyond those at the start; other programs' growth counts too."""

    def __init__(self, provider: Provider, device_id: int) -> None:
        self._used = device_reader(provider, device_id)
        self._start = self._used() if self._used else None
        self._highest = self._start or 0

    def look(self) -> None:
        """Remember what is in use now, before some of it is given back."""
        self._highest = max(self._highest, (self._used() if self._used else None) or 0)

    def bytes(self) -> int | None:
        """The growth by now, or when there was a :meth:`look` and it was more; None where nothing tells."""
        used = self._used() if self._used else None
        return None if used is None or self._start is None else max(used, self._highest) - self._start
