#!/usr/bin/env python3
"""The runtime on one GPU, for real: the denoising loop, graphs, placement, decoding in parts, running out of memory.

    python scripts/gpu_runtime.py --work DIR [--provider cuda|rocm|cpu] [--steps 20] [--size 512x512] [--decode 1024]
        [--family sd15|tiny] [--json FILE]

Stable Diffusion 1.5's full architecture with seeded random weights, fp16. Each part prints its lines and goes on if
another fails; the exit code is then 1, and so it is where two ways to denoise differ by more than fp16's rounding, or
images that are decoded one by one from those that are decoded at once (tiles have their own means: how far they are off
is printed). Times are medians over the steps after the first two; both sides of a comparison are in one process.

--provider cpu --family tiny --size 64x64 --decode 64 tries all that a CPU has of it; its times say nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gpu_benchmark import make_checkpoint, optimized
from measuring import Arguments, timed

import sdort
from sdort.errors import SdortError
from sdort.families.vae_levels import vae_factor
from sdort.generation.denoising.device_loop import Loop
from sdort.generation.denoising.host_loop import denoise
from sdort.generation.latents.decode import Decoder, Plan, size_of
from sdort.generation.latents.start_latents import BatchStart
from sdort.generation.schedules.diffusers_sampler import DiffusersSampler
from sdort.generation.schedules.image_noise import ImageSeed, NoiseSource
from sdort.generation.schedules.recurrence import find_recurrence
from sdort.generation.schedules.schedule_part import WHOLE, PartSteps
from sdort.inspection.profile import placement_table, remarks
from sdort.machine.gpus import free_memory
from sdort.options.number_ranges import parse_size
from sdort.providers import find_provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session, open_session
from sdort.runtime.step.bound_unet import Batch
from sdort.runtime.step.step_conditions import StepConditions

Array = np.ndarray[Any, Any]
WAYS_DIFFER = 2e-2
"""Of latents after all steps, norm over norm: what gpu_benchmark.py allows a step in fp16."""
IMAGES_DIFFER = 0.5
"""Of 255, on average: of one batch size and another."""


def main() -> int:
    sdort.set_verbosity(0)
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    checkpoint = make_checkpoint(args.family, args.work / f"checkpoint-{args.family}")
    results: dict[str, Any] = {}
    failed = 0
    for part in (steps, placement, decoding) if args.device == "cpu" else (steps, copies, placement, decoding, memory):
        print(f"== {part.__name__}", flush=True)
        try:
            results[part.__name__] = part(checkpoint, args)
        except Exception:  # one part's failure leaves the others their results
            traceback.print_exc()
            failed += 1
    if args.json:
        args.json.write_text(json.dumps(results, indent=2, default=str))
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    parser = Arguments(
        __doc__, "--work --provider --family --steps --size --custom-ops --json", providers="cuda rocm cpu"
    )
    parser.add_argument("--decode", type=int, default=1024, help="pixels of a side of the images that are decoded")
    args = parser.parse_args()
    args.device = "cpu" if args.provider == "cpu" else "cuda"
    args.batch = 2  # what gpu_benchmark's static export is made for: one image with guidance
    return args


def options(args: argparse.Namespace, **more: Any) -> RuntimeOptions:
    return RuntimeOptions(args.provider, custom_ops=args.custom_ops, **more)


def unet(checkpoint: Path, args: argparse.Namespace, *, static: bool, **more: Any) -> Session:
    path = optimized("unet", checkpoint, args, static=static)
    return open_session(path, "unet", find_provider(args.provider), options(args, **more))


def scheduler(args: argparse.Namespace) -> Any:
    import diffusers

    made = diffusers.EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    made.set_timesteps(args.steps)
    return DiffusersSampler(made)


class Generation:
    """The inputs of one image, and how to denoise it through a session."""

    def __init__(self, checkpoint: Path, args: argparse.Namespace) -> None:
        words = json.loads((checkpoint / "unet" / "config.json").read_text())["cross_attention_dim"]
        rng = np.random.default_rng(0)
        height, width = (side // 8 for side in parse_size(args.size))
        self.args = args
        self.batch = Batch(2, 1, (4, height, width))
        texts = [rng.normal(size=(1, 77, words)).astype(np.float32) for _ in range(2)]
        self.conditions = StepConditions.fixed([{"encoder_hidden_states": text} for text in texts], args.steps)
        self.noise = rng.normal(size=(1, 1, 4, height, width)).astype(np.float32)

    def through_device(self, session: Session, loop: Loop | None = None) -> tuple[Array, list[float]]:
        recurrence = find_recurrence(lambda: scheduler(self.args))
        assert recurrence is not None
        loop = loop or Loop(session)
        return loop.denoise(recurrence, self.batch, self.conditions, self.noise, [-6.5, 7.5], lambda _: None)

    def through_host(self, session: Session) -> tuple[Array, list[float]]:
        steps, noise = PartSteps(scheduler(self.args), WHOLE), self.noise[0]
        draw = NoiseSource([ImageSeed(0)]).draw
        unet = Loop(session).buffers(self.batch, self.conditions, steered=False)
        return denoise(unet, steps, self.conditions, BatchStart(noise), draw, [-6.5, 7.5], lambda _: None)


def steps(checkpoint: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds a step, and the result against the scheduler's own on the host."""
    generation = Generation(checkpoint, args)
    ways: list[tuple[str, bool, dict[str, Any], Callable[[Session], tuple[Array, list[float]]]]] = [
        ("scheduler on the host", False, {}, generation.through_host),
        ("on the device", False, {}, generation.through_device),
        ("on the device, graph", False, {"graph": True}, generation.through_device),
        ("static, on the device", True, {}, generation.through_device),
        ("static, on the device, graph", True, {"graph": True}, generation.through_device),
    ]
    results: dict[str, Any] = {}
    expected: Array | None = None
    for name, static, more, run in ways:
        try:
            session = unet(checkpoint, args, static=static, **more)
            latents, seconds = run(session)
        except SdortError as error:
            print(f"{name:32} {error}")
            results[name] = str(error)
            continue
        expected = latents if expected is None else expected
        milliseconds = statistics.median(seconds[2:]) * 1e3
        error_ = float(np.linalg.norm(latents - expected) / np.linalg.norm(expected))
        print(f"{name:32} {milliseconds:8.3f} ms a step, off by {error_:.1e} from the first", flush=True)
        results[name] = {"ms": milliseconds, "difference": error_}
        del session
        if not error_ < WAYS_DIFFER:
            raise RuntimeError(f"{name} gives other latents than the first")
    return results


def copies(checkpoint: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Copies that torch's profiler counts while all steps but the first two run."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    results: dict[str, Any] = {}
    for graph in (False, True):
        generation = Generation(checkpoint, args)
        session = unet(checkpoint, args, static=True, graph=graph)
        loop = Loop(session)
        generation.through_device(session, loop)
        recurrence = find_recurrence(lambda: scheduler(args))
        assert recurrence is not None
        marks: list[Any] = []
        recorder = profile(activities=[ProfilerActivity.CUDA])

        def on_step(_: float, marks: list[Any] = marks, recorder: Any = recorder) -> None:
            marks.append(None)
            if len(marks) == 2:
                torch.cuda.synchronize()
                recorder.start()
            if len(marks) == args.steps:
                torch.cuda.synchronize()
                recorder.stop()

        loop.denoise(recurrence, generation.batch, generation.conditions, generation.noise, [-6.5, 7.5], on_step)
        names = Counter(event.name for event in recorder.events())
        copied = {name: count for name, count in names.items() if "memcpy" in name.lower() or "copy" in name.lower()}
        label = "graph" if graph else "plain"
        print(f"{label}: in {args.steps - 2} steps {sum(names.values())} activities, copies: {copied}", flush=True)
        results[label] = {"activities": sum(names.values()), "copies": copied}
    return results


def placement(checkpoint: Path, args: argparse.Namespace) -> list[Any]:
    """Per execution provider and operator."""
    from sdort.console import show
    from sdort.inspection.profile import measure_cases
    from sdort.workload.cases import Case

    height, width = parse_size(args.size)
    provider = find_provider(args.provider)
    models = {c: optimized(c, checkpoint, args, static=False) for c in ("unet", "vae_decoder")}
    todo = [Case("unet", 2, height, width), Case("vae_decoder", 1, height, width)]
    results = measure_cases(models, todo, provider, options(args), 8)
    show(placement_table(results))
    for line in remarks(results, provider):
        print(line)
    return results


def decoder(checkpoint: Path, args: argparse.Namespace, **more: Any) -> Decoder:
    path = optimized("vae_decoder", checkpoint, args, static=False)
    config = json.loads((checkpoint / "vae" / "config.json").read_text())
    session = open_session(path, "vae_decoder", find_provider(args.provider), options(args, **more))
    return Decoder(session, config, vae_factor(config))


def decoding(checkpoint: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Two images: time, growth of memory and difference for each way."""
    results: dict[str, Any] = {}
    side = args.decode // vae_factor(json.loads((checkpoint / "vae" / "config.json").read_text()))
    latents = np.random.default_rng(0).normal(size=(2, 4, side, side)).astype(np.float32)
    whole: Array | None = None
    for plan in (Plan(), Plan(slicing=True), Plan(slicing=True, tile=side // 2)):
        provider = find_provider(args.provider)
        tight = {"arena_extend_strategy": "kSameAsRequested"} if provider.on_gpu else {}
        made = decoder(checkpoint, args, provider_options=tight)
        before = free_memory(provider.vendor, 0) or 0
        decoded = [timed(partial(_stacked, made, latents, plan)) for _ in range(4)]
        images, times = decoded[-1][0], [seconds for _, seconds in decoded]
        grown = before - (free_memory(provider.vendor, 0) or 0)
        pixels = np.clip(images / 2 + 0.5, 0, 1) * 255
        whole = pixels if whole is None else whole
        row = {
            "seconds": statistics.median(times[1:]),
            "grown_mib": grown / 2**20,
            "estimated_mib": made.bytes_for(size_of(latents), plan) / 2**20,
            "mean_difference": float(np.abs(pixels - whole).mean()),
        }
        print(f"{plan!s:48} {row}", flush=True)
        results[str(plan)] = row
        if not row["mean_difference"] < (np.inf if plan.tile else IMAGES_DIFFER):
            raise RuntimeError(f"{plan} gives other images than the whole decoder")
    return results


def _stacked(made: Decoder, latents: Array, plan: Plan) -> Array:
    return np.stack(list(made.decode(latents, plan)))


def memory(checkpoint: Path, args: argparse.Namespace) -> dict[str, Any]:
    """A decoder that may have two GiB, and eight images of 1024 x 1024."""
    made = decoder(checkpoint, args, provider_options={"gpu_mem_limit": str(2 << 30)})
    latents = np.random.default_rng(0).normal(size=(8, 4, 128, 128)).astype(np.float32)
    images = list(made.decode(latents, Plan()))  # says on stderr in which parts it goes on
    finite = all(np.isfinite(image).all() for image in images)
    print(f"{len(images)} images, all finite: {finite}")
    if not finite:
        raise RuntimeError("images that were decoded in parts have values that are no numbers")
    try:
        tiny = decoder(checkpoint, args, provider_options={"gpu_mem_limit": str(200 << 20)})
        list(tiny.decode(latents[:1], Plan()))
        message = "it fits in 200 MiB"
    except SdortError as error:
        message = f"{type(error).__name__}, exit code {error.exit_code}: {error}"
    print(message)
    return {"images": len(images), "finite": finite, "200 MiB": message}


if __name__ == "__main__":
    sys.exit(main())
