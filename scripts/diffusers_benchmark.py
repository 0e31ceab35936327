#!/usr/bin/env python3
"""Diffusers' pipeline end to end in one run: torch's parts, torch.compile's, and sdort's.

    python scripts/diffusers_benchmark.py --work DIR [--provider cuda|rocm] [--size 512] [--steps 20] [--repeat 5]
        [--rows torch,compile,sdort] [--checkpoint DIR] [--json FILE]

Every row draws the same prompt from the same noise in fp16 with guidance, from the text to the image on the host: the
median of the seconds of an image, its PSNR against torch in fp32, the seconds until the row was ready (what torch
compiles and the first two images), and the peak of memory above what was in use before: the GPU's, or the process's on
the CPU. torch.compile runs UNet and decoder in the mode reduce-overhead, sdort's graphs are replayed as graphs of the
device. Export and optimization are made once in DIR, before.

Without --checkpoint (a diffusers folder) it is Stable Diffusion 1.5's full architecture with seeded random weights. A
row that fails says why, and the exit code is 5.

--provider cpu --family tiny --size 64 --steps 2 tries all of it with the demo model, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from gpu_benchmark import environment, free, make_checkpoint, why
from measuring import Arguments, in_turns, refuse_unknown

import sdort
from sdort.demo import DEMO_FOLDER
from sdort.integrations.diffusers import load_pipeline
from sdort.providers import find_provider
from sdort.runtime.memory import MIB, Meter
from sdort.verification.metrics import psnr

PROMPT, GUIDANCE, SEED = "a small red circle on a white background", 7.5, 7
WARM_UP = 2
"""Images before those that are timed: the first compiles and records graphs, the second replays them."""
ROWS = ("torch", "compile", "sdort")


def main() -> int:
    args = arguments()
    sdort.set_verbosity(0)
    args.work.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # the reference is fp32 indeed
    checkpoint, where = checkpoint_of(args), environment(args.device)
    print(json.dumps(where), f"{args.size}x{args.size}, {args.steps} steps", sep="\n")
    reference = draw(torch_pipeline(checkpoint, torch.float32, args), args)
    torch.backends.cudnn.benchmark = True  # torch's rows have the fastest convolutions that cuDNN finds
    rows: list[dict[str, Any]] = []
    print(f"{'parts':10} {'s an image':>10} {'least':>8} {'dB':>7} {'ready in s':>10} {'memory, MiB':>12}", flush=True)
    for name in args.rows.split(","):
        free(args.device)
        try:
            rows.append({"row": name, **measure(name, checkpoint, reference, args)})
            print("{row:10} {median:10.3f} {least:8.3f} {db:7.1f} {ready:10.1f} {mib:12,.0f}".format(**rows[-1]))
        except Exception as error:  # one row's failure leaves the others their numbers
            rows.append({"row": name, "error": why(error)})
            print(f"{name:10} {' '.join(why(error).split())}")
        sys.stdout.flush()
        if args.json:
            args.json.write_text(json.dumps({"environment": where, "rows": rows}, indent=2))
    return 5 if any("error" in row for row in rows) else 0


def arguments() -> argparse.Namespace:
    parser = Arguments(
        __doc__, "--work --provider --checkpoint --steps --repeat --json", providers="cuda rocm cpu", repeat=5
    )
    parser.add_argument("--family", default="sd15", choices=["sd15", "tiny"])
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--size", type=int, default=512, help="side of the image in pixels")
    args = parser.parse_args()
    refuse_unknown(args.rows, ROWS, "--rows", parser)
    args.device = "cpu" if args.provider == "cpu" else "cuda"
    return args


def checkpoint_of(args: argparse.Namespace) -> Path:
    if args.checkpoint:
        return Path(args.checkpoint)
    return DEMO_FOLDER if args.family == "tiny" else make_checkpoint("sd15", args.work / "checkpoint-sd15")


def torch_pipeline(checkpoint: Path, dtype: torch.dtype, args: argparse.Namespace) -> Any:
    pipeline = DiffusionPipeline.from_pretrained(checkpoint, torch_dtype=dtype).to(args.device)
    for part in (pipeline.unet, pipeline.vae):
        part.to(memory_format=torch.channels_last)
    return pipeline


def compiled_pipeline(checkpoint: Path, args: argparse.Namespace) -> Any:
    pipeline = torch_pipeline(checkpoint, torch.float16, args)
    pipeline.unet = torch.compile(pipeline.unet, mode="reduce-overhead", dynamic=False)
    pipeline.vae.decode = torch.compile(pipeline.vae.decode, mode="reduce-overhead", dynamic=False)
    return pipeline


def optimized(checkpoint: Path, args: argparse.Namespace) -> Path:
    """The checkpoint as sdort's commands export and optimize it."""
    exported: Path = args.work / f"diffusers-{args.family}-onnx"
    fast: Path = args.work / f"diffusers-{args.family}-{args.provider}"
    if args.checkpoint or not fast.exists():
        sdort.export(checkpoint, exported, overwrite=True)
        sdort.optimize(exported, fast, provider=args.provider, fp16=True, overwrite=True)
    return fast


def measure(name: str, checkpoint: Path, reference: Any, args: argparse.Namespace) -> dict[str, Any]:
    fast = optimized(checkpoint, args) if name == "sdort" else checkpoint
    meter = Meter(find_provider(args.provider), 0)
    started = time.perf_counter()
    with meter.peak() as peak:
        if name == "sdort":
            pipeline = load_pipeline(fast, provider=args.provider, graph=args.device != "cpu")
        elif name == "compile":
            pipeline = compiled_pipeline(checkpoint, args)
        else:
            pipeline = torch_pipeline(checkpoint, torch.float16, args)
        for _ in range(WARM_UP):
            image = draw(pipeline, args)
    ready = time.perf_counter() - started
    times = in_turns({name: lambda: draw(pipeline, args)}, args.repeat)[name]
    memory = peak.host if args.device == "cpu" else peak.device
    return {
        "median": statistics.median(times), "least": min(times), "ready": ready,
        "db": psnr(image, reference), "mib": (memory or 0) / MIB,
    }  # fmt: skip


def draw(pipeline: Any, args: argparse.Namespace) -> Any:
    """One image of the prompt, uint8 [height, width, 3]; it is on the host, so that the device is waited for."""
    pipeline.set_progress_bar_config(disable=True)
    factor = pipeline.vae_scale_factor
    side = args.size // factor
    noise = torch.randn(1, 4, side, side, generator=torch.Generator().manual_seed(SEED))
    images = pipeline(
        PROMPT, num_inference_steps=args.steps, guidance_scale=GUIDANCE, height=args.size, width=args.size,
        latents=noise.to(args.device, pipeline.unet.dtype), output_type="np",
    ).images  # fmt: skip
    return (images[0] * 255).round().astype("uint8")


if __name__ == "__main__":
    raise SystemExit(main())
