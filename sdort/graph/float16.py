"""The range of fp16, IEEE 754's binary16 (a sign, 5 bits of exponent, 11 of significand), and a fast conversion."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper

from sdort.graph.signature import Array
from sdort.machine.distributions import FALLBACK, import_onnxruntime, start_session

MIN_SIZE = 2**16
"""Elements from which the import of ONNX Runtime (30 ms, 30 MB) and the call of a session are worth it."""

_PAIRS = {(np.dtype(np.float32), np.dtype(np.float16)), (np.dtype(np.float16), np.dtype(np.float32))}

# What a rounding can get wrong: ties, the borders of the subnormals and of infinity, NaN.
_PROBE = np.array(
    [-0.0, 1 + 2**-11, 1 + 3 * 2**-11, 2**-14 - 2**-25, 3 * 2**-25, 2**-25, -(2**-24), 65519, 65520, -np.inf, np.nan],
    np.float32,
)

_building = Lock()


def convert(values: Array, dtype: npt.DTypeLike) -> Array:
    """``values`` rounded to ``dtype``, as ``values.astype(dtype)`` does it.

    Returns:
        An array of the same shape; ``values`` itself if it has that dtype. Values are rounded to nearest, ties to even,
        and overflow to infinity; NaN stays NaN, with any payload.
    """
    target = np.dtype(dtype)
    kernel = None
    if values.size >= MIN_SIZE and (values.dtype, target) in _PAIRS:
        with _building:
            kernel = _kernel(values.dtype, target)
    return kernel(values) if kernel else _numpy(values, target)


def _numpy(values: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is counted by the writer, NaN kept
        converted: Array = values.astype(dtype, copy=False)
    return converted


@lru_cache
def _kernel(source: np.dtype[Any], target: np.dtype[Any]) -> Callable[[Array], Array] | None:
    """ONNX Runtime's Cast, which many threads may call at a time; None if it is not there, or not what it should be."""
    # Any error: this is for speed only, and a broken installation is reported where ONNX Runtime is really needed.
    try:
        session = _session(source, target)

        def kernel(values: Array) -> Array:
            converted: Array = session.run(None, {"x": values})[0]
            return converted

        probe = _numpy(_PROBE, source)
        same = np.array_equal(kernel(probe), _numpy(probe, target), equal_nan=True)
    except Exception:
        return None
    return kernel if same else None


def _session(source: np.dtype[Any], target: np.dtype[Any]) -> Any:
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # the callers are threads already
    options.enable_cpu_mem_arena = False  # which keeps what it once had
    options.log_severity_level = 4
    return start_session(ort, _cast_model(source, target), options, [FALLBACK])[0]


def _cast_model(source: np.dtype[Any], target: np.dtype[Any]) -> bytes:
    types = {"x": helper.np_dtype_to_tensor_dtype(source), "y": helper.np_dtype_to_tensor_dtype(target)}
    x, y = (helper.make_tensor_value_info(name, type_, None) for name, type_ in types.items())
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=types["y"])], "cast", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


LARGEST = 65504.0
"""The largest finite number."""
SMALLEST_NORMAL = 2.0**-14
"""The smallest with all of its 11 bits."""
SMALLEST = 2.0**-24
"""The smallest above zero."""
VANISHING = SMALLEST / 2
"""Up to here numbers become zero: ties go to even."""
