"""Where the library's kernels run on torch's tensors, and what is told where they do not."""

from __future__ import annotations

from functools import cache

import torch

from sdort.console import warn
from sdort.errors import ProviderError, UsageError
from sdort.operator_library.pointer_kernels import Kernels, Place, load_kernels

CPU = -1
"""The CPU's number, as ``Tensor.get_device()`` has it."""


@cache
def serves(device: int) -> bool:
    """Whether the kernels run on the CPU, or on a GPU by its number; if not, it is told once why.

    The first call has torch know the kernels: ``torch.ops.sdort.*.launch``.
    """
    kernels, reason = loaded()
    if kernels is not None:
        reason = kernels.why_not(Place.CPU if device == CPU else _gpu(), max(device, 0)) or ""
    if reason:
        tell(f"torch.ops.sdort.* run as torch's own operators: {reason}")
    return not reason


def _gpu() -> Place:
    """Whose GPUs torch was built for; it calls both ``cuda``."""
    return Place.HIP if torch.version.hip else Place.CUDA


@cache
def loaded() -> tuple[Kernels | None, str]:
    """The kernels, which torch knows then; or None, and why there are none."""
    try:
        kernels = load_kernels()
        kernels.serve_torch(cpu=Place.CPU, gpu=_gpu())
    except (ProviderError, UsageError) as error:
        return None, f"{error.message}. {error.hint or ''}".strip()
    return kernels, ""


def reason() -> str:
    """Why the last launch of this thread did not happen."""
    kernels, _ = loaded()
    return kernels.last_error() if kernels else ""


@cache
def tell(message: str) -> None:
    """Warn of it, once a process."""
    warn(message)
