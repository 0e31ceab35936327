#!/usr/bin/env python3
"""Images a second of `sdort batch` on 1, 2 and 4 GPUs, and Ray's share of the time.

    python scripts/batch_gpus.py PIPELINE [--provider cuda] [--graph] [--workers 1,2,4] [--images 64] [--steps 20]
        [--size WxH] [--rounds 3] [--share 0.03] [--json FILE]

Each row is a command of its own: a batch without workers, and batches with --ray and as many workers as --workers says,
in turn in each round, each with --images prompts for each worker. With --provider cpu the workers share the CPUs. A
row's rate is the median over the rounds. It is that of the images' files between the first and the last part of each
worker, since workers are not ready at once, and do not end at once; where these are fewer than 16 images, it is what
the command says. Ray's share is what one worker loses against none. The exit code is 1 where an image of a batch with
workers differs from that of the same prompt without, or Ray's share is above --share.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from measuring import Arguments, steady_rate

from sdort.batches.journal import IMAGES
from sdort.batches.ray_pool import OF_A_PART

PLAIN = "no worker"


def main() -> int:
    args = arguments()
    rows = {PLAIN: 0} | {f"{count} worker{'s' * (count > 1)}": count for count in args.workers}
    rates: dict[str, list[float]] = {name: [] for name in rows}
    same = True
    with tempfile.TemporaryDirectory(prefix="sdort-batch-") as work:
        for number in range(args.rounds):
            files: Mapping[str, str] = {}
            for name, workers in rows.items():
                out = Path(work, f"{number}-{workers}")
                rates[name].append(drawn(args, out, workers))
                found = hashes(out)
                files = files or found
                same &= all(found[each] == files[each] for each in files)
    medians = {name: median(each) for name, each in rates.items()}
    first = next(each for each in rows if each != PLAIN)
    share = 1 - medians[first] / medians[PLAIN] / rows[first]
    print("| | images/s | of one worker | rounds |\n|---|---|---|---|")
    for name, rate in medians.items():
        each_round = ", ".join(f"{each:.3g}" for each in rates[name])
        print(f"| {name} | {rate:.3g} | {rate / medians[first] * rows[first]:.2f} x | {each_round} |")
    print(f"\nRay's share: {share:.1%}; images {'the same' if same else 'DIFFERENT'}")
    if args.json:
        args.json.write_text(json.dumps({"rates": rates, "share": share, "same": same}, indent=2))
    return int(not same or share > args.share)


def drawn(args: argparse.Namespace, out: Path, workers: int) -> float:
    """Images a second of one command."""
    prompts = out.with_suffix(".txt")
    prompts.write_text("\n".join(f"photograph number {number}" for number in range(args.images * max(workers, 1))))
    words = [args.pipeline, "--prompts", prompts, "--out", out, "--provider", args.provider, "--size", args.size]
    words += ["--steps", args.steps, "--json", *["--graph"][: args.graph]]
    words += ["--workers", workers, "--ray"] if workers else []
    done = subprocess.run(
        [sys.executable, "-m", "sdort", "batch", *map(str, words)], stdout=subprocess.PIPE, check=True
    )
    times = [file.stat().st_mtime for file in out.glob("*.png")]
    return steady_rate(times, OF_A_PART * max(workers, 1)) or float(json.loads(done.stdout)["images_per_second"])


def hashes(out: Path) -> dict[str, str]:
    """The hash of each image."""
    lines = (out / IMAGES).read_text().splitlines()
    return {entry["file"]: entry["sha256"] for entry in map(json.loads, lines)}


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "pipeline --provider --graph --size --steps --images --json", images=64)
    parser.add_argument("--workers", type=numbers, default=[1, 2, 4], help="by commas, the smallest first")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.03, help="the most that Ray may take")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
