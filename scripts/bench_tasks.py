#!/usr/bin/env python3
"""Cost of images from images on one machine, against plain text to image: ratios of interleaved runs.

    python scripts/bench_tasks.py FAST --provider cuda|rocm|migraphx|cpu [--graph] [--size 512x512] [--steps 20]
        [--rounds 5] [--json FILE] [--custom-ops FILE]

FAST is a folder of sdort optimize. Each round generates one image of every task; the models are loaded once. Printed
are medians: milliseconds of a call of the UNet, and seconds of the stages around it. The images' values do not matter
for time, so the init image is noise and the mask a square.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from typing import Any

import numpy as np
from measuring import Arguments

import sdort
from sdort.options.number_ranges import parse_size

WARMUP = 2
HIRES = 1.5


def main() -> None:
    sdort.set_verbosity(0)
    args = arguments()
    pipeline = sdort.load(args.pipeline, provider=args.provider, graph=args.graph, custom_ops=args.custom_ops)
    rows = measure(pipeline, args)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))
    print(f"{'task':10}" + "".join(f"{name:>17}" for name in rows[0] if name != "task"))
    for row in rows:
        print(f"{row.pop('task'):10}" + "".join(f"{value:17.4g}" for value in row.values()))


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "pipeline --provider --graph --custom-ops --size --steps --json")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def tasks(height: int, width: int) -> dict[str, dict[str, Any]]:
    """Options of each task; the first is what the others are compared with."""
    image = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
    mask = np.zeros((height, width), np.uint8)
    mask[height // 4 : height * 3 // 4, width // 4 : width * 3 // 4] = 255
    return {
        "text": {},
        "img2img": {"init_image": image, "strength": 0.5},
        "inpaint": {"init_image": image, "mask": mask, "mask_blur": 0},
        "hires": {"hires": HIRES},
    }


def measure(pipeline: sdort.Pipeline, args: argparse.Namespace) -> list[dict[str, Any]]:
    height, width = parse_size(args.size)
    samples: dict[str, list[sdort.Generation]] = defaultdict(list)
    for number in range(WARMUP + args.rounds):
        for task, options in tasks(height, width).items():
            result = pipeline.generate(
                "a house", height=height, width=width, steps=args.steps, seed=number, scheduler="euler", **options
            )
            samples[task] += [result] if number >= WARMUP else []
    rows = [row_of(task, results) for task, results in samples.items()]
    return [row | {"ratio": row["ms_per_call"] / rows[0]["ms_per_call"]} for row in rows]


def row_of(task: str, results: list[sdort.Generation]) -> dict[str, Any]:
    calls = {round(result.iterations_per_second * result.seconds.denoise) for result in results}
    denoise = statistics.median(result.seconds.denoise for result in results)
    return {
        "task": task,
        "calls": min(calls),
        "ms_per_call": 1000 * denoise / min(calls),
        "encode_image_s": statistics.median(result.seconds.encode_image for result in results),
        "denoise_s": denoise,
        "decode_s": statistics.median(result.seconds.decode for result in results),
    }


if __name__ == "__main__":
    main()
