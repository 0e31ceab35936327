"""Copies from the memory of one GPU to that of another one."""

from __future__ import annotations

import ctypes
from functools import cache

from sdort.console import say
from sdort.errors import ProviderError
from sdort.runtime.device_block import DeviceBlock, call_runtime, runtime_code
from sdort.runtime.device_stream import DeviceStream

_ENABLED = 704
"""``cudaErrorPeerAccessAlreadyEnabled``, and HIP's."""


def copy_block(source: DeviceBlock, target: DeviceBlock, stream: DeviceStream | None) -> None:
    """Copy the beginning of a block over all of another one.

    Args:
        stream: of the source's GPU, on which the copy has its turn; None in the host's memory, where it is done now.
    """
    if stream is None:
        ctypes.memmove(target.address, source.address, target.nbytes)
        return
    places = (ctypes.c_void_p(target.address), target.device_id, ctypes.c_void_p(source.address), source.device_id)
    size = ctypes.c_size_t(target.nbytes)
    call_runtime(source.vendor, "MemcpyPeerAsync", *places, size, ctypes.c_void_p(stream.address))


@cache
def reach_peer(vendor: str, device_id: int, peer: int) -> bool:
    """Let a GPU reach the memory of another one, once for the process; whether it does. If not, that is told: the
    driver takes copies between them through the host's memory.

    The calling thread is to be one that has the GPU as its own.

    Raises:
        ProviderError: the device fails.
    """
    reaches = ctypes.c_int()
    call_runtime(vendor, "SetDevice", device_id)
    call_runtime(vendor, "DeviceCanAccessPeer", ctypes.byref(reaches), device_id, peer)
    if not reaches.value:
        say(
            f"--patches: GPU {device_id} cannot reach the memory of GPU {peer}: what patches give each other passes "
            "through the host's memory, which is slower"
        )
        return False
    code = runtime_code(vendor, "DeviceEnablePeerAccess", peer, ctypes.c_uint(0))
    if code == _ENABLED:
        runtime_code(vendor, "GetLastError")  # another library did; nobody is to find the error
    elif code:
        raise ProviderError(f"GPU {device_id} cannot use the memory of GPU {peer}: code {code}")
    return True
