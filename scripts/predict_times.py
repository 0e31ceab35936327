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

import statistics
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import Arguments

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
import onnx
from support.full_exports import traced

from sdort.checkup.prediction import BETWEEN, FITS, Fit, predicted, shares_of
from sdort.checkup.rates import DEVICES, H200, MI210, Device
from sdort.checkup.work import KINDS, Totals, Work, totals, works_of
from sdort.graph.weights import Absent
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import from_proto
from sdort.providers import load_target

HEADING = "<!-- written by scripts/predict_times.py -->\n"
END = "<!-- end -->\n"
AMD = [device for device in DEVICES if device.provider == "rocm" and device != MI210]


@dataclass(frozen=True)
class Run:
    """A graph at a size, and microseconds of its kernels by kind on the H200; ``whole`` is the run in a CUDA graph."""

    graph: str
    title: str
    batch: int
    side: int
    measured: Mapping[str, float]
    whole: float


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


def works(run: Run, provider: str) -> list[Work]:
    """The nodes of a step, or of the decoder, as optimized for a provider."""
    model = graph_at(run)
    optimize_model(model, OptimizeOptions(load_target(provider), fp16=True, sdort_ops=True))
    return works_of(model)


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


def between_of(runs: Iterable[str]) -> float:
    """The part of the time that is in no kernel of a kind: gaps, memory that is set, others."""
    return statistics.mean(1 - sum(RUNS[name].measured.values()) / RUNS[name].whole for name in runs)


def settled(fits: Mapping[str, Fit], between: float) -> bool:
    """Whether these are the numbers that ``sdort doctor --measure`` has of them, rounded."""
    known = {kind: (round(fit.factor, 3), round(fit.launch, 2)) for kind, fit in fits.items()}
    return known == {kind: (fit.factor, fit.launch) for kind, fit in FITS.items()} and round(between, 4) == BETWEEN


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
    if not args.run and not settled(fits_of(runs), between_of(runs)):
        print("sdort/checkup/prediction.py has other FITS or another BETWEEN: write these there", file=sys.stderr)
        near = False
    if not near:
        print(
            f"a run on the H200 is off by more than {MOST_ERROR:.0%}: the method is not fit for others", file=sys.stderr
        )
    return 0 if near else 1


if __name__ == "__main__":
    sys.exit(main())
