"""Rooflines: the hot nodes of a model against the limits of the GPU; bytes and arithmetic from shapes, time measured.

It runs in a process of its own, in which every launch waits for its kernel: the host's time of a node is then the
kernels' own and a few microseconds, on every build of ONNX Runtime. The two roofs are measured in the same process.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sdort.benchmark.rows import Row
from sdort.console import to_json
from sdort.engines.onnx import OnnxEngine
from sdort.engines.original import holds_onnx
from sdort.errors import ProviderError, SdortError
from sdort.families.component_names import DECODER
from sdort.families.known_families import DENOISERS
from sdort.machine.subprocesses import WorkerError, run_worker
from sdort.operators import load_operators
from sdort.providers import find_provider
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.probe import choose_provider
from sdort.workload.cases import Case

SERIAL = {"CUDA_LAUNCH_BLOCKING": "1", "HIP_LAUNCH_BLOCKING": "1", "AMD_SERIALIZE_KERNEL": "3"}
"""Launches wait for their kernels (CUDA's and HIP's documentation of environment variables)."""
HOT = 10
"""Nodes to show: those that take the longest, all of one operator and shape together."""
_BYTES = {"float16": 2, "bfloat16": 2, "float": 4, "double": 8, "int32": 4, "int64": 8, "bool": 1, "uint8": 1}
_PER_ELEMENT = {"LayerNormalization": 8, "InstanceNormalization": 8, "Softmax": 5, "Sigmoid": 4}
"""Operations of standard operators for each element of the output, 1 of others: mean, variance, normalizing, affine.

Rounded: these are bound by memory, so that their height on the plot does not depend on it.
"""

MATRIX_SIDE = 4096
"""Rows and columns of the fp16 matrices whose product is the roof of arithmetic."""
COPIED_BYTES = 256 << 20
"""Bytes that the roof of memory reads, and writes: more than any cache holds."""

Shapes = Sequence[tuple[str, tuple[int, ...]]]
"""Dtype and dims of each tensor, as ONNX Runtime's profile names them."""


@dataclass(frozen=True)
class Point:
    """The nodes of one operator and shape: per node, bytes that must move at least, operations and seconds."""

    operator: str
    shape: str
    nodes: int
    bytes: int
    flops: int
    seconds: float

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.bytes

    @property
    def speed(self) -> float:
        """Operations a second."""
        return self.flops / self.seconds


@dataclass(frozen=True)
class Roofline:
    """The hot nodes of one component, and the roofs: bytes and operations a second, both measured."""

    component: str
    points: list[Point]
    bandwidth: float
    peak: float


def flops(operator: str, inputs: Shapes, outputs: Shapes) -> int | None:
    """Operations of a node, a multiply-add being two; None where shapes do not tell."""
    dims, out = [shape for _, shape in inputs], outputs[0][1] if outputs else ()
    if not dims:
        return None
    if operator in ("MatMul", "Gemm"):
        return 2 * math.prod(out) * dims[0][-1]
    if operator in ("Conv", "FusedConv"):
        return 2 * math.prod(out) * math.prod(dims[1][1:]) if len(dims) > 1 and len(dims[1]) == 4 else None
    # The profile of ONNX Runtime tells no domain.
    known = next((candidate for candidate in load_operators().values() if candidate.name == operator), None)
    operations = known.operations if known else _PER_ELEMENT.get(operator, 1)
    return operations * math.prod(out) if isinstance(operations, int) else operations(dims, [out])


def moved(inputs: Shapes, outputs: Shapes) -> int:
    """Bytes if every input is read once and every output written once."""
    return sum(_BYTES.get(dtype, 4) * math.prod(shape) for dtype, shape in [*inputs, *outputs])


def hot_nodes(events: Iterable[Mapping[str, Any]], ep: str, most: int = HOT) -> list[Point]:
    """The nodes on an execution provider that take the longest; those of one operator and shape are one point."""
    groups: dict[tuple[str, str], list[tuple[float, Shapes, Shapes]]] = defaultdict(list)
    for event in events:
        arguments = event.get("args", {})
        if str(event.get("name", "")).endswith("_kernel_time") and arguments.get("provider") == ep:
            inputs, outputs = (_shapes(arguments.get(f"{kind}_type_shape", ())) for kind in ("input", "output"))
            words = ", ".join("x".join(map(str, shape)) for _, shape in inputs if len(shape) > 1)
            groups[arguments.get("op_name", ""), words].append((event["dur"] / 1e6, inputs, outputs))
    points = []
    for (operator, words), nodes in groups.items():
        seconds, inputs, outputs = sum(node[0] for node in nodes) / len(nodes), nodes[0][1], nodes[0][2]
        done, size = flops(operator, inputs, outputs), moved(inputs, outputs)
        if done and size and seconds:
            points.append(Point(operator, words, len(nodes), size, done, seconds))
    return sorted(points, key=lambda point: -point.nodes * point.seconds)[:most]


def _shapes(listed: Iterable[Mapping[str, Sequence[int]]]) -> Shapes:
    return [(dtype, tuple(shape)) for tensor in listed for dtype, shape in tensor.items()]


WORKER = "sdort.benchmark.roofline_worker:profile_component"
"""The module that runs in a process of its own."""


def measure_roofline(
    path: Path, case: Case, provider: Provider, options: RuntimeOptions, factor: int, tokens: int
) -> Roofline:
    """Profile one component in a process of its own.

    Raises:
        ProviderError: the process failed.
    """
    plain = replace(options, graph=False, tuning=False, fallback=None, profile="")
    task = {"path": path, "case": case, "factor": factor, "tokens": tokens, "provider": provider.name, "options": plain}
    task |= {"side": MATRIX_SIDE, "copied": COPIED_BYTES}
    try:
        answer = run_worker(WORKER, {"task": to_json(task)}, environ={**os.environ, **SERIAL})
    except WorkerError as error:
        raise ProviderError(f"the roofline's process failed: {error.said}", component=case.component) from error
    points = [Point(**point) for point in answer["points"]]
    return Roofline(case.component, points, answer["bandwidth"], answer["peak"])


def parse_task(task: Mapping[str, Any]) -> tuple[Case, Provider, RuntimeOptions]:
    """The task that :func:`measure_roofline` sent."""
    return Case(**task["case"]), find_provider(task["provider"]), RuntimeOptions(**task["options"])


PLOTTED = (*DENOISERS, DECODER)
"""Components whose time counts."""


def measure_rooflines(path: Path, rows: Sequence[Row], options: RuntimeOptions) -> tuple[list[Roofline], list[str]]:
    """The rooflines of a pipeline's measured components at their first batch and size, and what kept others away."""
    provider, _ = choose_provider(options)
    if not provider.on_gpu:
        return [], ["No roofline: it is for GPUs, and this ran on the CPU."]
    mine = {row.component: row for row in reversed(rows) if row.engine == OnnxEngine.name and not row.failed}
    if not holds_onnx(path) or not set(PLOTTED) & set(mine):
        return [], [f"No roofline: it needs {' or '.join(PLOTTED)}, measured in onnxruntime."]
    engine = OnnxEngine(path, provider, options)
    rooflines, remarks = [], []
    for name in PLOTTED:
        if name in mine:
            row = mine[name]
            case = Case(name, row.batch_size, row.height, row.width)
            try:
                file, tokens = engine.folder.models[name], engine.folder.tokens(name)
                rooflines.append(measure_roofline(file, case, provider, options, engine.factor, tokens))
            except SdortError as error:
                remarks.append(f"No roofline of {name}: {error.message}")
    return rooflines, remarks
