#!/usr/bin/env python3
"""Adapters at run time on one machine: whether they are right, and the cost of a step, a switch, memory.

    python scripts/bench_adapters.py SOURCE --work DIR --provider cuda|rocm|migraphx|cpu [--fp16] [--graph] [--batch 2]
        [--size 64] [--rounds 30] [--rank 32] [--kind attention|all] [--json FILE] [--custom-ops FILE]

SOURCE is what `sdort export` takes: the demo, a checkpoint, a diffusers folder, such as scripts/gpu_benchmark.py leaves
in its working folder as checkpoint-sd15 or checkpoint-sdxl. It is exported and optimized three times, into DIR: as it
is, and with a LoRA of random values in its weights, once for the UNet's attention and once for every matrix and
convolution of it (--kind names one of them).

Each LoRA is then switched on and off in a session that stays open. Switched on, the UNet gives what one gives that is
opened on the weights that were written, bit by bit, and, but for the rounding of weights, what the export with the LoRA
gives. Switched off, it gives what it gave before, bit by bit, and what a session without adapters gives. So do the
images of a whole pipeline. The exit code is 1 if any of it is wrong.

Steps are timed in turns, so that clocks and neighbours meet all of them: the graph as it is; the graph whose weights
can be replaced, without an adapter; the same with each LoRA.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Arguments, in_turns, timed
from safetensors.numpy import save_file

import sdort
from sdort.adapters.adapter_choice import AdapterChoice
from sdort.generation.denoising.adapted_weights import RunningAdapters, plan_adapters
from sdort.machine.gpus import free_memory
from sdort.onnx_io.overridable import replaceable_weights
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.probe import choose_provider
from sdort.runtime.replaced_weights import ReplacedWeights
from sdort.runtime.session import Session, open_graph
from sdort.runtime.step.bound_unet import Batch, BoundBuffers
from sdort.runtime.step.step_conditions import StepConditions

WARMUP = 5
SCALE = 0.8
STRENGTH = 1.0
"""Of a LoRA's difference, beside a matrix of standard deviation 1 / sqrt(inputs)."""
ROUNDED = {False: 1e-4, True: 4e-3}
"""By --fp16, the largest difference, norm over norm, of what differs in rounding alone: orders of sums and weights that
were rounded once or twice (2^-11 each)."""
LEAST_CHANGE = 10
"""Times that: what a LoRA has to change, so that a wrong one is seen."""
KINDS = ("attention", "all")
PROMPT: dict[str, Any] = {"steps": 2, "seed": 7, "guidance_scale": 4.0}


def main() -> int:
    sdort.set_verbosity(0)
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    made = make(args)
    unet = Unet(made.plain, args)
    report = {**unet.opening(), **ratios(in_turns(runs_of(unet.steps), args.rounds))}
    checks: dict[str, Check] = {}
    for kind in args.kinds:
        report |= unet.switched(kind, made, checks)
    del unet  # a pipeline's sessions need its memory
    if made.whole:
        checks |= images(made, args)
    for key, value in report.items():
        print(f"{key:44} {value}")
    for name, check in checks.items():
        print(f"{name:44} {check}")
    if args.json:
        of_checks = {name: {"difference": check.difference, "ok": check.ok} for name, check in checks.items()}
        args.json.write_text(json.dumps({**report, "checks": of_checks}, indent=2))
    return 0 if all(check.ok for check in checks.values()) else 1


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "--work --provider --fp16 --graph --custom-ops --json")
    parser.add_argument("source")
    parser.add_argument("--batch", type=int, default=2, help="samples")
    parser.add_argument("--size", type=int, default=64, help="latents along a side")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this LoRA")
    args = parser.parse_args()
    args.kinds = args.kind or list(KINDS)
    args.options = RuntimeOptions(args.provider, graph=args.graph, custom_ops=args.custom_ops)
    args.chosen = choose_provider(args.options)[0]
    return args


@dataclass(frozen=True)
class Check:
    """A difference, norm over norm, and the range in which it has to be."""

    difference: float
    most: float = 0.0
    least: float = 0.0

    @property
    def ok(self) -> bool:
        return self.least <= self.difference <= self.most

    def __str__(self) -> str:
        found = "equal" if self.difference == 0 else f"{self.difference:.1e}"
        limit = f"at least {self.least:.0e}" if self.least else f"at most {self.most:.0e}" if self.most else "equal"
        return f"{found}, {'ok' if self.ok else 'WRONG'}: {limit}"


def differing(values: Any, other: Any, most: float = 0.0, least: float = 0.0) -> Check:
    """How far ``values`` are from ``other``."""
    one, two = (np.asarray(each, np.float64) for each in (values, other))
    # A quotient that is no number is in no range.
    return Check(float(np.linalg.norm(one - two) / np.linalg.norm(two)), most, least)


@dataclass(frozen=True)
class Made:
    """Optimized pipelines: as the source is, and by kind with a LoRA in the weights; and these LoRAs."""

    plain: PipelineFolder
    baked: dict[str, PipelineFolder]
    loras: dict[str, Path]

    @property
    def whole(self) -> bool:
        return "vae_decoder" in self.plain.models


def make(args: argparse.Namespace) -> Made:
    """Export and optimize, once."""
    plain = optimized(args, "plain")
    shapes = {
        name: shape
        for weight in replaceable_weights(plain.file("unet")).values()
        for name, shape in weight.parameters.items()
    }
    of_kind = {"attention": {name: shape for name, shape in shapes.items() if "attn" in name}, "all": shapes}
    loras = {kind: write_lora(of_kind[kind], args.work / f"{kind}.safetensors", args) for kind in args.kinds}
    baked = {kind: optimized(args, f"with-{kind}", lora=[f"{path}:{SCALE}"]) for kind, path in loras.items()}
    return Made(plain, baked, loras)


def optimized(args: argparse.Namespace, name: str, **more: Any) -> PipelineFolder:
    exported, out = args.work / f"{name}.exported", args.work / f"{name}-{args.chosen.name}{'-fp16' * args.fp16}"
    if not out.exists():
        sdort.export(args.source, exported, overwrite=True, **more)
        sdort.optimize(exported, out, provider=args.chosen.name, fp16=args.fp16)
        shutil.rmtree(exported)
    return open_folder(out, needed=("unet",))


def write_lora(shapes: dict[str, tuple[int, ...]], path: Path, args: argparse.Namespace) -> Path:
    """A LoRA of random values for parameters of these shapes, in fp16 as model sites have them."""
    random, tensors = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        key = f"lora_unet_{name.removesuffix('.weight').replace('.', '_')}"
        down, up = (args.rank, *shape[1:]), (shape[0], args.rank, *[1] * (len(shape) - 2))
        strength = STRENGTH / math.sqrt(args.rank * math.prod(shape[1:]))
        tensors[f"{key}.lora_down.weight"] = random.standard_normal(down, np.float32).astype(np.float16)
        tensors[f"{key}.lora_up.weight"] = (random.standard_normal(up, np.float32) * strength).astype(np.float16)
    save_file(tensors, path)
    return path


class Step:
    """A UNet bound as in a run, with random inputs; warm."""

    def __init__(self, session: Session, args: argparse.Namespace) -> None:
        inputs = {name: spec for name, spec in session.inputs.items() if name not in ("sample", "timestep")}
        shapes = {
            name: tuple(size if isinstance(size, int) else 77 for size in spec.shape[1:])
            for name, spec in inputs.items()
        }
        channels = session.inputs["sample"].shape[1]
        latent = (channels if isinstance(channels, int) else 4, args.size, args.size)
        self.buffers = BoundBuffers(session, Batch(1, args.batch, latent), shapes, 1)
        random = np.random.default_rng(0)
        self.buffers.sample.write(random.standard_normal(self.buffers.sample.shape))
        self.conditions = {name: random.standard_normal(b.shape) for name, b in self.buffers.conditioning.items()}
        self.prepare()
        for _ in range(WARMUP):
            self.run()

    def prepare(self) -> None:
        """Make what runs before the steps, as every image has it: of the weights of now."""
        rows = self.buffers.step_rows(np.full(1, 500), StepConditions.fixed([self.conditions], 1))
        self.buffers.row.words.write(rows[0])
        self.buffers.write_conditioning(self.conditions)

    def run(self) -> Any:
        """One run, to its end: reading the output waits for it."""
        self.buffers.run(0)
        return self.buffers.output.read()

    def output(self) -> Any:
        """What a run gives of the weights of now."""
        self.prepare()
        return self.run().astype(np.float64)


class Unet:
    """The UNet as it is and the one whose weights can be replaced."""

    def __init__(self, folder: PipelineFolder, args: argparse.Namespace) -> None:
        self.folder, self.args = folder, args
        vendor, device = args.chosen.vendor, args.options.device_id
        free = [free_memory(vendor, device) or 0]
        plain, opening = timed(lambda: self.opened(folder, False))
        free.append(free_memory(vendor, device) or 0)
        self.adaptable, opening_adaptable = timed(lambda: self.opened(folder, True))
        free.append(free_memory(vendor, device) or 0)
        self.seconds, self.bytes = (opening, opening_adaptable), (free[0] - free[1], free[1] - free[2])
        self.running = RunningAdapters({"unet": self.adaptable})
        self.steps = {"plain": Step(plain, args), "adaptable": Step(self.adaptable, args)}
        self.own, self.before = (step.output() for step in self.steps.values())

    def opened(self, folder: PipelineFolder, adapters: bool, weights: ReplacedWeights | None = None) -> Session:
        file, own = folder.file("unet"), replace(self.args.options, adapters=adapters)
        return open_graph(file.copy(), file.path, "unet", self.args.chosen, own, weights=weights)

    def opening(self) -> dict[str, Any]:
        """Seconds and memory of both."""
        weights = replaceable_weights(self.folder.file("unet")).values()
        report: dict[str, Any] = {
            "provider": self.args.chosen.name,
            "graph": self.args.graph,
            "replaceable weights": len(weights),
            "their MB": round(sum(weight.stored.nbytes for weight in weights) / 1e6, 1),
        }
        for name, seconds, taken in zip(("plain", "adaptable"), self.seconds, self.bytes, strict=True):
            report[f"open {name}, s"] = round(seconds, 2)
            if self.args.chosen.on_gpu:
                report[f"GPU memory of the {name} session, MB"] = round(taken / 1e6)
        return report

    def switched(self, kind: str, made: Made, checks: dict[str, Check]) -> dict[str, Any]:
        """Seconds of a switch and a step with a LoRA; ``checks`` get what is compared."""
        plan = plan_adapters(made.plain, [AdapterChoice(made.loras[kind], SCALE)])
        off, step, near = plan_adapters(made.plain, []), self.steps["adaptable"], ROUNDED[self.args.fp16]
        first = timed(lambda: self.running.use(plan))[1]
        adapted = step.output()
        pair = {"plain": self.steps["plain"], f"with an adapter ({kind})": step}
        report = {f"first switch ({kind}), s": round(first, 3), **ratios(in_turns(runs_of(pair), self.args.rounds))}
        fresh = Step(self.opened(made.plain, True, self.adaptable.weights), self.args).output()
        baked = Step(self.opened(made.baked[kind], False), self.args).output()
        checks[f"{kind}: change by the LoRA"] = differing(adapted, self.own, math.inf, LEAST_CHANGE * near)
        checks[f"{kind}: on, opened on the same weights"] = differing(adapted, fresh)
        checks[f"{kind}: on, exported with the LoRA"] = differing(adapted, baked, near)
        self.running.use(off)
        checks[f"{kind}: off, as before"] = differing(step.output(), self.before)
        checks[f"{kind}: off, without adapters"] = differing(step.output(), self.own, near)
        report[f"later switch ({kind}), s"] = round(timed(lambda: self.running.use(plan))[1], 3)
        self.running.use(off)
        return report


def images(made: Made, args: argparse.Namespace) -> dict[str, Check]:
    """The same of whole images, in bytes; a pipeline stays open while its LoRA is switched on and off."""
    words = {"provider": args.chosen.name, "graph": args.graph, "custom_ops": args.custom_ops}
    near = ROUNDED[args.fp16]

    def drawn(pipeline: sdort.Pipeline, *lora: str) -> Any:
        return pipeline.generate("a small red circle", lora=lora, **PROMPT).images[0].pixels

    pipeline = sdort.load(made.plain.path, adapters=True, **words)
    kind, path = next(iter(made.loras.items()))
    lora = f"{path}:{SCALE}"
    before, adapted, after = drawn(pipeline), drawn(pipeline, lora), drawn(pipeline)
    again = drawn(pipeline, lora)
    plain, baked = (drawn(sdort.load(folder.path, **words)) for folder in (made.plain, made.baked[kind]))
    return {
        "image: change by the LoRA": differing(adapted, plain, math.inf, LEAST_CHANGE * near),
        "image: on, exported with the LoRA": differing(adapted, baked, near),
        "image: off, as before": differing(after, before),
        "image: off, without adapters": differing(after, plain, near),
        "image: on again, as before": differing(again, adapted),
    }


def runs_of(steps: dict[str, Step]) -> dict[str, Callable[[], Any]]:
    return {name: step.run for name, step in steps.items()}


def ratios(seconds: dict[str, list[float]]) -> dict[str, str]:
    """Medians in milliseconds, and the median of the ratios of neighbours in time to the plain graph."""
    result = {}
    for name, of_name in seconds.items():
        ratio = statistics.median(mine / plain for mine, plain in zip(of_name, seconds["plain"], strict=True))
        result[f"step, {name}"] = f"{statistics.median(of_name) * 1e3:.2f} ms, {ratio:.4f} of plain"
    return result


if __name__ == "__main__":
    sys.exit(main())
