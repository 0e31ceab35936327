#!/usr/bin/env python3
"""What `--deep-cache N` gains and what it changes: seconds of the steps, and images beside those without it.

    python scripts/deep_cache.py PIPELINE [--provider cuda] [--graph] [--every 2 3 5] [--depth 2] [--images 10]
        [--steps 30] [--size WxH] [--judge] [--least 1.8] [--right 0.9] [--json FILE]

For each depth and each N the same images are drawn as without the option. Printed are the medians of the seconds of
their steps, how many times as fast these are, and the PSNR of the images (as sdort verify has it) beside those without.
With --judge PIPELINE is one of the demo model: the images are of its held-out prompts, and the judge of the demo counts
those that show what they were asked for.

The exit code is 1 if an image at N = 1 is not the one without the option, pixel for pixel; if with N = 3 the steps are
less than --least times as fast; or if with N = 3 less than the share --right of the images is right.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
from measuring import Arguments

import sdort
from sdort.console import show
from sdort.demo.prompt_language import held_out
from sdort.demo.score import GUIDANCE, JudgedImage, judge_picture
from sdort.tables import Table
from sdort.verification.metrics import psnr

PROMPTS = (
    "a photograph of a red fox in the snow",
    "an old town by the sea, oil painting",
    "a bowl of fruit on a table",
)


@dataclass
class Row:
    """The images at one depth and one N."""

    every: int
    depth: int
    step_seconds: float
    speed: float
    """How many times as fast as without the option."""
    psnr: float
    """In dB, the median over the images."""
    least_psnr: float
    right: int | None
    """Images that show what they were asked for; None where nobody judges."""


@dataclass
class Drawn:
    """Images, and the seconds of the steps of each."""

    images: list[Any]
    seconds: list[float]


def main() -> int:
    args = arguments()
    sdort.set_verbosity(0)
    pipeline = sdort.load(args.pipeline, provider=args.provider, graph=args.graph)
    prompts = held_out() if args.judge else list(PROMPTS)
    asked = [prompts[number % len(prompts)] for number in range(args.images)]
    options = {"steps": args.steps, "size": args.size} | ({"guidance_scale": GUIDANCE} if args.judge else {})
    plain = draw(pipeline, asked, options)
    same = np.array_equal(plain.images[0], draw(pipeline, asked[:1], options | {"deep_cache": 1}).images[0])
    rows = [row(1, 0, plain, plain, asked, judged=args.judge)]
    for depth in args.depth:
        for every in args.every:
            drawn = draw(pipeline, asked, options | {"deep_cache": every, "deep_cache_depth": depth})
            rows.append(row(every, depth, drawn, plain, asked, judged=args.judge))
    print_rows(rows, args.images)
    print(f"N = 1 draws {'the same images' if same else 'OTHER IMAGES'} as without the option")
    if args.json:
        args.json.write_text(json.dumps({"rows": [asdict(each) for each in rows], "images": args.images, "same": same}))
    third = [each for each in rows if each.every == 3]
    slow = any(each.speed < args.least for each in third)
    wrong = any(each.right is not None and each.right < args.right * args.images for each in third)
    return int(not same or slow or wrong)


def arguments() -> argparse.Namespace:
    parser = Arguments(
        __doc__,
        "pipeline --provider --graph --images --steps --json",
        providers="cpu cuda rocm migraphx",
        images=10,
        steps=30,
    )
    parser.add_argument("--every", type=int, nargs="+", default=[2, 3, 5])
    parser.add_argument("--depth", type=int, nargs="+", default=[2])
    parser.add_argument("--size")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--least", type=float, default=0.0)
    parser.add_argument("--right", type=float, default=0.0)
    return parser.parse_args()


def draw(pipeline: sdort.Pipeline, prompts: list[str], options: dict[str, Any]) -> Drawn:
    """An image of each prompt, each with a seed of its own, after one that is not counted: it records graphs."""
    pipeline.generate(prompts[0], seed=0, **options)
    results = [pipeline.generate(prompt, seed=seed, **options) for seed, prompt in enumerate(prompts)]
    return Drawn([each.images[0].pixels for each in results], [each.seconds.denoise for each in results])


def row(every: int, depth: int, drawn: Drawn, plain: Drawn, prompts: list[str], *, judged: bool) -> Row:
    apart = [psnr(one, other) for one, other in zip(drawn.images, plain.images, strict=True)]
    seconds = median(drawn.seconds)
    verdicts: list[JudgedImage] = (
        [judge_picture(*pair) for pair in zip(prompts, drawn.images, strict=True)] if judged else []
    )
    right = sum(each.verdict.right for each in verdicts) if judged else None
    return Row(every, depth, seconds, median(plain.seconds) / seconds, median(apart), min(apart), right)


def print_rows(rows: list[Row], images: int) -> None:
    table = Table("", [">N", ">depth", ">steps, ms", ">as fast", ">PSNR, dB", ">least", ">right"])
    for each in rows:
        right = "" if each.right is None else f"{each.right} of {images}"
        depth = str(each.depth) if each.depth else ""
        speed = [f"{each.step_seconds * 1000:.1f}", f"{each.speed:.2f} x"]
        table.add_row(str(each.every), depth, *speed, f"{each.psnr:.1f}", f"{each.least_psnr:.1f}", right)
    show(table)


if __name__ == "__main__":
    sys.exit(main())
