"""From tensors to launches: which kernels run on a tensor's device, on torch's current stream, with which memory."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from sdort.console import warn
from sdort.errors import ProviderError, UsageError
from sdort.ops.pointer_kernels import Attention, GroupNorm, Kernels, Place, Problem, load_kernels

_LEAST_WORKSPACE = 1 << 20
"""Bytes: statistics of group normalizations take some hundred thousand, and grow seldom from there."""


class Where(NamedTuple):
    """A device as the kernels know it; of a GPU, torch's current stream there."""

    place: Place
    device: int = 0
    stream: int = 0


_ON_CPU = Where(Place.CPU)


def where_of(x: Tensor) -> Where:
    """Of the tensor's device."""
    if x.is_cpu:
        return _ON_CPU
    place = Place.HIP if torch.version.hip else Place.CUDA
    return Where(place, x.device.index, torch.cuda.current_stream(x.device).cuda_stream)


_AS_IT_IS = nullcontext()


def current(x: Tensor) -> AbstractContextManager[object]:
    """Meanwhile the tensor's GPU is the thread's current one, which drivers launch and load on."""
    if x.is_cuda and torch.cuda.current_device() != x.device.index:
        guard: AbstractContextManager[object] = torch.cuda.device(x.device)
        return guard
    return _AS_IT_IS


def kernels_for(where: Where) -> Kernels | None:
    """The kernels of a device; None, and told once, where there are none."""
    kernels, reason = _loaded()
    if kernels is not None:
        reason = kernels.why_not(where.place, where.device) or ""
    if not reason:
        return kernels
    tell(f"torch.ops.sdort.* run as torch's own operators: {reason}")
    return None


@cache
def _loaded() -> tuple[Kernels | None, str]:
    try:
        return load_kernels(), ""
    except (ProviderError, UsageError) as error:
        return None, f"{error.message}. {error.hint or ''}".strip()


@cache
def tell(message: str) -> None:
    """Warn of it, once a process."""
    warn(message)


def launch(problem: Problem, x: Tensor, where: Where, kernels: Kernels) -> None:
    """Compute a problem of tensors like ``x``: when this returns, a GPU's launches are on torch's current stream."""
    half = x.dtype == torch.float16
    if where.place == Place.CPU:
        kernels.run(problem, half, where.place, threads=torch.get_num_threads())
        return
    if isinstance(problem, GroupNorm):
        _with_kept_workspace(problem, half, x.device, where, kernels)
    else:
        _with_workspace(problem, half, x.device, where, kernels)


def _with_workspace(problem: Problem, half: bool, device: torch.device, where: Where, kernels: Kernels) -> None:
    """The allocator gives the memory to whom comes later on the stream."""
    needed = kernels.run(problem, half, where.place, device=where.device, stream=where.stream)
    if not needed:
        return
    assert isinstance(problem, Attention | GroupNorm)
    # A group normalization that is captured clears its workspace whenever the graph is replayed.
    make = torch.zeros if isinstance(problem, GroupNorm) else torch.empty
    memory = make(needed, dtype=torch.uint8, device=device)
    problem.workspace = memory.data_ptr()
    kernels.run(problem, half, where.place, device=where.device, stream=where.stream, workspace=needed)


_kept: dict[tuple[int, int], list[Tensor]] = {}
"""Device and stream -> workspaces of group normalizations, the one in use last. Those that were outgrown stay: kernels
that are queued may use them."""
_keeping = threading.Lock()


def _with_kept_workspace(problem: GroupNorm, half: bool, device: torch.device, where: Where, kernels: Kernels) -> None:
    """The workspace of a stream was cleared once. A captured graph has its own, in its own memory."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        _with_workspace(problem, half, device, where, kernels)
        return
    with _keeping:
        kept = _kept.setdefault((where.device, where.stream), [])
        room = kept[-1].numel() if kept else 0
        problem.workspace = kept[-1].data_ptr() if kept else None
        needed = kernels.run(problem, half, where.place, device=where.device, stream=where.stream, workspace=room)
        if needed:
            kept.append(torch.zeros(max(needed, 2 * room, _LEAST_WORKSPACE), dtype=torch.uint8, device=device))
            problem.workspace = kept[-1].data_ptr()
            room = kept[-1].numel()
            kernels.run(problem, half, where.place, device=where.device, stream=where.stream, workspace=room)
