"""The process that measures for :mod:`sdort.benchmark.roofline`: JSON in and out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sdort.benchmark.roofline import hot_nodes, parse_task
from sdort.console import to_json
from sdort.errors import ProviderError
from sdort.files.staging import temporary_folder
from sdort.inspection.profile import profile_run
from sdort.machine.distributions import import_onnxruntime
from sdort.operator_library.library import OFF
from sdort.pipelines.folder import image_channels
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.opener import create_session
from sdort.runtime.probe import why_not
from sdort.runtime.session import open_session
from sdort.workload.cases import make_feeds

CALLS = 8


def profile_component(task: Mapping[str, Any]) -> dict[str, Any]:
    """The task of :func:`sdort.benchmark.roofline.measure_roofline`.

    Returns:
        As JSON values: ``points``, the hottest nodes; ``bandwidth`` and ``peak`` of the device.

    Raises:
        ProviderError: the provider does not load.
    """
    case, provider, options = parse_task(task)
    reason = why_not(provider, options)  # it also loads the libraries that a GPU's provider needs
    if reason:
        raise ProviderError(reason)
    with temporary_folder("profile") as folder:
        logged = replace(options, profile=str(folder / "profile"))
        session = open_session(Path(task["path"]), case.component, provider, logged)
        channels = image_channels(session.path, case.component)
        events = profile_run(session, make_feeds(case, session.inputs, task["factor"], channels, task["tokens"]))
    measured = roofs(provider, options, task["side"], task["copied"])
    answer: dict[str, Any] = to_json({"points": hot_nodes(events, provider.ep), **measured})
    return answer


def roofs(
    provider: Provider, options: RuntimeOptions, side: int, copied: int, *, half: bool = True
) -> dict[str, float]:
    """Bytes a second of negating a large tensor, and operations a second of a large product.

    Args:
        side: of the square matrices.
        copied: bytes of the tensor.
        half: in fp16; else in fp32.
    """
    product = _seconds("MatMul", [(side, side), (side, side)], provider, options, half)
    copy = _seconds("Neg", [(copied // (2 if half else 4),)], provider, options, half)
    return {"bandwidth": 2 * copied / copy, "peak": 2 * side**3 / product}


def _seconds(
    operator: str, shapes: list[tuple[int, ...]], provider: Provider, options: RuntimeOptions, half: bool
) -> float:
    """The median time of one node with inputs and output on the device."""
    ort = import_onnxruntime()
    session = create_session(_model(operator, shapes, half), provider, replace(options, custom_ops=OFF))
    binding = session.io_binding()
    device = provider.device or "cpu"
    rng = np.random.default_rng(0)
    for index, shape in enumerate(shapes):
        value = rng.standard_normal(shape, np.float32).astype(np.float16 if half else np.float32)
        binding.bind_ortvalue_input(f"x{index}", ort.OrtValue.ortvalue_from_numpy(value, device, options.device_id))
    binding.bind_output("y", device, options.device_id)
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def _model(operator: str, shapes: list[tuple[int, ...]], half: bool) -> bytes:
    from onnx import TensorProto, helper

    dtype = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(f"x{index}", dtype, shape) for index, shape in enumerate(shapes)]
    node = helper.make_node(operator, [tensor.name for tensor in inputs], ["y"])
    graph = helper.make_graph([node], "roof", inputs, [helper.make_tensor_value_info("y", dtype, shapes[0])])
    content: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    ).SerializeToString()
    return content
