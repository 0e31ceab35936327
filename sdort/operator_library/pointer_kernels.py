"""The library's kernels on raw pointers, without ONNX Runtime: the C interface of ``custom_ops/direct/direct.cpp``.

A problem here is the struct ``Problem`` of a folder of ``custom_ops/operators``, field by field; tests hold one against
the other. Pointers are addresses, sizes count elements.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from sdort.errors import ProviderError, UsageError
from sdort.operator_library.library import AUTO, checked_library, resolve, use_tuning_table

_POINTER, _INTEGER, _FLOAT, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32


class Place(IntEnum):
    """Where a problem's memory is; the values are the C interface's."""

    CPU = 0
    HIP = 1
    CUDA = 2


class Problem(ctypes.Structure):
    """The problem that a kernel computes."""

    kernel: ClassVar[bytes]
    """The folder of ``custom_ops/operators``."""


def _of(kind: Any, names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, kind) for name in names.split())


class BiasAdd(Problem):
    """y = x + bias + skip; x, skip, y of rows x width, bias of width."""

    kernel = b"bias_add"
    _fields_ = (*_of(_POINTER, "x bias skip y"), *_of(_INTEGER, "rows width"))


class BiasSplitGelu(Problem):
    """y = left * gelu(right), halves of x + bias; x of rows x 2 width, bias of 2 width, y of rows x width."""

    kernel = b"bias_split_gelu"
    _fields_ = (*_of(_POINTER, "x bias y"), *_of(_INTEGER, "rows width"))


class LayerNorm(Problem):
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta over rows of width; beta may be null."""

    kernel = b"layer_norm"
    _fields_ = (*_of(_POINTER, "x gamma beta y"), *_of(_INTEGER, "rows width"), ("epsilon", _FLOAT))


class SkipLayerNorm(Problem):
    """As :class:`LayerNorm`, of sum = x + skip + bias; beta, bias and sum may be null."""

    kernel = b"skip_layer_norm"
    _fields_ = (
        *_of(_POINTER, "x skip gamma beta bias y sum"),
        *_of(_INTEGER, "rows skip_rows width"),
        ("epsilon", _FLOAT),
    )


class GroupNorm(Problem):
    """y = act((sum - mean) / sqrt(variance + epsilon) * gamma + beta) of sum = x + skip + bias + embedding.

    x, skip, y, sum of images x hw x channels, bias of channels, embedding of images x channels; gamma and beta in
    float32, or in float16 (``half_affine``). All but x, gamma, beta and y may be null. The workspace was zero before
    its first launch, and launches on it do not overlap.
    """

    kernel = b"group_norm"
    _fields_ = (
        *_of(_POINTER, "x x2 skip bias embedding gamma beta y sum workspace"),
        ("epsilon", _FLOAT),
        ("silu", _FLAG),
        ("half_affine", _FLAG),
        *_of(_INTEGER, "images hw channels x_channels groups"),
    )


class AttentionTensor(ctypes.Structure):
    """Element i of row r of head h of batch n lies at ``data[n * batch + r * row + h * head + i]``."""

    _fields_ = (("data", _POINTER), *_of(_INTEGER, "batch row head"))


class Attention(Problem):
    """y = softmax(scale * q k) v, of batches x queries x heads x value_size; bias and workspace may be null."""

    kernel = b"attention"
    _fields_ = (
        *_of(AttentionTensor, "q k v"),
        *_of(_POINTER, "bias y workspace"),
        *_of(_INTEGER, "batches heads queries keys size value_size"),
        ("scale", _FLOAT),
        ("causal", _FLAG),
    )


class Kernels:
    """The kernels of a loaded library.

    Raises:
        UsageError: the file is no library of this version's operators, or another account could have written it.
        ProviderError: it is not what was built.
    """

    def __init__(self, path: Path) -> None:
        checked = checked_library(path)
        use_tuning_table()
        try:
            library = ctypes.CDLL(checked.place)  # which lets go of the interpreter while a function runs
            self._run, self._device, self._variants, self._error = (
                getattr(library, f"sdort_kernel_{name}") for name in ("run", "device", "variants", "error")
            )
            self._register = library.sdort_torch_register
        except (OSError, AttributeError) as error:
            raise UsageError(f"{path} has no kernels for pointers: {checked.reason(error)}") from error
        size, number = ctypes.c_size_t, ctypes.c_int
        self._error.restype = self._variants.restype = ctypes.c_char_p
        self._run.restype = self._device.restype = self._register.restype = ctypes.c_int64
        self._run.argtypes = [ctypes.c_char_p, _POINTER, size, number, number, number, _POINTER, size, size]
        self._variants.argtypes = [ctypes.c_char_p, _POINTER, size, number, number, number]
        self._device.argtypes = self._register.argtypes = [number, number]
        self._reasons: dict[tuple[int, int], str | None] = {}

    def why_not(self, place: Place, device: int = 0) -> str | None:
        """Why no kernel can be launched on a device, in words; None if they can."""
        if place == Place.CPU:
            return None
        key = int(place), device
        if key not in self._reasons:
            self._reasons[key] = self.last_error() if self._device(*key) else None
        return self._reasons[key]

    def last_error(self) -> str:
        """Why the last call on this thread did not do what it was asked for, in words."""
        text: bytes = self._error()
        return text.decode()

    def serve_torch(self, cpu: Place, gpu: Place) -> None:
        """Have torch run ``torch.ops.sdort.*.launch``, which are defined already, with these kernels; once a process.

        Args:
            cpu: where to launch what is in the CPU's memory.
            gpu: where to launch what is in a GPU's.

        Raises:
            ProviderError: torch is older than 2.10.
        """
        if self._register(cpu, gpu):
            raise ProviderError(self.last_error())

    def variants(self, problem: Problem, half: bool, place: Place, device: int = 0) -> tuple[str, list[str]]:
        """How a tuning table's line of a problem begins, and the kernels' variants, the library's choice first.

        Returns:
            Architecture and key, separated by a tab as in the table; the names that may follow.

        Raises:
            ProviderError: there is no such GPU, or the kernels have no form for the problem.
        """
        where = ctypes.addressof(problem), ctypes.sizeof(problem)
        text: bytes | None = self._variants(problem.kernel, *where, half, place, device)
        if text is None:
            raise ProviderError(f"{problem.kernel.decode()}: {self.last_error()}")
        where_in_table, *names = text.decode().splitlines()
        return where_in_table, names

    def run(
        self,
        problem: Problem,
        half: bool,
        place: Place,
        *,
        device: int = 0,
        stream: int = 0,
        threads: int = 1,
        workspace: int = 0,
    ) -> int:
        """Compute a problem in float16 (``half``) or float32: on the CPU now, on a GPU queued on a stream.

        Args:
            stream: a CUstream or hipStream_t of the device, which has to be the thread's current one.
            threads: of the CPU.
            workspace: the bytes of the problem's workspace on a GPU.

        Returns:
            0; or the bytes that the workspace has to have, where that is more: then nothing was queued.

        Raises:
            ProviderError: the driver refused, or the kernels have no form for the problem.
        """
        where = ctypes.addressof(problem), ctypes.sizeof(problem)
        code: int = self._run(problem.kernel, *where, half, place, device, stream, threads, workspace)
        if code < 0:
            raise ProviderError(f"{problem.kernel.decode()}: {self.last_error()}")
        return code


@cache
def load_kernels() -> Kernels:
    """The kernels of the library in the cache, loaded once a process.

    Raises:
        ProviderError: it is not built here, or not what was built.
        UsageError: it cannot be loaded, or another account could have written it.
    """
    path = resolve(AUTO)
    if path is None:
        raise ProviderError("the library is not built here", hint="Build it: sdort ops build")
    return Kernels(path)
