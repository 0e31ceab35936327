"""Disk space and memory of an optimization, before its first slow step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from sdort.files.disk import PlannedWrite, WritePlan, plan_writes
from sdort.onnx_io.check_tensors import tensor_nbytes, type_name
from sdort.onnx_io.component_file import ComponentFile, read_component
from sdort.onnx_io.components import walk
from sdort.onnx_io.load import load_model
from sdort.optimizer.optimize_request import OptimizeRequest
from sdort.optimizer.output import COPIED_SUFFIXES
from sdort.passes.quantize_weights import saved_bytes

_PLAIN, _MEASURING = 250_000_000, 500_000_000
"""Peak memory in bytes beside weights, and that of --fp16 auto, which runs the model: measured 115 and 466 MB for the
demo model, 173 MB for SD 1.5 and 290 MB with auto for its text encoder of 492 MB. Weights pass in pieces."""


def plan_space(request: OptimizeRequest, chosen: Mapping[str, Path]) -> WritePlan:
    """The writes of an optimization: sizes of the weights by their dtypes, and of the graphs as they are."""
    writes, scratch, done, largest = [], 0, 0, 0
    for name, path in chosen.items():
        file = read_component(path, name)
        weights, floats = sum(file.weight_bytes.values()), file.weight_bytes["float"]
        phases = _phase_bytes(file)
        weights, floats = weights + phases["float"] + phases["float16"], floats + phases["float"]
        size = weights - floats // 2 * request.half + file.proto.ByteSize()
        note = "fp32 to fp16" if request.half and floats else "as it is"
        if request.integers:
            model = load_model(path, name, request.unwritten.get(name))
            size -= saved_bytes(model, request.integers, half=request.half)
            note = f"{note}, linear layers in {request.weights}"
        writes.append(PlannedWrite(name, request.out, size, note))
        largest = max(largest, weights)
        # It is written in fp32 and replaced by its next version, beside what is finished.
        scratch = max(scratch, done + 2 * weights)
        done += size
    configs = _config_bytes(request)
    if configs:
        writes.append(PlannedWrite("configs", request.out, configs, "copied"))
    if not request.measures:
        return plan_writes(writes, peak_memory=_PLAIN)
    return plan_writes(writes, scratch=max(0, scratch - done), peak_memory=_MEASURING + largest)


def _phase_bytes(file: ComponentFile) -> Counter[str]:
    """Growth of 3x3 filters behind an upsampling, dtype by dtype: as phases they are four of 2x2."""
    graph = file.graph.graph
    upsampled = {node.output[0] for node in graph.node if node.op_type in ("Resize", "Upsample")}
    filters = {node.input[1] for node in graph.node if node.op_type == "Conv" and node.input[0] in upsampled}
    grown: Counter[str] = Counter()
    for tensor in graph.initializer:
        if tensor.name in filters:
            grown[type_name(tensor.data_type).lower()] += tensor_nbytes(tensor, file.component) * 7 // 9
    return grown


def _config_bytes(request: OptimizeRequest) -> int:
    if not request.source.is_dir():
        return 0
    files = walk(request.source)
    return sum(path.stat().st_size for path in files if path.suffix in COPIED_SUFFIXES and path.is_file())
