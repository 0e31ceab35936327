"""Sums of weights in a device's memory and products of small matrices, written where the weights are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from onnx import helper, parser

from sdort.errors import SdortError
from sdort.graph.signature import Array, Factors
from sdort.machine.distributions import import_onnxruntime
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.device_block import borrowed_value
from sdort.runtime.failures import run_error
from sdort.runtime.opener import NONE, create_session

PIECE = 1 << 22
"""Elements of a weight that are summed at a time: there are three arrays of them in fp32."""


class WeightSums:
    """Sessions of a provider that compute ``weight + left @ right`` in fp32 into the weight's own memory.

    Args:
        options: those of the session that reads the weights.
    """

    def __init__(self, provider: Provider, options: RuntimeOptions) -> None:
        exact = {**options.provider_options, **provider.exact}
        self._provider = provider
        # Not on the session's stream: a switch waits for what runs, and what runs next waits for the switch.
        self._options = replace(
            options, graph=False, stream=0, profile="", tuning=False, custom_ops="off", provider_options=exact
        )
        self._sessions: dict[np.dtype[Any], Any] = {}

    def add(self, weight: Any, dtype: np.dtype[Any], factors: Factors) -> float:
        """Add a product to a weight, and wait for it.

        Args:
            weight: an ``OrtValue`` in the provider's memory.
            dtype: its, float32 or float16.
            factors: [rows, rank] and [rank, columns] in fp32: the weight's elements in their order.

        Returns:
            The largest magnitude of the sums before they are rounded; NaN if one is.

        Raises:
            ProviderError: the provider fails.
        """
        left, right = factors
        step = max(PIECE // right.shape[1], 1)
        starts = range(0, len(left), step)
        try:
            session, shared = self._session(dtype), self._uploaded(right)
            found = [
                self._add(session, weight.data_ptr(), dtype, left[start : start + step], shared, start)
                for start in starts
            ]
        except SdortError:
            raise
        except Exception as error:  # ONNX Runtime's classes share no base but Exception
            raise run_error(error, "adapters", self._provider) from error
        return float(np.max(found))

    def _add(self, session: Any, address: int, dtype: np.dtype[Any], left: Array, right: Any, start: int) -> float:
        """Add to the rows from ``start`` on."""
        shape = (len(left), right.shape()[1])
        place = address + start * shape[1] * dtype.itemsize
        rows = borrowed_value(place, self._provider.vendor, self._options.device_id, shape, dtype)
        binding = session.io_binding()
        binding.bind_ortvalue_input("weight", rows)
        binding.bind_ortvalue_input("left", self._uploaded(left))
        binding.bind_ortvalue_input("right", right)
        binding.bind_ortvalue_output("sum", rows)
        binding.bind_output("largest", "cpu")
        session.run_with_iobinding(binding)
        return float(binding.get_outputs()[1].numpy())

    def _uploaded(self, values: Array) -> Any:
        place = (self._provider.device, self._options.device_id) if self._provider.device else ("cpu", 0)
        return import_onnxruntime().OrtValue.ortvalue_from_numpy(np.ascontiguousarray(values, np.float32), *place)

    def _session(self, dtype: np.dtype[Any]) -> Any:
        if dtype not in self._sessions:
            self._sessions[dtype] = create_session(_model(dtype), self._provider, self._options, optimization=NONE)
        return self._sessions[dtype]


def _model(dtype: np.dtype[Any]) -> bytes:
    """The graph of a sum. ``sum`` may be the memory of ``weight``: it is read as a whole before it is written."""
    kind = {"float32": "float", "float16": "float16"}[dtype.name]
    model: bytes = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        sum ({kind}[M, N] weight, float[M, R] left, float[R, N] right) => ({kind}[M, N] sum, float largest) {{
            difference = MatMul (left, right)
            wide = Cast <to = 1> (weight)
            total = Add (wide, difference)
            size = Abs (total)
            largest = ReduceMax <keepdims = 0> (size)
            sum = Cast <to = {helper.np_dtype_to_tensor_dtype(dtype)}> (total)
        }}""").SerializeToString()
    return model
