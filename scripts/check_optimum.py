#!/usr/bin/env python3
"""Folders that ``sdort export`` and ``sdort optimize`` wrote, loaded and run by optimum's own pipelines.

    python scripts/check_optimum.py ORIGINAL FOLDER... [--size 64] [--steps 4] [--limit 90] [--prompt TEXT]

ORIGINAL is the diffusers folder of Stable Diffusion 1.x, 2.x or XL that each FOLDER was made from, for the CPU. Every
image is generated from the same noise as diffusers' own pipeline in torch, with guidance and a negative prompt and
without either. The exit code is 1 if one is less than 90 dB from it, or a folder does not load. In fp32 the tiny models
are 114 dB and more; in fp16 70, so give --limit 50.

optimum needs older releases than sdort does, so this runs in an environment of its own, without sdort:

    pip install optimum-onnx==0.1.0 onnxruntime transformers==4.57.6 diffusers==0.35.2 accelerate
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

CASES: dict[str, dict[str, Any]] = {
    "guided": {"guidance_scale": 7.5, "negative_prompt": "blurry"},
    "not guided": {"guidance_scale": 1.0},
}


def generator_of(pipeline: Any, args: argparse.Namespace) -> Callable[[dict[str, Any]], Any]:
    """A function from a case of CASES to the images, [2, height, width, 3] between 0 and 1."""
    import torch

    pipeline.set_progress_bar_config(disable=True)

    def generate(case: dict[str, Any]) -> Any:
        noise = torch.Generator().manual_seed(7)
        settings = {"height": args.size, "width": args.size, "num_inference_steps": args.steps, "output_type": "np"}
        return pipeline(args.prompt, num_images_per_prompt=2, generator=noise, **settings, **case).images

    return generate


def psnr(images: Any, reference: Any) -> float:
    if images.shape != reference.shape or not np.isfinite(images).all():
        return -math.inf
    error = float(np.mean((images.astype(np.float64) - reference) ** 2))
    return math.inf if error == 0 else -10 * math.log10(error)


def scores(folder: Path, references: dict[str, Any], args: argparse.Namespace) -> dict[str, float]:
    """PSNR by case. What optimum cannot load or run raises optimum's own error."""
    from optimum.onnxruntime import ORTDiffusionPipeline

    pipeline = ORTDiffusionPipeline.from_pretrained(folder, provider="CPUExecutionProvider")
    generate = generator_of(pipeline, args)
    return {name: psnr(generate(case), references[name]) for name, case in CASES.items()}


def checked(folder: Path, references: dict[str, Any], args: argparse.Namespace) -> bool:
    try:
        by_case = scores(folder, references, args)
    except Exception as error:  # each folder is judged, whatever another one raises
        print(f"{folder}: {type(error).__name__}: {error}")
        return False
    for name, value in by_case.items():
        print(f"{folder}  {name:<12}{value:7.1f} dB  {'ok' if value >= args.limit else 'WRONG'}")
    return bool(min(by_case.values()) >= args.limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--size", type=int, default=64, help="pixels, height and width")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--limit", type=float, default=90.0, help="dB; a scaling factor that is 4 %% off is 55")
    parser.add_argument("--prompt", default="a small red star left of a white ring")
    args = parser.parse_args()
    packages = ("optimum-onnx", "optimum", "diffusers", "transformers", "onnxruntime", "torch")
    print(", ".join(f"{package} {version(package)}" for package in packages))
    from diffusers import DiffusionPipeline

    generate = generator_of(DiffusionPipeline.from_pretrained(args.original), args)
    references = {name: generate(case) for name, case in CASES.items()}
    judged = [checked(folder, references, args) for folder in args.folder]
    return 0 if all(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
