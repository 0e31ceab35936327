"""Peak memory of the process and of the device during a call.

Both are growth over what was in use before the model was opened, so that Python, torch, another pipeline that is open
at the same time, and other programs on the card do not count.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sdort.providers.provider import Provider
from sdort.runtime.environment import run_tool

MIB = 1 << 20
_HOST_PERIOD, _TOOL_PERIOD = 0.002, 0.2
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
        device = _Sampler(self._device_used, _HOST_PERIOD if _is_fast(self._device_used) else _TOOL_PERIOD)
        # The kernel keeps the peak itself, and it can be set back; where it cannot, a thread looks often.
        exact = _reset_peak()
        host = _Sampler(None if exact else resident, _HOST_PERIOD)
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

    def __init__(self, read: Callable[[], int | None] | None, period: float) -> None:
        self.first: int | None = None
        self.highest: int | None = None
        self.last: int | None = None
        self._read = read
        self._period = period
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
        while not self._stop.wait(self._period):
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


def _return_freed_memory() -> None:
    """Give back freed pages and torch's cache of the device; what is kept would hide the growth of the next model."""
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
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
        (process / "clear_refs").write_text("5")
    except OSError:
        return False
    peak = peak_resident(process)
    return peak is not None and peak <= resident() + _SLACK


def peak_resident(process: Path = _PROCESS) -> int | None:
    """Bytes that the process held at its highest point; None where the kernel does not tell."""
    with suppress(OSError, ValueError, StopIteration):
        lines = (process / "status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    return None


def device_reader(provider: Provider, device_id: int) -> Callable[[], int | None] | None:
    """A function that reads how many bytes of the device are in use, by all programs; None where nothing tells."""
    if not provider.on_gpu:
        return None
    readers: dict[str, Callable[[], int | None]] = {
        "nvidia": partial(_nvidia_used, device_id),
        "amd": _AmdUsed(device_id),
    }
    reader = readers.get(provider.vendor, lambda: None)
    return reader if reader() is not None else None


class DeviceGrowth:
    """Bytes of the device that are in use beyond those at the start; other programs' growth counts too."""

    def __init__(self, provider: Provider, device_id: int) -> None:
        self._used = device_reader(provider, device_id)
        self._start = self._used() if self._used else None

    def bytes(self) -> int | None:
        """The growth by now; None where nothing tells."""
        used = self._used() if self._used else None
        return None if used is None or self._start is None else max(0, used - self._start)


def _is_fast(reader: Callable[[], int | None] | None) -> bool:
    return isinstance(reader, _AmdUsed)


def _nvidia_used(device_id: int) -> int | None:
    lines = run_tool("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={device_id}")
    with suppress(ValueError):
        return int(lines[0]) * MIB if lines else None
    return None


@dataclass(frozen=True)
class _AmdUsed:
    """The amdgpu driver's own counter; cards are in the order of their PCI addresses, as HIP numbers them."""

    device_id: int
    root: Path = Path("/sys/class/drm")

    def __call__(self) -> int | None:
        files = {file.resolve() for file in self.root.glob("card*/device/mem_info_vram_used")}
        with suppress(OSError, ValueError, IndexError):
            return int(sorted(files)[self.device_id].read_text())
        return None
