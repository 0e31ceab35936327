#!/usr/bin/env python3
"""UNet step and VAE decode beside torch's, ONNX Runtime's own optimizer's, and sdort's that lack one thing each.

    python scripts/gpu_benchmark.py --work DIR [--provider cuda|rocm|cpu] [--batch 2,16] [--size 512x512,1024x1024]
        [--family sd15|sd21|sdxl|sdxl-refiner|...] [--components unet,vae_decoder]
        [--engines sdort,torch,compile,ort] [--custom-ops FILE] [--static] [--ablation [NAME,...]] [--checkpoint DIR]
        [--repeat 30] [--json FILE]

`sdort bench` measures: outputs are checked before they are timed, and each row takes turns with sdort's, call by call;
the ratio is sdort's time over the row's, with its 95 % interval. error is the distance from torch in fp32, norm over
norm, and what is beyond MOST is wrong. Rows are printed, and written to FILE, as they are measured: a run that is
stopped leaves what it has.

Without --checkpoint a pipeline of Stable Diffusion 1.5's shape with random weights is made in DIR, with --family
another one (sdort export random:NAME). A row of sdort is a session as `sdort run --graph` opens it, on a graph of
dynamic sizes; with --static one that was exported for its size follows. --ablation adds rows that lack one thing each:
all that LACKING has, or those that are named: what `sdort optimize --disable` takes too.

The peers: torch and torch.compile as `sdort bench` has them (channels last, cuDNN's own search, the mode
reduce-overhead), and what ONNX Runtime's own optimizer (onnxruntime.transformers.optimizer, fp16) makes of a
TorchScript export, with and without a graph of the device; for a full UNet that takes minutes and 17 GB of memory. An
engine that fails has a row that says why, and the exit code is 5.

On a GPU all of it is fp16, on the CPU sdort and torch are fp32. --provider cpu --family tiny tries it in seconds,
without a GPU; its times say nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Arguments, environment, refuse_unknown, timed, why
from ort_peer import OrtEngine

import sdort
from sdort.benchmark.bench_options import BenchOptions
from sdort.benchmark.measure import measure_engines
from sdort.benchmark.noise import noise_warning
from sdort.benchmark.row_table import ratio_text
from sdort.demo import RANDOM, write_demo
from sdort.engines.engine import Engine
from sdort.engines.fast_torch import FastTorchEngine
from sdort.engines.onnx import OnnxEngine
from sdort.engines.torch import TorchEngine
from sdort.graph.signature import Array
from sdort.options.number_ranges import parse_size
from sdort.providers import find_provider
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.checks import Precision, Verdict
from sdort.verification.references import CaseResult, Reference
from sdort.workload.cases import Case, make_feeds

WARMUP = 5
ENGINES = ("sdort", "torch", "compile", "ort")
TUNED: set[tuple[Path, Case, bool]] = set()
"""What kernels were tuned for: a model, a case, and whether its step is split."""
MOST = {"float32": 1e-4, "float16": 2e-2}
"""Distances from torch in fp32, norm over norm, by the dtype of most weights."""
LACKING: dict[str, tuple[dict[str, Any], Sequence[str]]] = {
    "operator library": ({"custom_ops": "off"}, ()),
    "prepared tensors": ({"split": False}, ()),
    "separate Q, K, V": ({}, ["separate_qkv"]),
    "moved biases": ({}, ["conv_bias"]),
    "fused upsampling": ({}, ["upsampling_convolution"]),
    "group norms of two parts": ({}, ["concat_group_norm"]),
    "wide attention": ({}, ["wide_attention"]),
    "group norms with a skip": ({}, ["skip_group_norm"]),
    "layer norms with a skip": ({}, ["skip_layer_normalization"]),
    "channels last": ({}, ["nhwc"]),
    "device graph": ({"graph": False}, ()),
}
"""Rows of --ablation by what they lack: options of the runtime, and what --disable takes."""
ON_CPU = ("upsampling_phases",)
"""Those of the CPU, where --ablation names none."""


def main() -> int:
    sdort.set_verbosity(0)
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # the reference is fp32 indeed
    checkpoint = args.checkpoint or make_checkpoint(args.family, args.work / f"checkpoint-{args.family}")
    rows: list[dict[str, Any]] = []
    where = environment(args.provider)
    print(json.dumps(where), HEADER, sep="\n", flush=True)
    todo = product(args.components.split(","), args.sizes.split(","), map(int, args.batches.split(",")))
    for component, size, batch in todo:
        args.size, args.batch = size, batch
        for row in benchmark(Case(component, batch, *parse_size(size)), checkpoint, args):
            rows.append({"component": component, "batch": batch, "size": size, **row})
            print(line(rows[-1]), flush=True)
            if args.json:
                args.json.write_text(json.dumps({"environment": where, "rows": rows}, indent=2))
    return 0 if all(row["ok"] for row in rows) else 5


def arguments() -> argparse.Namespace:
    parser = Arguments(
        __doc__, "--work --provider --checkpoint --family --custom-ops --repeat --json", providers="cuda rocm cpu"
    )
    parser.add_argument("--batch", dest="batches", default="2", help="samples, several by commas")
    parser.add_argument("--size", dest="sizes", default="512x512", help="of images, several by commas")
    parser.add_argument("--components", default="unet,vae_decoder")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--static", action="store_true", help="also graphs that are exported for their size")
    parser.add_argument("--ablation", nargs="?", const="", help="also rows of sdort that lack one thing each")
    args = parser.parse_args()
    refuse_unknown(args.engines, ENGINES, "--engines", parser)
    args.lacking = args.ablation.split(",") if args.ablation else ()
    if args.ablation == "":
        args.lacking = ON_CPU if args.provider == "cpu" else tuple(LACKING)
    return args


def make_checkpoint(family: str, folder: Path) -> Path:
    """A diffusers directory of the family's shape with random weights, made once."""
    if not (folder / "model_index.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_demo(f"{RANDOM}{family}", folder)
    return folder


def optimized(
    component: str, checkpoint: Path, args: argparse.Namespace, *, static: bool, disable: Sequence[str] = ()
) -> Path:
    """The component as sdort exports and optimizes it, without the fusions in ``disable``."""
    from sdort.exporter.command import export
    from sdort.exporter.export_options import StaticSize
    from sdort.optimizer.command import optimize

    height, width = parse_size(args.size)
    name = f"{checkpoint.name}-{component}-{f'{args.batch}-{args.size}' if static else 'dynamic'}"
    work: Path = args.work
    exported, out = work / f"{name}-onnx", work / "-".join([name, args.provider, *disable])
    if not out.exists():
        # A static UNet runs both halves of classifier-free guidance at once: two rows for each image.
        images = args.batch // 2 if component == "unet" else args.batch
        size = StaticSize(images, height, width) if static else None
        seconds = 0.0
        if not exported.exists():
            seconds = timed(partial(export, checkpoint, exported, components=[component], static=size))[1]
        gpu = args.provider != "cpu"
        own = args.custom_ops != "off" and gpu
        report = optimize(exported, out, provider=args.provider, fp16=gpu, sdort_ops=own, disable=disable)
        print(f"{name}: export {seconds:.1f} s, optimize {report.seconds:.1f} s", file=sys.stderr)
    return out / component / "model.onnx"


class TorchReference(Reference):
    """Outputs of torch in fp32. The verdicts' mean error is the distance, norm over norm, which MOST bounds."""

    def check(self, case: Case, result: CaseResult, precision: Precision) -> Verdict:
        expected, most = self.results[case], MOST[precision.dtype]
        assert isinstance(result, dict)
        assert isinstance(expected, dict)
        (values,), (right,) = result.values(), expected.values()
        off = values.astype(np.float64) - right
        distance = float(np.linalg.norm(off) / np.linalg.norm(right))
        problem = None if distance < most else f"is {distance:.1e} from {self.label}, norm over norm; at most {most}"
        return Verdict(problem, self.label, float(np.abs(off).max() / right.std()), distance)


def reference_of(case: Case, checkpoint: Path, provider: Provider) -> TorchReference:
    """The output of torch in fp32 on the provider's device, of samples that are computed one by one.

    All at once torch 2.11 got eight of 1024x1024 wrong in fp32 on an H200: torch's own fp16 was as far off as sdort's.
    """
    engine = TorchEngine(checkpoint, provider, "float32")
    feeds = make_feeds(case, engine.inputs(case.component), engine.factor)
    outputs: list[dict[str, Array]] = []
    for i in range(case.batch):
        sample = {name: x[i : i + 1] if np.shape(x)[:1] == (case.batch,) else x for name, x in feeds.items()}
        runner = engine.component_runner(case.component, sample)
        runner()
        outputs.append(runner.result())
    engine.close()
    return TorchReference(
        "torch in fp32", {case: {name: np.concatenate([each[name] for each in outputs]) for name in outputs[0]}}
    )


Make = Callable[[], Engine]
"""Opens an engine."""


def benchmark(case: Case, checkpoint: Path, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of a component at one size, each as soon as it is measured."""
    provider = find_provider(args.provider)
    try:
        reference = reference_of(case, checkpoint, provider)
    except Exception as error:  # no memory for this size, say; the other sizes keep their rows
        yield {"engine": "reference", "ok": False, "error": why(error)}
        return
    for name, make, beside in contenders(case, checkpoint, provider, args, reference):
        gc.collect()  # what a row that failed has left, and what it compiled
        torch.compiler.reset()
        try:
            yield {"engine": name, **measure(make, beside, case, reference, args)}
        except Exception as error:  # one engine's failure leaves the others their numbers
            yield {"engine": name, "ok": False, "error": why(error)}


def contenders(
    case: Case, checkpoint: Path, provider: Provider, args: argparse.Namespace, reference: Reference
) -> Iterator[tuple[str, Make, Make | None]]:
    """Rows by name: what opens their engines, and the engine that takes turns with them."""
    engines = args.engines.split(",")
    whole: dict[bool, Make] = {
        static: partial(sdort_engine, case, checkpoint, provider, args, static)
        for static in ((False, True) if args.static else (False,))
        if "sdort" in engines
    }
    for static, make in whole.items():
        yield f"sdort{', static' if static else ''}", make, whole[False] if static else None
    beside = whole.get(False)
    dtype = "float16" if provider.on_gpu else "float32"
    for engine, name in (("torch", "torch eager"), ("compile", "torch.compile")):
        if engine in engines:
            compiled = engine == "compile"
            yield name, partial(FastTorchEngine, checkpoint, provider, dtype, compiled=compiled), beside
    for graph in (False, True) if "ort" in engines else ():
        expected = reference.results[case]
        assert isinstance(expected, dict)
        (output,) = expected.values()
        yield (
            f"ORT optimizer{' + graph' if graph else ''}",
            partial(OrtEngine, checkpoint, provider, args.work, output.shape, graph),
            beside,
        )
    for static, make in whole.items():
        for what in args.lacking:
            options, disable = LACKING.get(what, ({}, [what]))
            less = partial(sdort_engine, case, checkpoint, provider, args, static, options, disable)
            yield f"sdort{', static' if static else ''}, without {what}", less, make


def sdort_engine(
    case: Case,
    checkpoint: Path,
    provider: Provider,
    args: argparse.Namespace,
    static: bool,
    lacking: Mapping[str, Any] | None = None,
    disable: Sequence[str] = (),
) -> OnnxEngine:
    model = optimized(case.component, checkpoint, args, static=static, disable=disable)
    options = RuntimeOptions(args.provider, graph=provider.on_gpu, custom_ops=args.custom_ops, check=False)
    options = replace(options, **(lacking or {}))
    folder = model.parent.parent
    if options.custom_ops != "off" and provider.on_gpu and (model, case, options.split) not in TUNED:
        # The kernels' variants are timed once, outside of any graph; SDORT_OPS_TUNING keeps what was found.
        os.environ.setdefault("SDORT_OPS_TUNING", str(args.work / "tuning.tsv"))
        os.environ["SDORT_OPS_TUNE"] = "1"
        OnnxEngine(folder, provider, replace(options, graph=False)).prepare(case, 1, None)()
        os.environ["SDORT_OPS_TUNE"] = "0"
        TUNED.add((model, case, options.split))
    return OnnxEngine(folder, provider, options)


def measure(
    make: Make, beside: Make | None, case: Case, reference: Reference, args: argparse.Namespace
) -> dict[str, Any]:
    """A row of `sdort bench`, and sdort's time over its own where it takes turns with sdort."""
    engines = [each() for each in (make, beside) if each]
    options = BenchOptions(RuntimeOptions(args.provider), warmup=WARMUP, repeat=args.repeat)
    row, *others = measure_engines(engines, [case.component], [case], reference, options).rows
    if warning := noise_warning([row, *others]):
        print(warning, file=sys.stderr)
    if row.failed:
        return {"ok": False, "error": row.status}
    of_host, of_device = (row.host_first_mib, row.host_later_mib), (row.device_first_mib, row.device_later_mib)
    memory = of_host if of_device[0] is None else of_device
    weights = sum(file.stat().st_size for file in engines[0].path.rglob("*.onnx.data")) / 1e6
    return {
        "ok": True, "median_ms": row.median_ms, "min_ms": row.min_ms, "p90_ms": row.p90_ms, "error": row.mean_error,
        "worst": row.error, "dtype": row.dtype, "settings": row.engine_settings, "weights_mb": weights or None,
        "memory_mib": max(each or 0.0 for each in memory),
        "ratio": others[0].ratio if others else None, "beside": ratio_text(others[0]) if others else "",
        "disturbances": [each.what for each in row.disturbances],
    }  # fmt: skip


HEADER = (
    f"{'component':12} {'batch':>5} {'size':10} {'engine':36} {'median ms':>10} {'min':>8} {'p90':>8} "
    f"{'error':>9} {'max/std':>9} {'memory MiB':>10}  sdort's time over it"
)


def line(row: dict[str, Any]) -> str:
    """A row of the table; one without times says why."""
    what = f"{row['component']:12} {row['batch']:5} {row['size']:10} {row['engine']:36}"
    if not row["ok"]:
        return f"{what} {' '.join(row['error'].split())}"
    return (
        f"{what} {row['median_ms']:10.3f} {row['min_ms']:8.3f} {row['p90_ms']:8.3f} "
        f"{row['error']:9.1e} {row['worst']:9.1e} {row['memory_mib']:10,.0f}  {row['beside']}".rstrip()
    )


if __name__ == "__main__":
    raise SystemExit(main())
