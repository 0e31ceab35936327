"""Memory of a GPU that sessions allocate from, in the place of ONNX Runtime's arenas: one range that grows at its end.

An arena of ONNX Runtime is one session's, and gets a region of the driver for each size that it has no room for: two
regions never become one. Sessions of a pipeline run one after another, so that they can share what they compute in.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from sdort.console import detail
from sdort.errors import ProviderError
from sdort.machine.distributions import import_onnxruntime
from sdort.operator_library.library import checked_library, register, resolve
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.device_block import is_reachable

_PLACES = {"": 0, "amd": 1, "nvidia": 2}
"""The library's numbers of the memory that a vendor's GPU has; the host's without one."""
_ARENA = {"gpu_mem_limit", "arena_extend_strategy"}
"""The provider options that say how a provider allocates by itself."""


class PoolSizes(NamedTuple):
    """The state of a pool, in bytes."""

    held: int
    """Bytes that it has of the device."""
    taken: int
    """Bytes that sessions use now."""
    most: int
    """The most that they had at once."""
    state: int
    """A number that stands for which parts of it are taken: with other ones, another number."""


class MemoryPool:
    """A pool of a device's memory, which lasts until nobody holds this object and no session has memory of it.

    Sessions that share one must not run at the same time: what one of them frees, the next one writes.

    Args:
        library: sdort's operator library.
        provider: of the sessions.
        device_id: which of its GPUs.

    Raises:
        ProviderError: the driver cannot manage memory so, or ONNX Runtime takes no allocator.
    """

    def __init__(self, library: Path, provider: Provider, device_id: int) -> None:
        self._library = _loaded(library, provider.custom_kernels)
        number = self._library.sdort_pool_open(_PLACES[provider.vendor], device_id)
        if number < 0:
            raise ProviderError(f"no memory pool: {self._library.sdort_kernel_error().decode()}")
        self._number = ctypes.c_int64(number)
        weakref.finalize(self, self._library.sdort_pool_close, self._number).atexit = False

    @contextmanager
    def used(self) -> Iterator[None]:
        """A block in which this thread's sessions allocate from the pool."""
        before = self._library.sdort_pool_use(self._number)
        try:
            yield
        finally:
            self._library.sdort_pool_use(ctypes.c_int64(before))

    def sizes(self) -> PoolSizes:
        """The current state."""
        sizes = (ctypes.c_uint64 * 4)()
        self._library.sdort_pool_sizes(self._number, sizes)
        return PoolSizes(*sizes)


_numbers = itertools.count(1)
_open: weakref.WeakValueDictionary[tuple[str, int, int], MemoryPool] = weakref.WeakValueDictionary()
"""Shared pools, by vendor, device and ``RuntimeOptions.pool``."""
_opening = Lock()


def new_pool_number() -> int:
    """A number for ``RuntimeOptions.pool`` that no other sessions of this process share."""
    return next(_numbers)


def open_pool(provider: Provider, options: RuntimeOptions) -> MemoryPool | None:
    """The pool that a session is to allocate from, None where it has arenas of ONNX Runtime's: the provider is none of
    those that take one, sdort's operator library is not there, or the user said how to allocate. A session on its
    caller's stream has arenas too: its runs may go on when they return, and the caller may have several streams.
    """
    library = resolve(options.custom_ops)
    own_choice: Collection[str] = _ARENA & options.provider_options.keys()
    if library is None or not provider.pools or own_choice or options.stream or not is_reachable(provider.vendor):
        return None
    key = (provider.vendor, options.device_id, options.pool or new_pool_number())
    with _opening:
        found = _open.get(key)
        if found is None:
            try:
                found = _open[key] = MemoryPool(library, provider, options.device_id)
            except ProviderError as error:
                detail(f"{error.message}; ONNX Runtime allocates in arenas of its own")
        return found


@cache
def _loaded(path: Path, provider: str) -> ctypes.CDLL:
    library = ctypes.CDLL(checked_library(path).place)  # before: ONNX Runtime unloads it with the options
    if not hasattr(library, "sdort_pool_open"):
        raise ProviderError("no memory pool: Windows' operator library has none")
    register(import_onnxruntime().SessionOptions(), path, provider)  # the library learns of ONNX Runtime's functions
    for name in ("open", "close", "use", "sizes"):
        getattr(library, f"sdort_pool_{name}").restype = ctypes.c_int64
    library.sdort_kernel_error.restype = ctypes.c_char_p
    return library
