"""What the tests of custom operators share: guarded arrays, kernels on simulated machines, one-node models."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import helper
from support import native

Array = npt.NDArray[Any]

ARCHITECTURES = {"mfma": "gfx942", "wmma_gfx11": "gfx1100", "wmma_gfx12": "gfx1201", "mma_sync": "sm_90"}
"""Simulated machine -> an architecture of that kind."""

WAVES = {"mfma": 64, "wmma_gfx11": 32, "wmma_gfx12": 32, "mma_sync": 32}

GUARD = 256


class Guarded:
    """An output that a kernel writes: NaN at first, between guard bytes that must stay as they are."""

    def __init__(self, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        room = np.full(size + 3 * GUARD, 0xA5, np.uint8)
        start = GUARD + -(room.ctypes.data + GUARD) % GUARD  # aligned as a GPU's allocations are
        self.room, self.start, self.end = room, start, start + size
        self.array: Array = room[start : self.end].view(dtype).reshape(shape)
        self.array[...] = np.nan

    @property
    def pointer(self) -> int:
        return self.room.ctypes.data + self.start

    def check(self) -> Array:
        """The values; fails if anything beside them was written."""
        assert (self.room[: self.start] == 0xA5).all(), "bytes before the output were overwritten"
        assert (self.room[self.end :] == 0xA5).all(), "bytes behind the output were overwritten"
        return self.array


def aligned(values: Array) -> Array:
    """A copy at an address that is a multiple of 256."""
    copy = Guarded(values.shape, values.dtype).array
    copy[...] = values
    return copy


def pointer(values: Array | None) -> int | None:
    return None if values is None else values.ctypes.data


def variant_names(
    machine: str,
    operator: str,
    problem: ctypes.Structure,
    dtype: npt.DTypeLike,
    units: int = 4,
    architecture: str | None = None,
) -> list[str]:
    """The variants that are legal for the problem, the geometry's own choice first."""
    library = native.simulated(machine)
    names = library.simulated_variants(*_where(machine, operator, problem, dtype, units, architecture))
    if names is None:
        raise RuntimeError(library.simulated_error().decode())
    return [name.decode() for name in names.split()]


def _where(
    machine: str,
    operator: str,
    problem: ctypes.Structure,
    dtype: npt.DTypeLike,
    units: int,
    architecture: str | None,
) -> tuple[Any, ...]:
    half = np.dtype(dtype) == np.float16
    device = ((architecture or ARCHITECTURES[machine]).encode(), units, WAVES[machine])
    return (operator.encode(), ctypes.byref(problem), ctypes.c_size_t(ctypes.sizeof(problem)), int(half), *device)


def simulate(
    machine: str,
    operator: str,
    problem: ctypes.Structure,
    dtype: npt.DTypeLike,
    variant: int = 0,
    order: int = 0,
    units: int = 4,
    architecture: str | None = None,
) -> bool:
    """Run an operator's geometry and its kernels' bodies; False if the problem has no such variant.

    ``order`` decides which of a block's waves goes on when, between two barriers; 0 is all of them in step. With few
    compute ``units`` a grid has few blocks, which walk on over the rows. The geometry is that of ``architecture``, or
    of the machine's in :data:`ARCHITECTURES`.

    Raises:
        RuntimeError: the geometry refused, or the kernel deadlocked; the library's text.
    """
    library = native.simulated(machine)
    names = variant_names(machine, operator, problem, dtype, units, architecture)
    if variant >= len(names):
        return False
    library.sdort_body_order(ctypes.c_uint64(order))
    where = _where(machine, operator, problem, dtype, units, architecture)
    if library.simulate(*where, names[variant].encode()):
        raise RuntimeError(library.simulated_error().decode())
    return True


class Launch(NamedTuple):
    """What a geometry made: one kernel over a grid of blocks of ``threads``, with its packed arguments."""

    kernel: str
    grid: tuple[int, int]
    threads: int
    args: bytes


_Redirect = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint * 2), ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t
)


@contextmanager
def recorded(machine: str) -> Iterator[list[Launch]]:
    """Meanwhile nothing runs on the simulated machine: launches are put into the list that this yields."""
    launches: list[Launch] = []

    def record(name: bytes, grid: Any, threads: int, args: int, size: int) -> None:
        x, y = grid.contents
        launches.append(Launch(name.decode(), (x, y), threads, ctypes.string_at(args, size)))

    library, callback = native.simulated(machine), _Redirect(record)
    library.sdort_body_redirect(callback)
    try:
        yield launches
    finally:
        library.sdort_body_redirect(None)


def one_node_model(
    operator: str,
    inputs: Mapping[str, Array | None],
    outputs: Sequence[str],
    domain: str = "com.microsoft",
    **attributes: Any,
) -> bytes:
    """A model of one node named ``node``; every dimension is dynamic. A None is an absent input."""
    if not domain:  # onnxruntime 1.31.1 crashes where an operator of ONNX names an absent input at its end
        present_until = max((i for i, value in enumerate(inputs.values(), 1) if value is not None), default=0)
        inputs = dict(list(inputs.items())[:present_until])
    node = helper.make_node(
        operator,
        [name if value is not None else "" for name, value in inputs.items()],
        list(outputs),
        domain=domain,
        name="node",
        **attributes,
    )
    present = {name: value for name, value in inputs.items() if value is not None}
    types = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in present.items()}
    first = next(iter(types.values()))
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, types[name], [None] * value.ndim) for name, value in present.items()],
        [helper.make_tensor_value_info(name, first, None) for name in outputs if name],
    )
    opsets = [helper.make_opsetid(name, 18 if not name else 1) for name in ("", "com.microsoft", "sdort")]
    content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return content


def session(
    operator: str, inputs: Mapping[str, Array | None], outputs: Sequence[str], library: bool = True, **attributes: Any
) -> onnxruntime.InferenceSession:
    """A session on the CPU with a model of one node (:func:`one_node_model`)."""
    return opened(one_node_model(operator, inputs, outputs, **attributes), library)


def opened(model: bytes, library: bool = True) -> onnxruntime.InferenceSession:
    """A session on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Every tensor in an allocation of its own, so that a sanitizer sees the bytes beside it.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it takes the cores from other tests
    if library:
        options.register_custom_ops_library(str(native.library()))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(
    operator: str, inputs: Mapping[str, Array | None], outputs: Sequence[str] = ("Y",), **attributes: Any
) -> list[Array]:
    """The outputs of one node on the CPU, by the library's kernel."""
    feeds = {name: value for name, value in inputs.items() if value is not None}
    results: list[Array] = session(operator, inputs, outputs, **attributes).run(None, feeds)
    return results


def ulps(actual: Array, exact: Array) -> float:
    """The largest distance from the exact values in units in the last place, which ``actual``'s dtype has there."""
    kind = np.finfo(actual.dtype)
    spacing = np.maximum(
        2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), float(kind.tiny)))) - kind.nmant),
        float(kind.smallest_subnormal),
    )
    return float(np.max(np.abs(actual.astype(np.float64) - exact) / spacing, initial=0.0))
