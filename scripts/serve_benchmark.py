#!/usr/bin/env python3
"""`sdort serve` beside `sdort batch`: seconds until it is ready, memory, the cost of a request, images a second.

    python scripts/serve_benchmark.py PIPELINE [--provider cuda] [--steps 20] [--images 16] [--rounds 9] [--clients 16]

Opening is a fresh process that loads the pipeline and draws what the server warms up with. Images a second are those
of `--clients` clients, each of which asks for its next image when it has one, and of a batch of the same prompts and
seeds, in turns, so that both see the same machine; medians of the rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

import psutil
from measuring import Arguments, timed
from open_loop import served

import sdort

OPEN = """
import sys, psutil, sdort
pipeline = sdort.load(sys.argv[1], provider=sys.argv[2])
for images in (1, 4):
    pipeline.generate("", steps=2, seed=0, num_images=images)
print(psutil.Process().memory_info().rss)
"""


def main() -> int:
    parser = Arguments(__doc__, "pipeline --provider --steps --images", images=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clients", type=int, default=16)
    args = parser.parse_args()
    opened, seconds = timed(lambda: run(sys.executable, "-c", OPEN, args.pipeline, args.provider))
    started = time.perf_counter()
    with served(args.pipeline, "--provider", args.provider) as server:
        ready, ask = time.perf_counter() - started, asking(server.url)
        resident = psutil.Process(server.process).memory_info().rss
        print(f"opening {seconds:.2f} s, {int(opened) / 1e6:.0f} MB; ready {ready:.2f} s, {resident / 1e6:.0f} MB")
        cost = median(timed(lambda: ask("/api/info"))[1] for _ in range(200))
        print(f"a request that draws nothing: {1e3 * cost:.2f} ms")
        rows = list(rates(args.pipeline, args.provider, args.steps, args.images, args.rounds, args.clients, ask))
    batch, serve, ratio = (median(column) for column in zip(*rows, strict=True))
    print(f"batch {batch:.2f} images/s, serve {serve:.2f} images/s, ratio {ratio:.3f} (medians of {len(rows)} rounds)")
    return 0


def rates(
    pipeline: Path, provider: str, steps: int, images: int, rounds: int, clients: int, ask: Callable[..., bytes]
) -> Iterator[tuple[float, float, float]]:
    """Images a second of a batch and of the server, and their ratio, for each round."""
    bodies = [{"prompt": f"a red star {number}", "seed": number, "steps": steps} for number in range(images)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(clients) as pool:
        lines = Path(folder) / "prompts.jsonl"
        lines.write_text("\n".join(map(json.dumps, bodies)))
        for number in range(rounds + 1):
            report = sdort.batch(pipeline, lines, Path(folder) / str(number), provider=provider)
            _, seconds = timed(lambda: list(pool.map(lambda body: ask("/v1/images/generations", body), bodies)))
            if number:  # the first round is not counted
                batch, serve = report.images_per_second or 0.0, images / seconds
                print(f"batch {batch:.2f} images/s, serve {serve:.2f} images/s", flush=True)
                yield batch, serve, serve / batch


def asking(url: str) -> Callable[..., bytes]:
    """What asks a server: a path, and the body of a request that posts one."""

    def ask(path: str, body: object = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(url + path, data, {"Content-Type": "application/json"})) as answer:
            return bytes(answer.read())

    return ask


def run(*words: object) -> str:
    """The output of a command."""
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
