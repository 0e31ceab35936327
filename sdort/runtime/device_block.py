"""One block of a GPU's memory, and ``OrtValue`` that lie in it."""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from sdort.errors import MemoryShortageError, ProviderError
from sdort.graph.signature import Array
from sdort.machine.distributions import import_onnxruntime
from sdort.machine.os_calls import os_calls
from sdort.machine.system import System
from sdort.runtime.failures import LOADING_HINT
from sdort.tables import size_text

ALIGNMENT = 256
"""Bytes, as the addresses have that ONNX Runtime's own allocator gives."""
WEIGHTS = "weights"
_TO_DEVICE = 1
"""The direction of a copy: ``cudaMemcpyHostToDevice``, and HIP's."""


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("id", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Managed(ctypes.Structure):
    """``DLManagedTensor`` (dmlc/dlpack, include/dlpack/dlpack.h)."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


KINDS = {"": 1, "nvidia": 2, "amd": 10}
"""DLPack's number of the memory that a vendor's GPU has; the host's without one."""
_CODES = {"i": 0, "u": 1, "f": 2}


class DeviceBlock:
    """Bytes of a device's memory, which are freed when nobody holds the block any more.

    Args:
        vendor: ``nvidia`` or ``amd``; empty for the host's memory.
        device_id: which of its GPUs.
        nbytes: how many.
        what: they are, for the error.

    Raises:
        MemoryShortageError: there is not as much memory.
        ProviderError: the device fails, or its vendor's library is not loaded (:func:`is_reachable`).
    """

    def __init__(self, vendor: str, device_id: int, nbytes: int, what: str = WEIGHTS) -> None:
        self.vendor = vendor
        self.what = what
        self.device_id = device_id
        self.nbytes = nbytes
        if not vendor:
            self._host: Array = np.empty(nbytes + ALIGNMENT, np.uint8)
            address = self._host.ctypes.data
            self.address = address + -address % ALIGNMENT
            return
        pointer = ctypes.c_void_p()
        self._call("SetDevice", device_id)
        self._call("Malloc", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        self.address = pointer.value or 0
        weakref.finalize(self, give_back, vendor, "Free", self.address).atexit = False

    def write(self, offset: int, values: Array) -> None:
        """Copy an array to ``offset``, now."""
        source = np.ascontiguousarray(values)
        if not self.vendor:
            ctypes.memmove(self.address + offset, source.ctypes.data, source.nbytes)
            return
        self._call("SetDevice", self.device_id)
        target, size = ctypes.c_void_p(self.address + offset), ctypes.c_size_t(source.nbytes)
        self._call("Memcpy", target, ctypes.c_void_p(source.ctypes.data), size, _TO_DEVICE)

    @contextmanager
    def staging(self, nbytes: int) -> Iterator[Array]:
        """Memory of the host, uint8 [nbytes], from which :meth:`write` copies fastest: its pages are locked, and the
        device reads them itself. Where the driver locks none it is ordinary memory, which the driver copies first.
        """
        if not self.vendor:
            yield np.empty(nbytes, np.uint8)
            return
        try:
            memory = LockedMemory(self.vendor, self.device_id, nbytes)
        except ProviderError:
            yield np.empty(nbytes, np.uint8)
            return
        try:
            yield memory.values
        finally:
            memory.free()

    def synchronize(self) -> None:
        """Wait until what was written is there: a copy may return while it is on its way from a buffer of the driver's,
        and streams of ONNX Runtime wait for no copy (CUDA's API synchronization behavior)."""
        if self.vendor:
            self._call("SetDevice", self.device_id)
            self._call("DeviceSynchronize")

    def value(self, offset: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """The array at ``offset``, as an ``OrtValue`` that does not own its memory: whoever uses it holds the block."""
        return borrowed_value(self.address + offset, self.vendor, self.device_id, shape, dtype)

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            call_runtime(self.vendor, name, *arguments)
        except MemoryShortageError:
            raise MemoryShortageError(
                f"no memory left on the GPU for {size_text(self.nbytes)} of {self.what}",
                hint=LOADING_HINT if self.what == WEIGHTS else None,
            ) from None


class LockedMemory:
    """Memory of the host with locked pages, which a device reads itself: freed when nobody holds this object any more.

    Args:
        vendor, device_id: of the GPU that may be the first to read it.
        nbytes: how many.

    Attributes:
        values: uint8 [nbytes]; whoever has it holds this object.
        free: frees it now.

    Raises:
        ProviderError: the driver locks no such memory.
    """

    def __init__(self, vendor: str, device_id: int, nbytes: int) -> None:
        allocate, free = _LOCKED[vendor]
        pointer = ctypes.c_void_p()
        call_runtime(vendor, "SetDevice", device_id)
        try:
            call_runtime(vendor, allocate, ctypes.byref(pointer), ctypes.c_size_t(nbytes), ctypes.c_uint(0))
        except ProviderError:
            forget_error(vendor)
            raise
        self.address = pointer.value or 0
        self.values: Array = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self.address))
        self.free = weakref.finalize(self, give_back, vendor, free, self.address)
        self.free.atexit = False


def borrowed_value(address: int, vendor: str, device_id: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """An array in memory that somebody else owns and keeps, as an ``OrtValue``.

    Args:
        vendor: of the GPU that has the memory; empty for the host's.
    """
    python, native = _value_types()
    return python(native.from_dlpack(_capsule(address, (KINDS[vendor], device_id), shape, dtype), False))


_PREFIXES = {"nvidia": "cuda", "amd": "hip"}
_LOCKED = {"nvidia": ("HostAlloc", "FreeHost"), "amd": ("HostMalloc", "HostFree")}
"""The functions that allocate memory of the host with locked pages, and free it."""
_LIBRARIES = {"nvidia": r"libcudart\.so", "amd": r"libamdhip64\.so"}
_NO_MEMORY = 2
"""``cudaErrorMemoryAllocation``, and HIP's."""


_found: dict[str, str] = {}
"""Paths of the libraries that were found loaded, by vendor: they stay so."""


def is_reachable(vendor: str) -> bool:
    """Whether the process has loaded the library that gives a vendor's memory.

    Ask once before threads open sessions: while they map memory, the kernel's list of what is mapped may have gaps.
    """
    return vendor in _PREFIXES and _find(vendor) is not None


def _find(vendor: str) -> str | None:
    """The library that is loaded: another copy would have another state. Where nothing tells, None."""
    if vendor not in _found:
        found = re.search(rf"/\S*{_LIBRARIES[vendor]}\S*", System().text("proc/self/maps") or "")
        if found is None:
            return None
        _found[vendor] = found[0]
    return _found[vendor]


@cache
def _value_types() -> tuple[Any, Any]:
    """ONNX Runtime's classes of an ``OrtValue``: Python's, and the one below, which every build has DLPack in."""
    kind = import_onnxruntime().OrtValue
    return kind, type(kind.ortvalue_from_numpy(np.zeros(1, np.float32))._get_c_value())


@cache
def _loaded(vendor: str) -> ctypes.CDLL:
    path = _find(vendor)
    if path is None:
        raise ProviderError(f"no {_PREFIXES[vendor]} runtime is loaded")
    return ctypes.CDLL(path)


def call_runtime(vendor: str, name: str, *arguments: Any) -> None:
    """Call a function of a vendor's runtime, such as ``SetDevice``: CUDA and HIP name theirs alike.

    Raises:
        MemoryShortageError: the GPU has no memory left.
        ProviderError: it fails, or the vendor's library is not loaded (:func:`is_reachable`).
    """
    code = runtime_code(vendor, name, *arguments)
    if code == _NO_MEMORY:
        raise MemoryShortageError("no memory left on the GPU")
    if code:
        raise ProviderError(f"{_PREFIXES[vendor]}{name} failed with code {code}")


def runtime_code(vendor: str, name: str, *arguments: Any) -> int:
    """The code that a function of a vendor's runtime returns, 0 where it succeeds.

    Raises:
        ProviderError: the vendor's library is not loaded.
    """
    return int(getattr(_loaded(vendor), _PREFIXES[vendor] + name)(*arguments))


def forget_error(vendor: str) -> None:
    """Take a failed call's code back: who asks for the last error would take it for that of a call of its own."""
    getattr(_loaded(vendor), f"{_PREFIXES[vendor]}GetLastError")()


def give_back(vendor: str, name: str, address: int) -> None:
    """Free what a vendor's runtime made, whatever becomes of it: the process may be about to end."""
    getattr(_loaded(vendor), _PREFIXES[vendor] + name)(ctypes.c_void_p(address))


def _capsule(address: int, device: tuple[int, int], shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """A DLPack capsule of memory that somebody else owns.

    Its description lies in C's own memory and is freed by C: whoever takes it may outlive Python.
    """
    libc, make = _makers()
    place = libc.malloc(ctypes.c_size_t(ctypes.sizeof(_Managed) + 8 * len(shape)))
    dims = (ctypes.c_int64 * len(shape)).from_address(place + ctypes.sizeof(_Managed))
    dims[:] = list(shape)
    managed = _Managed.from_address(place)
    managed.data, managed.device, managed.ndim = address, _Device(*device), len(shape)
    managed.dtype = _Type(_CODES[dtype.kind], 8 * dtype.itemsize, 1)
    managed.shape, managed.strides, managed.byte_offset = ctypes.addressof(dims), None, 0
    managed.context, managed.deleter = None, ctypes.cast(libc.free, ctypes.c_void_p)
    return make(place, b"dltensor", None)


@cache
def _makers() -> tuple[ctypes.CDLL, Any]:
    """C's library, and Python's function that makes a capsule."""
    libc, make = os_calls.c_library(), ctypes.pythonapi.PyCapsule_New
    libc.malloc.restype = ctypes.c_void_p
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return libc, make
