"""The kernels that an installed provider of ONNX Runtime says it has; compiling providers register none."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Mapping

from sdort.graph.domains import IN_DEFAULT_DOMAIN, MICROSOFT

Versions = Mapping[str, list[tuple[int, int]]]
"""Operator, ``com.microsoft.Gelu`` or ``Conv`` -> the opsets from and to which there is a kernel."""


def registered(execution_provider: str) -> Versions:
    """The kernels of a provider that is built in, or whose plugin is registered and finds a device.

    ONNX Runtime has them in a private module alone.
    """
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for kernel in state.get_registered_ep_kernel_defs(execution_provider):
        own = kernel.domain == MICROSOFT or kernel.op_name in IN_DEFAULT_DOMAIN
        found[f"{MICROSOFT}.{kernel.op_name}" if own else kernel.op_name].append(tuple(kernel.version_range))
    return found


def has(kernels: Versions, operator: str, opset: int) -> bool:
    """Whether there is a kernel of a standard operator at an opset: the newest that is not newer."""
    return any(first <= opset <= last for first, last in kernels.get(operator, []))
