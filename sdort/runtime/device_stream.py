"""The stream of a GPU that sessions of one pipeline compute on, so that the host need not wait between their runs."""

from __future__ import annotations

import ctypes
import weakref
from threading import Lock

from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.device_block import call_runtime, give_back, is_reachable

_NON_BLOCKING = 1
"""``cudaStreamNonBlocking``, and HIP's: as the streams that ONNX Runtime makes."""
_NO_TIMING = 2
"""``cudaEventDisableTiming``, and HIP's."""


class DeviceStream:
    """A stream of a GPU, which lasts as long as this object.

    Args:
        vendor: ``nvidia`` or ``amd``.
        device_id: which of its GPUs.

    Attributes:
        address: as ``RuntimeOptions.stream`` takes it.
        marks: two points in the work of the stream, which :meth:`set_mark` sets.

    Raises:
        ProviderError: the device fails.
    """

    def __init__(self, vendor: str, device_id: int) -> None:
        self._vendor = vendor
        self._device_id = device_id
        self.address = self._made("StreamCreateWithFlags", _NON_BLOCKING, "StreamDestroy")
        self.marks = [self.new_mark() for _ in range(2)]

    def new_mark(self) -> int:
        """A further mark, which lasts as long as this object."""
        return self._made("EventCreateWithFlags", _NO_TIMING, "EventDestroy")

    def _made(self, create: str, flags: int, destroy: str) -> int:
        made = ctypes.c_void_p()
        call_runtime(self._vendor, "SetDevice", self._device_id)
        call_runtime(self._vendor, create, ctypes.byref(made), ctypes.c_uint(flags))
        address = made.value or 0
        weakref.finalize(self, give_back, self._vendor, destroy, address).atexit = False
        return address

    def set_mark(self, mark: int) -> None:
        """Set a mark behind all that the stream was asked for until now."""
        set_mark(self._vendor, mark, self.address)

    def await_mark(self, mark: int) -> None:
        """Have what the stream is asked for from now on begin when the device has reached a mark of another stream."""
        await_mark(self._vendor, mark, self.address)

    def reach(self, mark: int) -> None:
        """Wait until the device has done all that stands before a mark."""
        call_runtime(self._vendor, "EventSynchronize", ctypes.c_void_p(mark))

    def wait(self) -> None:
        """Wait until the device has done all that the stream was asked for."""
        call_runtime(self._vendor, "StreamSynchronize", ctypes.c_void_p(self.address))


def set_mark(vendor: str, mark: int, stream: int) -> None:
    """:meth:`DeviceStream.set_mark` of the stream at an address."""
    call_runtime(vendor, "EventRecord", ctypes.c_void_p(mark), ctypes.c_void_p(stream))


def await_mark(vendor: str, mark: int, stream: int) -> None:
    """:meth:`DeviceStream.await_mark` of the stream at an address."""
    call_runtime(vendor, "StreamWaitEvent", ctypes.c_void_p(stream), ctypes.c_void_p(mark), ctypes.c_uint(0))


_open: weakref.WeakValueDictionary[tuple[str, int, int], DeviceStream] = weakref.WeakValueDictionary()
"""By vendor, device and ``RuntimeOptions.pool``."""
_opening = Lock()


def open_stream(provider: Provider, options: RuntimeOptions) -> DeviceStream | None:
    """The stream that sessions with the same ``options.pool`` share; None where each has one of its own: they share
    nothing, the provider takes no stream, or its caller gives one."""
    if not options.pool or options.stream or not provider.stream or not is_reachable(provider.vendor):
        return None
    key = (provider.vendor, options.device_id, options.pool)
    with _opening:
        found = _open.get(key)
        if found is None:
            found = _open[key] = DeviceStream(provider.vendor, options.device_id)
        return found
