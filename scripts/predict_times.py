#!/usr/bin/env python3
"""Predicts the time of a step and of a decoder on AMD GPUs that nobody measured, from the work of sdort's graphs.

    python scripts/predict_times.py [--run NAME]... [--gpu gfx1100]... [--update docs/measurements.md]

Graphs of the released architectures at their true depth, without weights, are optimized as `sdort optimize --fp16`
does. Of each node the shapes say how many operations it does and how many bytes it moves at least; what does not depend
on the latents is left out, as it is made before the steps. The roofline of a node is the longer of both at a GPU's
published rates. How near to it each kind of kernel comes is taken from the H200, on which five runs were measured
kernel by kernel: the time above the rooflines is a factor of the kind, and a fixed time of a launch. The first table
shows what this method says of the H200 itself, beside what was measured.

On an AMD GPU sdort's own kernels are taken to be no nearer to the roofline than their counted instructions allow
(custom_ops/COUNTS.md), nor than the same kind on the H200; MIOpen and hipBLASLt as near as cuDNN and cuBLAS are on the
H200, which is favourable to them. --update writes the tables into that file in place of its own.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import Arguments

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from kernel_counts import GPUS
from support.full_exports import traced

from sdort.benchmark.roofline import flops
from sdort.graph.weights import Absent
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import from_proto
from sdort.providers import load_target
from sdort.rewrite.editor import Editor

COUNTS = Path(__file__).resolve().parent.parent / "custom_ops" / "COUNTS.md"
HEADING = "<!-- written by scripts/predict_times.py -->\n"
END = "<!-- end -->\n"


@dataclass(frozen=True)
class Device:
    """Published rates: bytes and fp16 matrix operations a second."""

    name: str
    provider: str
    bandwidth: float
    peak: float
    architecture: str = ""


H200 = Device("H200", "cuda", 4.8e12, 989.4e12)
"""NVIDIA's data sheet (https://www.nvidia.com/en-us/data-center/h200/), SXM, without sparsity."""
AMD = [
    Device(gpu.name, "rocm", gpu.bandwidth * 1e9, gpu.peak * 1e12, gpu.architecture)
    for gpu in GPUS
    if gpu.architecture != "gfx90a"
]
"""Sources: custom_ops/COUNTS.md."""


@dataclass(frozen=True)
class Run:
    """A graph at a size, and microseconds of its kernels by kind on the H200; ``whole`` is the run in a CUDA graph."""

    graph: str
    title: str
    batch: int
    side: int
    measured: Mapping[str, float]
    whole: float


KINDS = ("convolutions", "products", "attention", "GroupNorm", "LayerNorm", "BiasSplitGelu", "sums", "phases")


def _of_kinds(*microseconds: float) -> dict[str, float]:
    return dict(zip(KINDS, microseconds, strict=True))


RUNS = {
    "sd15-2": Run(
        "sd15", "SD 1.5, 512x512, 2 samples", 2, 64, _of_kinds(1749, 1423, 1019, 403, 193, 158, 109, 11), 5285
    ),
    "sd15-16": Run(
        "sd15", "SD 1.5, 512x512, 16 samples", 16, 64, _of_kinds(8951, 7117, 7426, 1738, 1086, 1172, 503, 69), 30324
    ),
    "sdxl-2": Run(
        "sdxl", "SDXL, 1024x1024, 2 samples", 2, 128, _of_kinds(5473, 13380, 4528, 783, 1380, 1406, 188, 32), 29425
    ),
    "decoder-512": Run("vae_decoder", "decoder, 512x512", 1, 64, _of_kinds(3069, 108, 90, 988, 0, 0, 62, 112), 4799),
    "decoder-1024": Run(
        "vae_decoder", "decoder, 1024x1024", 1, 128, _of_kinds(11893, 397, 1398, 3916, 0, 0, 218, 449), 19771
    ),
}
"""One NVIDIA H200, driver 580.159, onnxruntime-gpu 1.31.1, fp16, random weights, scripts/gpu_kernels.py, 2026-11-26."""
OWN = {"attention": "attention", "GroupNorm": "group_norm", "BiasSplitGelu": "bias_split_gelu", "sums": "bias_add",
       "LayerNorm": "skip_layer_norm", "phases": "interleave_phases"}  # fmt: skip
"""Kind -> the operator of sdort's library that does it on AMD GPUs."""
FREE = {"Reshape", "Cast", "Unsqueeze", "Squeeze", "Shape", "Gather", "Identity", "Expand"}
"""Operators that move nothing in the graph, or a few numbers."""


@dataclass(frozen=True)
class Work:
    """What one node does at least."""

    kind: str
    flops: float
    bytes: float

    def roofline(self, device: Device) -> float:
        """Microseconds."""
        matrix = self.kind in ("convolutions", "products", "attention")
        return 1e6 * max(self.bytes / device.bandwidth, self.flops / device.peak if matrix else 0)


def works(run: Run, provider: str) -> list[Work]:
    """The nodes of a step, or of the decoder, as optimized for a provider."""
    model = graph_at(run)
    optimize_model(model, OptimizeOptions(load_target(provider), fp16=True, sdort_ops=True))
    editor, depends = Editor(model), {"sample", "latent_sample"}
    found = []
    for node in model.graph.nodes:
        if not depends.isdisjoint(tensor.name for tensor in node.inputs):
            depends |= {tensor.name for tensor in node.outputs}
            if node.op not in FREE:
                found.append(work_of(node, editor))
    return found


def graph_at(run: Run) -> Any:
    """The traced graph with fixed sizes; its weights have shapes and no values."""
    built, text = traced(run.graph)
    proto = onnx.ModelProto.FromString(text)
    sizes = {"batch": run.batch, "height": run.side, "width": run.side, "sequence": 77}
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = sizes[dim.dim_param]
        if value.name not in built.inputs:
            dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            proto.graph.initializer.add(name=value.name, data_type=onnx.TensorProto.FLOAT, dims=dims)
    return from_proto(proto, lambda t: Absent(t.name, t.dims, np.float32), built.component)


def work_of(node: gs.Node, editor: Editor) -> Work:
    inputs, outputs = ([shape_of(t, editor) for t in tensors if t.name] for tensors in (node.inputs, node.outputs))
    kind = kind_of(node.op, [shape for _, shape in inputs])
    name = node.op.removeprefix("Nhwc") if node.op.startswith("Nhwc") else node.op
    done = convolution_flops(inputs, outputs) if "Conv" in name else flops(name, inputs, outputs)
    sizes = {"float16": 2, "float32": 4}
    moved = sum(sizes.get(dtype, 0) * math.prod(shape) for dtype, shape in [*inputs, *outputs])
    return Work(kind, done or 0, moved)


def convolution_flops(inputs: list[tuple[str, tuple[int, ...]]], outputs: list[tuple[str, tuple[int, ...]]]) -> int:
    """Of a convolution whose filters are [outputs, ...], in either layout."""
    return 2 * math.prod(outputs[0][1]) * math.prod(inputs[1][1][1:])


def shape_of(tensor: gs.Tensor, editor: Editor) -> tuple[str, tuple[int, ...]]:
    fact = editor.facts.of(tensor)
    if fact.shape is None or fact.dtype is None or not all(isinstance(dim, int) for dim in fact.shape):
        raise LookupError(f"the shape of {tensor.name} is not known: {fact}")
    return fact.dtype.name, tuple(int(dim) for dim in fact.shape if isinstance(dim, int))


def kind_of(op: str, shapes: list[tuple[int, ...]]) -> str:
    """The kind of kernel that computes a node; convolutions of 1x1 are products in the profiles."""
    if "Conv" in op:
        filters = shapes[1]
        inner = filters[1:3] if op.startswith("Nhwc") else filters[2:]
        return "products" if math.prod(inner) == 1 else "convolutions"
    ends = {"MatMul": "products", "Gemm": "products", "Attention": "attention", "GroupNorm": "GroupNorm",
            "LayerNormalization": "LayerNorm", "SplitGelu": "BiasSplitGelu", "Phases": "phases"}  # fmt: skip
    return next((kind for end, kind in ends.items() if op.endswith(end)), "sums")


@dataclass(frozen=True)
class Fit:
    """Time of a kind of kernel: ``factor`` times the rooflines, and ``launch`` microseconds for each node."""

    factor: float
    launch: float

    def microseconds(self, rooflines: float, nodes: int, factor: float = 0) -> float:
        """Of some nodes; ``factor`` if it is more than the fit's."""
        return max(self.factor, factor) * rooflines + self.launch * nodes


Totals = Mapping[str, tuple[float, int]]
"""Kind -> the sum of its nodes' rooflines in microseconds, and how many they are."""


def totals(found: Iterable[Work], device: Device) -> Totals:
    sums: dict[str, tuple[float, int]] = {}
    for work in found:
        rooflines, nodes = sums.get(work.kind, (0.0, 0))
        sums[work.kind] = rooflines + work.roofline(device), nodes + 1
    return sums


def fits_of(runs: Mapping[str, Totals]) -> dict[str, Fit]:
    """By kind, from the measured runs; least squares of relative errors, neither number below zero."""
    found = {}
    for kind in KINDS:
        measured = {name: RUNS[name].measured[kind] for name, of_run in runs.items() if kind in of_run}
        rows = np.array([[value / measured[name] for value in runs[name][kind]] for name in measured])
        if len(rows):
            found[kind] = fitted(rows)
    return found


def fitted(rows: Any) -> Fit:
    factor, launch = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0] if len(rows) > 1 else (-1.0, -1.0)
    if factor < 0 or launch < 0:
        factor, launch = 1 / float(np.mean(rows[:, 0])), 0.0
    return Fit(float(factor), float(launch))


def predicted(of_run: Totals, fits: Mapping[str, Fit], between: float, shares: Mapping[str, float]) -> dict[str, float]:
    """Microseconds by kind, and of what runs in no kernel of a kind: the part ``between`` of the whole."""
    times = {
        kind: fits[kind].microseconds(*of_run[kind], 1 / shares.get(OWN.get(kind, ""), 1.0))
        for kind in KINDS
        if kind in of_run and kind in fits
    }
    return {**times, "between": sum(times.values()) * between / (1 - between)}


def between_of(runs: Iterable[str]) -> float:
    """The part of the time that is in no kernel of a kind: gaps, memory that is set, others."""
    return statistics.mean(1 - sum(RUNS[name].measured.values()) / RUNS[name].whole for name in runs)


def shares_of(architecture: str) -> dict[str, float]:
    """Operator of sdort's library -> the part of its time at best that the roofline is, the median of its shapes."""
    table = COUNTS.read_text().partition(f"({architecture})")[2].partition("\n## ")[0]
    found: dict[str, list[float]] = defaultdict(list)
    operator = ""
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        operator = cells[1].split()[0] if len(cells) > 2 and cells[1] else operator
        if len(cells) > 2 and (share := re.fullmatch(r"(\d+)%", cells[-2])):
            found[operator].append(min(float(share[1]) / 100, 1.0))
    return {operator: statistics.median(values) for operator, values in found.items()}


MOST_ERROR = 0.25
"""Of a run on the H200, from the fits of the others: beyond it the method says nothing of another GPU."""


def check_table(runs: Mapping[str, Totals]) -> tuple[str, bool]:
    """What the method says of each run on the H200 from the others alone; whether that is near what was measured."""
    lines = ["| on the H200 | measured, ms | predicted from the other runs, ms | off by |", "|---|---|---|---|"]
    near = True
    for name, of_run in runs.items():
        others = {other: each for other, each in runs.items() if other != name} or runs
        whole = sum(predicted(of_run, fits_of(others), between_of(others), {}).values())
        error = whole / RUNS[name].whole - 1
        near = near and abs(error) <= MOST_ERROR
        lines.append(f"| {RUNS[name].title} | {RUNS[name].whole / 1e3:.2f} | {whole / 1e3:.2f} | {error:+.0%} |")
    return "\n".join(lines) + "\n", near


def fit_table(fits: Mapping[str, Fit]) -> str:
    lines = ["| kind | times the roofline | and us a launch |", "|---|---|---|"]
    lines += [f"| {kind} | {fit.factor:.2f} | {fit.launch:.1f} |" for kind, fit in fits.items()]
    return "\n".join(lines) + "\n"


def prediction_table(devices: list[Device], runs: Mapping[str, Totals]) -> str:
    """Milliseconds by GPU: predicted, and at the rooflines."""
    fits, between = fits_of(runs), between_of(runs)
    names = [f"{device.name} ({device.architecture})" for device in devices]
    lines = [f"| predicted, ms (at the rooflines) | {' | '.join(names)} |", "|---" * (len(devices) + 1) + "|"]
    parts = ["| of the time: convolutions / products / attention / the rest, % | " + " | ".join(names) + " |",
             "|---" * (len(devices) + 1) + "|"]  # fmt: skip
    for name in runs:
        found, shown, split = works(RUNS[name], "rocm"), [], []
        for device in devices:
            sums = totals(found, device)
            times = predicted(sums, fits, between, shares_of(device.architecture))
            whole = sum(times.values())
            shown.append(f"{whole / 1e3:.1f} ({sum(each[0] for each in sums.values()) / 1e3:.1f})")
            three = [times.get(kind, 0) / whole for kind in KINDS[:3]]
            split.append(" / ".join(f"{100 * part:.0f}" for part in [*three, 1 - sum(three)]))
        lines.append(f"| {RUNS[name].title} | {' | '.join(shown)} |")
        parts.append(f"| {RUNS[name].title} | {' | '.join(split)} |")
    return "\n".join([*lines, "", *parts]) + "\n"


def main() -> int:
    parser = Arguments(__doc__)
    names = [device.architecture for device in AMD]
    parser.add_argument("--run", action="append", choices=list(RUNS), help="only this one (repeatable)")
    parser.add_argument("--gpu", action="append", choices=names, help="only this one (repeatable)")
    parser.add_argument("--update", type=Path, metavar="FILE", help="write all tables into this file")
    args = parser.parse_args()
    if args.update and (args.run or args.gpu):
        parser.error("--update writes all tables: leave --run and --gpu out")
    warnings.simplefilter("ignore")
    runs = {name: totals(works(RUNS[name], H200.provider), H200) for name in args.run or RUNS}
    checked, near = check_table(runs)
    devices = [device for device in AMD if device.architecture in (args.gpu or names)]
    text = "\n".join([checked, fit_table(fits_of(runs)), prediction_table(devices, runs)])
    if args.update:
        before, _, rest = args.update.read_text().partition(HEADING)
        args.update.write_text(f"{before}{HEADING}\n{text}\n{END}{rest.partition(END)[2]}")
    else:
        print(text, end="")
    if not near:
        print(
            f"a run on the H200 is off by more than {MOST_ERROR:.0%}: the method is not fit for others", file=sys.stderr
        )
    return 0 if near else 1


if __name__ == "__main__":
    sys.exit(main())
