#!/usr/bin/env python3
"""Score a diffusers directory on the demo's held-out prompts with torch, in fp32 and, on a GPU, in fp16.

scripts/demo_score.py MODEL [--device cuda] [--sheet SHEET.png]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from measuring import Arguments
from PIL import Image

from sdort.demo.prompt_language import held_out
from sdort.demo.scenes import IMAGE_SIDE
from sdort.demo.score import GUIDANCE, STEPS, Score, score

BATCH = 64


def generate_images(model: Path, prompts: list[str], device: str, dtype: Any, seed: int = 0) -> Any:
    """Pictures [prompts, height, width, 3], uint8; the seed of a prompt is ``seed`` plus its place in the list."""
    pipeline = diffusers.DiffusionPipeline.from_pretrained(model, torch_dtype=dtype).to(device)
    pipeline.set_progress_bar_config(disable=True)
    pictures = []
    for first in range(0, len(prompts), BATCH):
        some = prompts[first : first + BATCH]
        generators = [torch.Generator().manual_seed(seed + first + index) for index in range(len(some))]
        generated = pipeline(
            some,
            IMAGE_SIDE,
            IMAGE_SIDE,
            guidance_scale=GUIDANCE,
            num_inference_steps=STEPS,
            generator=generators,
            output_type="np",
        ).images
        pictures.append(np.round(generated * 255).astype(np.uint8))
    return np.concatenate(pictures)


def sheet(pictures: Any, columns: int) -> Image.Image:
    """Pictures side by side, with a gap of 4 pixels."""
    padded = np.pad(pictures, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=160)
    rows = [np.concatenate(padded[first : first + columns], axis=1) for first in range(0, len(padded), columns)]
    return Image.fromarray(np.concatenate([row for row in rows if row.shape == rows[0].shape]))


def report(model: Path, device: str, path: Path | None = None, seeds: int = 1) -> dict[str, Score]:
    """Print the scores; the first pictures go into a PNG."""
    prompts, scores = held_out(), {}
    for dtype in (torch.float32, torch.float16) if device.startswith("cuda") else (torch.float32,):
        pictures = [generate_images(model, prompts, device, dtype, 1000 * seed) for seed in range(seeds)]
        if path and dtype is torch.float32:
            sheet(pictures[0], 12).save(path, optimize=True)
        name = str(dtype).removeprefix("torch.")
        judged = [(prompt, image) for batch in pictures for prompt, image in zip(prompts, batch, strict=True)]
        scores[name] = score(judged)
        print(name, *(f"{kind} {right}/{of}" for kind, (right, of) in vars(scores[name]).items()), sep="  ")
    return scores


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("--seeds", type=int, default=1, help="pictures of each prompt")
    arguments = parser.parse_args()
    report(arguments.model, arguments.device, arguments.sheet, arguments.seeds)


if __name__ == "__main__":
    main()
