"""NVIDIA's management library (NVML) in this process, which answers at once: nvidia-smi is a process a question."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol


@dataclass(frozen=True)
class CardState:
    """How fast a GPU may run and runs, as its driver tells; None for what it does not.

    Attributes:
        clock: of its processors, in MHz.
        top_clock: the highest that it has.
        power: what it takes, in watts.
        power_limit: the most that it may take.
        usual_limit: the limit that it comes with.
        hot: whether it is slowed down by heat.
    """

    clock: float | None = None
    top_clock: float | None = None
    power: float | None = None
    power_limit: float | None = None
    usual_limit: float | None = None
    hot: bool = False


@dataclass(frozen=True)
class Memory:
    """Memory of a GPU in bytes, as its driver counts it for all programs."""

    free: int
    used: int


_SM_CLOCK = 1
"""NVML's number of the clock of the multiprocessors (nvml.h, ``NVML_CLOCK_SM``)."""
_HEAT = 0x20 | 0x40
"""``nvmlClocksThrottleReasonSwThermalSlowdown`` and ``...HwThermalSlowdown``."""


class Management(Protocol):
    """Access to the GPUs of a machine by their vendor's library."""

    def gpus(self) -> list[tuple[str, tuple[int, int], int]]:
        """Name, compute capability and bytes of each GPU, in the order of their places on the PCI bus."""

    def memory(self, device_id: int) -> Callable[[], Memory | None] | None:
        """A function that reads the memory of the GPU that CUDA gives this number; None if there is none."""

    def state(self, device_id: int) -> CardState | None:
        """Clocks and power of the GPU that CUDA gives this number; None if there is none."""


class Nvml:
    """The library itself, opened once and never closed: other code of this process may use it too.

    Args:
        binding: NVIDIA's Python binding, the module ``pynvml``, after ``nvmlInit``.
    """

    def __init__(self, binding: Any) -> None:
        self._nvml = binding

    def gpus(self) -> list[tuple[str, tuple[int, int], int]]:
        handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return [self._gpu(handle) for handle in handles]

    def _gpu(self, handle: Any) -> tuple[str, tuple[int, int], int]:
        capability: tuple[int, int] = (0, 0)
        total = 0
        # A GPU whose memory is the computer's has no memory of its own, and says so by an error.
        with suppress(self._nvml.NVMLError):
            capability = self._nvml.nvmlDeviceGetCudaComputeCapability(handle)
            total = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total)
        return str(self._nvml.nvmlDeviceGetName(handle)), capability, total

    def memory(self, device_id: int) -> Callable[[], Memory | None] | None:
        handle = self._handle(device_id)
        if handle is None:
            return None

        def read() -> Memory | None:
            try:
                found = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            except self._nvml.NVMLError:
                return None
            return Memory(int(found.free), int(found.used))

        return read

    def state(self, device_id: int) -> CardState | None:
        handle, nvml = self._handle(device_id), self._nvml
        if handle is None:
            return None

        def told(call: str, *more: Any) -> Any:
            with suppress(nvml.NVMLError, AttributeError):  # an older binding has not every call
                return getattr(nvml, call)(handle, *more)
            return None

        watts = [
            told(f"nvmlDeviceGet{call}")
            for call in ("PowerUsage", "PowerManagementLimit", "PowerManagementDefaultLimit")
        ]
        power, limit, usual = (None if each is None else each / 1000 for each in watts)
        clock, top = (told(f"nvmlDeviceGet{call}", _SM_CLOCK) for call in ("ClockInfo", "MaxClockInfo"))
        reasons = told("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return CardState(clock, top, power, limit, usual, bool(reasons & _HEAT))

    def _handle(self, device_id: int) -> Any:
        """The GPU that CUDA gives this number.

        CUDA numbers the fastest GPU first and leaves out what ``CUDA_VISIBLE_DEVICES`` leaves out; NVML numbers all of
        them in the order of the bus. Both know a GPU, or a part of one (MIG), by its UUID.
        """
        identity = cuda_uuid(device_id)
        for name in (f"GPU-{identity}", f"MIG-{identity}") if identity else ():
            with suppress(self._nvml.NVMLError):
                return self._nvml.nvmlDeviceGetHandleByUUID(name)
        with suppress(self._nvml.NVMLError):
            return None if identity else self._nvml.nvmlDeviceGetHandleByIndex(device_id)
        return None


@cache
def opened_nvml() -> Nvml | None:
    """The library of this machine; None without NVIDIA's driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return Nvml(pynvml)


@cache
def cuda_uuid(device_id: int) -> str | None:
    """UUID of the GPU that CUDA's driver gives this number; None without that driver or such a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, found = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    calls = (
        (driver.cuInit, 0),
        (driver.cuDeviceGet, ctypes.byref(device), device_id),
        (driver.cuDeviceGetUuid_v2, found, device),
    )
    return None if any(call(*arguments) for call, *arguments in calls) else str(uuid.UUID(bytes=bytes(found)))
