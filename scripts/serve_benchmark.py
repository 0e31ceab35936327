#!/usr/bin/env python3
"""`sdort serve` beside `sdort batch`: seconds until it is ready, memory, the cost of a request, images a second.

    python scripts/serve_benchmark.py PIPELINE [--provider cuda] [--graph] [--size WxH] [--steps 20] [--images 16]
        [--rounds 9] [--clients 16] [--workers N] [--half-load N] [--json FILE]

Opening is a fresh process that loads the pipeline and draws what the server warms up with. Images a second are those
of `--clients` clients, each of which asks for its next image when it has one, and of a batch of the same prompts and
seeds, in turns, so that both see the same machine; medians of the rounds. Of 32 images and more the first and the last
eight are left out on both sides: the rate is that of a server at saturation, and of a batch without its first calls.
With --workers both have so many workers of Ray; there are then as many times the clients and the images.

--half-load asks for N images more, at the times of a Poisson process with half of the server's images a second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import Request, urlopen

import psutil
from measuring import Arguments, steady_rate, timed
from open_loop import ask_in_time, poisson_times, served

import sdort

OPEN = """
import sys, psutil, sdort
pipeline = sdort.load(sys.argv[1], provider=sys.argv[2], graph=sys.argv[3] == "True")
for images in (1, 4):
    pipeline.generate("", steps=2, seed=0, num_images=images, size=sys.argv[4] or None)
print(psutil.Process().memory_info().rss)
"""
EDGE = 8
"""Images at either end of a round that do not count."""
PATIENCE = 60.0
"""Seconds without an answer after which a request at half load has failed."""


def main() -> int:
    parser = Arguments(__doc__, "pipeline --provider --graph --size --steps --images --json", images=16, size="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0, help="of Ray, one a GPU; none by default")
    parser.add_argument("--half-load", type=int, default=0, metavar="N", help="images that are asked for at half load")
    args = parser.parse_args()
    given = [args.pipeline, args.provider, args.graph, args.size]
    opened, seconds = timed(lambda: run(sys.executable, "-c", OPEN, *given))
    words = ["--provider", args.provider, *["--graph"][: args.graph], *(["--size", args.size] if args.size else [])]
    started = time.perf_counter()
    words += ["--ray", "--workers", str(args.workers)] if args.workers else []
    with served(args.pipeline, *words) as server:
        ask = asking(server.url)
        while f"sdort_workers {args.workers or 1}.0" not in ask("/metrics").decode():
            time.sleep(0.05)
        ready = time.perf_counter() - started
        resident = psutil.Process(server.process).memory_info().rss
        print(f"opening {seconds:.2f} s, {int(opened) / 1e6:.0f} MB; ready {ready:.2f} s, {resident / 1e6:.0f} MB")
        cost = median(timed(lambda: ask("/api/info"))[1] for _ in range(200))
        print(f"a request that draws nothing: {1e3 * cost:.2f} ms")
        rows = list(rates(args, ask))
        batch, serve, ratio = (median(column) for column in zip(*rows, strict=True))
        print(
            f"batch {batch:.2f} images/s, serve {serve:.2f} images/s, ratio {ratio:.3f} (medians of {len(rows)} rounds)"
        )
        half = half_load(args, server.url, serve / 2) if args.half_load else {}
    if args.json:
        found = {"opening": seconds, "ready": ready, "opening_bytes": int(opened), "ready_bytes": resident}
        found |= {"request": cost, "rounds": rows, "batch": batch, "serve": serve, "ratio": ratio, "half_load": half}
        args.json.write_text(json.dumps(found, indent=2))
    return int(bool(half.get("failed")))


def bodies_of(args: argparse.Namespace, count: int) -> list[dict[str, Any]]:
    """Requests for images of different prompts and seeds."""
    size = {"size": args.size} if args.size else {}
    return [{"prompt": f"a red star {number}", "seed": number, "steps": args.steps, **size} for number in range(count)]


def rates(args: argparse.Namespace, ask: Callable[..., bytes]) -> Iterator[tuple[float, float, float]]:
    """Images a second of a batch and of the server, and their ratio, for each round."""
    many = max(args.workers, 1)
    bodies, workers = bodies_of(args, many * args.images), {"ray": "local", "workers": many} if args.workers else {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(many * args.clients) as pool:
        lines = Path(folder) / "prompts.jsonl"
        lines.write_text("\n".join(map(json.dumps, bodies)))

        def answered(body: dict[str, Any]) -> float:
            ask("/v1/images/generations", body)
            return time.perf_counter()

        for number in range(args.rounds + (args.rounds > 1)):
            out = Path(folder) / str(number)
            report = sdort.batch(args.pipeline, lines, out, provider=args.provider, graph=args.graph, **workers)
            written = [file.stat().st_mtime for file in out.glob("*.png")]
            started = time.perf_counter()
            times = list(pool.map(answered, bodies))
            batch = steady_rate(written, many * EDGE) or report.images_per_second or 0.0
            serve = steady_rate(times, many * EDGE) or len(bodies) / (max(times) - started)
            if number or args.rounds == 1:  # the first of several is not counted
                print(f"batch {batch:.2f} images/s, serve {serve:.2f} images/s", flush=True)
                yield batch, serve, serve / batch


def half_load(args: argparse.Namespace, url: str, rate: float) -> dict[str, float]:
    """Latencies of requests that arrive at a rate, in seconds."""
    answers = ask_in_time(url, bodies_of(args, args.half_load), poisson_times(args.half_load, rate, seed=0), PATIENCE)
    found = {"rate": rate, "p50": answers.within(50), "p99": answers.within(99), "failed": len(answers.problems)}
    print(f"at {rate:.2f} images/s: p50 {found['p50']:.3f} s, p99 {found['p99']:.3f} s, {found['failed']} failed")
    return found


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
