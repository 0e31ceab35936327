#!/usr/bin/env python3
"""Cost of adapters at run time on one machine: the step of a UNet, the switch, memory; ratios of interleaved runs.

    python scripts/bench_adapters.py FAST --provider cuda|rocm|migraphx|cpu [--graph] [--batch 2] [--size 64]
        [--rounds 30] [--rank 32] [--json FILE] [--custom-ops FILE]

FAST is a folder of sdort optimize; only its UNet is used. To make one with random weights of the true architecture,
let scripts/gpu_benchmark.py leave a checkpoint in its working folder, then:

    sdort export WORK/checkpoint-sd15 model && sdort optimize model FAST --provider cuda --fp16

Whether a step takes the weights that were written is checked too: what a session gives that was open when they were
written is, bit by bit, what one gives that is opened on them after that, and without the adapter what the graph as it
is gives.

Three sessions' steps are timed in turns, so that clocks and neighbours meet all of them: the graph as it is; the graph
whose weights can be replaced, without an adapter; the same with one, once for attention alone and once for every
matrix and convolution. An adapter's values are random; what is timed does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import sdort
from sdort.generation.adapted_weights import RunningAdapters, plan_adapters
from sdort.generation.bound_unet import Batch, BoundBuffers
from sdort.generation.step_conditions import StepConditions
from sdort.machine.gpus import free_memory
from sdort.onnx_io.overridable import replaceable_weights
from sdort.pipelines.adapters.adapter_choice import AdapterChoice
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.probe import choose_provider
from sdort.runtime.replaced_weights import ReplacedWeights
from sdort.runtime.session import Session, open_graph

WARMUP = 5


def main() -> None:
    sdort.set_verbosity(0)
    args = arguments()
    folder = open_folder(args.pipeline, needed=("unet",))
    options = RuntimeOptions(args.provider, graph=args.graph, custom_ops=args.custom_ops)
    with tempfile.TemporaryDirectory() as scratch:
        report = measure(folder, options, args, Path(scratch))
    for key, value in report.items():
        print(f"{key:42} {value}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline", type=Path)
    parser.add_argument("--provider", default="auto")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--batch", type=int, default=2, help="samples")
    parser.add_argument("--size", type=int, default=64, help="latents along a side")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--custom-ops", default="auto")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def measure(folder: PipelineFolder, options: RuntimeOptions, args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Everything, by what it is."""
    provider = choose_provider(options)[0]
    weights = replaceable_weights(folder.file("unet"))
    shapes = {name: shape for weight in weights.values() for name, shape in weight.parameters.items()}
    small = write_lora(
        {name: s for name, s in shapes.items() if "attn" in name}, scratch / "attention.safetensors", args
    )
    large = write_lora(shapes, scratch / "all.safetensors", args)

    def opened(adapters: bool, weights: ReplacedWeights | None = None) -> Session:
        file, own = folder.file("unet"), replace(options, adapters=adapters)
        return open_graph(file.copy(), file.path, "unet", provider, own, weights=weights)

    free = [free_memory(provider.vendor, options.device_id) or 0]
    plain, open_seconds = timed(lambda: opened(False))
    free.append(free_memory(provider.vendor, options.device_id) or 0)
    adaptable, open_again_seconds = timed(lambda: opened(True))
    free.append(free_memory(provider.vendor, options.device_id) or 0)
    running = RunningAdapters({"unet": adaptable})
    steps = {"plain": bound(plain, args), "adaptable": bound(adaptable, args)}
    report: dict[str, Any] = {
        "provider": provider.name,
        "graph": options.graph,
        "replaceable weights": len(weights),
        "their MB": round(sum(weight.stored.nbytes for weight in weights.values()) / 1e6, 1),
        "open plain, s": round(open_seconds, 2),
        "open adaptable, s": round(open_again_seconds, 2),
    }
    if provider.on_gpu:
        report["GPU memory of the plain session, MB"] = round((free[0] - free[1]) / 1e6)
        report["GPU memory of the adaptable session, MB"] = round((free[1] - free[2]) / 1e6)
    report |= ratios(interleaved(steps, args.rounds))
    for name, path in {"attention": small, "all": large}.items():
        plan, off = plan_adapters(folder, [AdapterChoice(path, 0.8)]), plan_adapters(folder, [])
        first = timed(lambda plan=plan: running.use(plan))[1]
        report |= ratios(
            interleaved({"plain": steps["plain"], f"with an adapter ({name})": steps["adaptable"]}, args.rounds)
        )
        drawn, other = output(steps["adaptable"]), output(bound(opened(True, adaptable.weights), args))
        running.use(off)
        again = timed(lambda plan=plan: running.use(plan))[1]
        running.use(off)
        own = output(steps["plain"])
        report |= {
            f"first switch ({name}), s": round(first, 3),
            f"later switch ({name}), s": round(again, 3),
            f"largest change of the output ({name})": float(np.abs(drawn - own).max()),
            f"against a session opened on it ({name})": float(np.abs(drawn - other).max()),
            f"against the plain one after it ({name})": float(np.abs(output(steps["adaptable"]) - own).max()),
        }
    return report


def write_lora(shapes: dict[str, tuple[int, ...]], path: Path, args: argparse.Namespace) -> Path:
    """A LoRA of small random values for parameters of these shapes, in fp16 as model sites have them."""
    random, tensors = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        key = f"lora_unet_{name.removesuffix('.weight').replace('.', '_')}"
        down, up = (args.rank, *shape[1:]), (shape[0], args.rank, *[1] * (len(shape) - 2))
        tensors[f"{key}.lora_down.weight"] = (random.standard_normal(down, np.float32) * 1e-2).astype(np.float16)
        tensors[f"{key}.lora_up.weight"] = (random.standard_normal(up, np.float32) * 1e-2).astype(np.float16)
    save_file(tensors, path)
    return path


def timed(work: Any) -> tuple[Any, float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def bound(session: Session, args: argparse.Namespace) -> BoundBuffers:
    """The UNet bound as in a run, with random inputs; warm."""
    inputs = {name: spec for name, spec in session.inputs.items() if name not in ("sample", "timestep")}
    shapes = {
        name: tuple(size if isinstance(size, int) else 77 for size in spec.shape[1:]) for name, spec in inputs.items()
    }
    channels = session.inputs["sample"].shape[1]
    latent = (channels if isinstance(channels, int) else 4, args.size, args.size)
    buffers = BoundBuffers(session, Batch(1, args.batch, latent), shapes, 1)
    random = np.random.default_rng(0)
    buffers.sample.write(random.standard_normal(buffers.sample.shape))
    conditions = {name: random.standard_normal(buffer.shape) for name, buffer in buffers.conditioning.items()}
    buffers.row.words.write(buffers.step_rows(np.full(1, 500), StepConditions.fixed([conditions], 1))[0])
    buffers.write_conditioning(conditions)
    for _ in range(WARMUP):
        step(buffers)
    return buffers


def step(buffers: BoundBuffers) -> None:
    """One run, to its end: reading a value of the output waits for it."""
    buffers.run()
    buffers.output.read()


def output(buffers: BoundBuffers) -> Any:
    """What a run gives, in float32."""
    buffers.run()
    return buffers.output.read().astype(np.float32)


def interleaved(steps: dict[str, BoundBuffers], rounds: int) -> dict[str, list[float]]:
    """Seconds of each step, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, buffers in steps.items():
            seconds[name].append(timed(lambda buffers=buffers: step(buffers))[1])
    return seconds


def ratios(seconds: dict[str, list[float]]) -> dict[str, str]:
    """Medians in milliseconds, and the median of the ratios of neighbours in time to the plain graph."""
    result = {}
    for name, of_name in seconds.items():
        ratio = statistics.median(mine / plain for mine, plain in zip(of_name, seconds["plain"], strict=True))
        result[f"step, {name}"] = f"{statistics.median(of_name) * 1e3:.2f} ms, {ratio:.4f} of plain"
    return result


if __name__ == "__main__":
    main()
