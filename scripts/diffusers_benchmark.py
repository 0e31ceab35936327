#!/usr/bin/env python3
"""Diffusers' pipeline end to end in one run: torch's parts, torch.compile's, and sdort's.

    python scripts/diffusers_benchmark.py --work DIR [--provider cuda|rocm] [--size 512] [--steps 20] [--repeat 5]
        [--rows torch,compile,sdort] [--checkpoint DIR] [--json FILE]

`sdort bench` measures: every row draws the same prompt from the same noise with guidance, from the text to the image on
the host, in turns: the median of the seconds of an image, its PSNR against torch in fp32, the seconds until the first
image (loading, and what torch compiles), and the peak of memory above what was in use before: the GPU's, or the
process's on the CPU. torch.compile runs UNet and decoder as `sdort bench --engine torch-compile` does, sdort's graphs
are replayed as graphs of the device. Export and optimization are made once in DIR, before. On a GPU all rows are fp16.

Without --checkpoint (a diffusers folder) it is Stable Diffusion 1.5's full architecture with seeded random weights. A
row that fails says why, and the exit code is 5.

--provider cpu --family tiny --size 64 --steps 2 tries all of it with the demo model, without a GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Set
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_benchmark import make_checkpoint
from measuring import Arguments, refuse_unknown

import sdort
from sdort.benchmark.bench_options import BenchOptions
from sdort.benchmark.measure import measure_engines
from sdort.benchmark.row_table import as_text
from sdort.console import to_json
from sdort.demo import DEMO_FOLDER
from sdort.engines.engine import Engine
from sdort.engines.fast_torch import FastTorchEngine
from sdort.engines.torch import TorchEngine
from sdort.integrations.diffusers import load_pipeline
from sdort.providers import find_provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.references import compute_reference
from sdort.workload.cases import WHOLE_PIPELINE, Case

PROMPT, SEED = "a small red circle on a white background", 7
WARM_UP = 1
"""Images after the first, which compiles, and before those that are timed: it records graphs."""
ROWS = ("torch", "compile", "sdort")


class SdortInDiffusers(TorchEngine):
    """Diffusers' pipeline with sdort's components."""

    name = "sdort"

    def __init__(self, checkpoint: Path, *given: Any, fast: Path) -> None:
        super().__init__(checkpoint, *given)
        self.fast = fast

    def _load(self, needed: Set[str]) -> Any:
        pipeline = load_pipeline(self.fast, provider=self.provider.name, graph=self.provider.on_gpu)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline


def main() -> int:
    args = arguments()
    sdort.set_verbosity(0)
    args.work.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # the reference is fp32 indeed
    checkpoint, provider = checkpoint_of(args), find_provider(args.provider)
    case = Case(WHOLE_PIPELINE, 1, args.size, args.size, SEED, PROMPT)
    options = BenchOptions(RuntimeOptions(args.provider), steps=args.steps, warmup=WARM_UP, repeat=args.repeat)
    reference = compute_reference(checkpoint, [case], provider, options.runtime, args.steps, None)
    dtype = "float16" if provider.on_gpu else "float32"
    makes: dict[str, Callable[..., Engine]] = {
        "torch": partial(FastTorchEngine, compiled=False),
        "compile": partial(FastTorchEngine, compiled=True),
        "sdort": lambda *_: SdortInDiffusers(checkpoint, provider, "float16", fast=optimized(checkpoint, args)),
    }
    engines = [makes[name](checkpoint, provider, dtype) for name in args.rows.split(",")]
    measured = measure_engines(engines, [WHOLE_PIPELINE], [case], reference, options)
    print(as_text(measured.rows, "markdown"))
    if args.json:
        args.json.write_text(json.dumps(to_json(measured), indent=2))
    return 5 if any(row.failed for row in measured.rows) else 0


def arguments() -> argparse.Namespace:
    parser = Arguments(
        __doc__, "--work --provider --checkpoint --steps --repeat --json", providers="cuda rocm cpu", repeat=5
    )
    parser.add_argument("--family", default="sd15", choices=["sd15", "tiny"])
    parser.add_argument("--rows", default=",".join(ROWS), help="several by commas")
    parser.add_argument("--size", type=int, default=512, help="side of the image in pixels")
    args = parser.parse_args()
    refuse_unknown(args.rows, ROWS, "--rows", parser)
    return args


def checkpoint_of(args: argparse.Namespace) -> Path:
    if args.checkpoint:
        return Path(args.checkpoint)
    return DEMO_FOLDER if args.family == "tiny" else make_checkpoint("sd15", args.work / "checkpoint-sd15")


def optimized(checkpoint: Path, args: argparse.Namespace) -> Path:
    """The checkpoint as sdort's commands export and optimize it."""
    exported: Path = args.work / f"diffusers-{args.family}-onnx"
    fast: Path = args.work / f"diffusers-{args.family}-{args.provider}"
    if args.checkpoint or not fast.exists():
        sdort.export(checkpoint, exported, overwrite=True)
        sdort.optimize(exported, fast, provider=args.provider, fp16=True, overwrite=True)
    return fast


if __name__ == "__main__":
    raise SystemExit(main())
