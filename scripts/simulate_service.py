#!/usr/bin/env python3
"""How many GPUs a service needs: a simulation of `sdort serve` on up to 1,000 of them, from measured seconds.

    python scripts/simulate_service.py PIPELINE --sizes 512x512,768x512 --shares 3,1 [--provider cuda] [--save FILE]
    python scripts/simulate_service.py --times FILE [--load 0.7 | --rate R] [--swing S] [--gpus 1,10,100,1000]
        [--price P]
    python scripts/simulate_service.py PIPELINE --check [--load 0.7] [--requests 200]

The seconds of batches are measured with PIPELINE, or read: FILE is what --save wrote, or what `sdort bench --component
pipeline --batch-size 1,2,4 --json` printed. Requests of one image arrive at random (a Poisson process), evenly or with
a swing of a day: the rate is up to 1 + S and down to 1 - S times the mean. One queue gives them to all GPUs by the rule
of `sdort serve`. Printed are images a second, latencies, the share of the time in which GPUs compute, and what a
million images cost when the GPUs are paid for all the time.

--check runs a real server on this machine beside the simulation of it, with the same requests at the same times. The
machine may be slower by then than it was when it was measured, or faster: the second prediction is for a machine that
computes as long as the server says that it did. The exit code is 1 if the median latency is not within a factor of
--within of that one, or a request fails.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import math
import re
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from measuring import Arguments, timed
from numpy.typing import NDArray
from open_loop import ask_in_time, poisson_times, served

import sdort
from sdort.console import show
from sdort.errors import SdortError
from sdort.serving.batching import BatchRule
from sdort.serving.serve_options import ServeOptions
from sdort.tables import Table

STEPS = 20
LEAST = 100_000
"""Requests of a simulation, and of 100 GPUs: each has 1,000 in the mean."""
CHECKED = 200
"""Requests of --check."""
DAY = 86400.0
_GRID = 4096
_TURNS = 20
"""By which the factor between the machine as measured and in a run of the server is found."""
_HOUR = 3600.0
_MILLION = 1_000_000
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """Requests of one size, and how long they take."""

    size: str
    seconds: Mapping[int, Sequence[float]]
    """Images at once -> measured seconds of such a batch, one or more."""
    share: float = 1.0
    """Of the requests, beside those of the other shapes."""


@dataclass(frozen=True)
class Times:
    """What was measured."""

    shapes: Sequence[Shape]
    after: float = 0.0
    """Seconds from the end of a batch to its images at the client: encoding and HTTP, beside the next batch."""

    @property
    def numbers(self) -> list[int]:
        """Images at once that all shapes have."""
        return sorted(set.intersection(*({*shape.seconds} for shape in self.shapes)))

    @property
    def shares(self) -> Floats:
        """float64 [shapes]: of all requests."""
        shares: Floats = np.array([shape.share for shape in self.shapes], np.float64)
        shares /= shares.sum()
        return shares

    def slower(self, factor: float) -> Times:
        """The times of a machine that takes ``factor`` times as long."""
        slow = [
            Shape(
                each.size, {number: [factor * one for one in some] for number, some in each.seconds.items()}, each.share
            )
            for each in self.shapes
        ]
        return Times(slow, factor * self.after)

    def capacity(self, most: int) -> float:
        """Images a second of a GPU whose batches are full."""
        each = [np.mean(shape.seconds[most]) / most for shape in self.shapes]
        return float(1 / (self.shares @ each))


@dataclass(frozen=True)
class Run:
    """What a simulation gave."""

    latencies: Floats
    """float64 [requests]: seconds; NaN for those that were refused because the queue was full."""
    batches: int
    busy: float
    """Seconds in which GPUs computed, of all GPUs together."""
    seconds: float
    """From the first request to the last image."""


@dataclass(frozen=True)
class Row:
    """A number of GPUs under load."""

    gpus: int
    simulated: float
    """Seconds of the service."""
    requests_per_second: float
    images_per_second: float
    refused: float
    """Share of the requests."""
    p50: float
    p99: float
    at_once: float
    """Images of a batch, on average."""
    use: float
    """Share of the time in which GPUs compute."""
    gpu_hours: float
    """For a million images."""
    cost: float
    """For a million images."""


@dataclass
class Queue:
    """Requests that wait, those of each shape in their order."""

    waiting: list[deque[int]] = field(default_factory=list)
    length: int = 0

    def put(self, shape: int, request: int) -> None:
        """Add a request; those that come later have larger numbers."""
        self.waiting[shape].append(request)
        self.length += 1

    def oldest(self) -> deque[int]:
        """The requests of the shape of the oldest one."""
        return min((each for each in self.waiting if each), key=lambda each: each[0])


def simulate(
    times: Times, rule: BatchRule, gpus: int, places: float, arrivals: Floats, shapes: NDArray[np.int64], seed: int = 0
) -> Run:
    """Requests through one queue to a number of GPUs; the time that it takes grows as the number of requests.

    Args:
        places: requests that wait at most.
        arrivals: float64 [n]: seconds, ascending.
        shapes: int64 [n]: of each request, its place in ``times.shapes``.
        seed: of the choice among the seconds that were measured of a batch.
    """
    due_in, kinds, ends = arrivals.tolist(), shapes.tolist(), np.full(len(arrivals), np.nan)
    measured = [{number: list(each.seconds[number]) for number in rule.numbers} for each in times.shapes]
    picks = np.random.default_rng((seed, 2)).random(len(due_in)).tolist()
    queue, working, free = Queue([deque() for _ in times.shapes]), list[float](), gpus
    came, batches, busy, now = 0, 0, 0.0, 0.0
    while came < len(due_in) or queue.length:
        later = math.inf
        while free and queue.length:
            alike = queue.oldest()
            due = rule.due(due_in[alike[0]], len(alike))
            if due > now:
                later = due
                break
            batch = [alike.popleft() for _ in range(rule.number(len(alike)))]
            choice = measured[kinds[batch[0]]][len(batch)]
            seconds = choice[int(picks[batches] * len(choice))]
            ends[batch] = now + seconds
            heappush(working, now + seconds)
            queue.length -= len(batch)
            free, batches, busy = free - 1, batches + 1, busy + seconds
        arrives = due_in[came] if came < len(due_in) else math.inf
        now = min(arrives, later, working[0] if working else math.inf)
        while working and working[0] <= now:
            heappop(working)
            free += 1
        if arrives <= now:
            if queue.length < places:
                queue.put(kinds[came], came)
            came += 1
    return Run(ends - arrivals + times.after, batches, busy, float(np.nanmax(ends) - arrivals[0]))


def swinging_times(count: int, rate: float, swing: float, seed: int) -> Floats:
    """float64 [count]: seconds at which requests arrive whose rate swings once around its mean.

    The swing is laid over the whole time, however short that is: a Poisson process of rate 1, whose times are what the
    mean number of requests until each time is.
    """
    period = count / rate
    grid = np.linspace(0, 2 * period, _GRID)
    turn = period / (2 * np.pi)
    expected = rate * (grid + swing * turn * (1 - np.cos(grid / turn)))
    return np.interp(poisson_times(count, 1.0, seed), expected, grid)


def chosen_shapes(times: Times, count: int, seed: int) -> NDArray[np.int64]:
    """int64 [count]: the shape of each request."""
    return np.random.default_rng((seed, 1)).choice(len(times.shapes), count, p=times.shares)


def measured(args: argparse.Namespace) -> Times:
    """The seconds of batches of a pipeline on this machine, after one of each that is not counted."""
    with sdort.load(args.pipeline, provider=args.provider) as pipeline:
        pixels = None
        shapes = []
        for size, share in zip(args.sizes, args.shares, strict=True):
            seconds: dict[int, list[float]] = {}
            for number in range(1, args.images_at_once + 1):
                prompts = [f"a red star {each}" for each in range(number)]
                options: dict[str, Any] = {"size": size, "steps": args.steps, "images_at_once": number, "seed": 0}
                pixels = pipeline.generate(prompts, **options).images[0]
                seconds[number] = [timed(lambda: pipeline.generate(prompts, **options))[1] for _ in range(args.repeat)]  # noqa: B023
            shapes.append(Shape(size, seconds, share))
    assert pixels is not None
    with io.BytesIO() as file:
        after = timed(lambda: (pixels.save(file), base64.b64encode(file.getvalue())))[1]
    return Times(shapes, after)


def read_times(file: Path) -> Times:
    """The times of a file: of --save, or a document of ``sdort bench``."""
    try:
        found = json.loads(file.read_text("utf-8"))
        if "rows" in found:
            rows = [row for row in found["rows"] if row["component"] == "pipeline" and row["median_ms"]]
            sizes: dict[str, dict[int, list[float]]] = {}
            for row in rows:
                seconds = sizes.setdefault(f"{row['width']}x{row['height']}", {})
                seconds.setdefault(row["batch_size"], [row["median_ms"] / 1000])
            shapes = [Shape(size, seconds) for size, seconds in sizes.items()]
        else:
            shapes = [
                Shape(
                    each["size"], {int(number): seconds for number, seconds in each["seconds"].items()}, each["share"]
                )
                for each in found["shapes"]
            ]
        times = Times(shapes, found.get("after", 0.0))
        if 1 in times.numbers and all(min(some) > 0 for shape in shapes for some in shape.seconds.values()):
            return times
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        sys.exit(f"{file} has no seconds of batches that can be read: {error!r}")
    sys.exit(f"{file} needs seconds of one image at once for each size, all above 0")


def row(times: Times, rule: BatchRule, gpus: int, rate: float, args: argparse.Namespace) -> Row:
    """A number of GPUs at a rate of requests."""
    requests = args.requests or max(LEAST, LEAST // 100 * gpus)
    arrivals, shapes = swinging_times(requests, rate, args.swing, args.seed), chosen_shapes(times, requests, args.seed)
    run = simulate(times, rule, gpus, args.queue * gpus, arrivals, shapes, args.seed)
    done = run.latencies[~np.isnan(run.latencies)]
    p50, p99 = np.percentile(done, (50, 99))
    hours = gpus * run.seconds / len(done) * _MILLION / _HOUR
    return Row(
        gpus,
        run.seconds,
        rate,
        len(done) / run.seconds,
        1 - len(done) / requests,
        float(p50),
        float(p99),
        len(done) / run.batches,
        run.busy / (gpus * run.seconds),
        hours,
        hours * args.price,
    )


def print_rows(rows: Sequence[Row], args: argparse.Namespace) -> None:
    """The rows as a table, and what they leave out."""
    names = "GPUs", "requests/s", "images/s", "refused", "p50 s", "p99 s", "at once", "use", "GPU h/M", "cost/M"
    table = Table("", [f">{name}" for name in names])
    for each in rows:
        rates = f"{each.requests_per_second:.4g}", f"{each.images_per_second:.4g}", f"{each.refused:.1%}"
        waits = f"{each.p50:.3f}", f"{each.p99:.3f}", f"{each.at_once:.2f}", f"{each.use:.1%}"
        cost = f"{each.cost:,.0f}" if args.price else ""
        table.add_row(str(each.gpus), *rates, *waits, f"{each.gpu_hours:,.1f}", cost)
    show(table)
    if args.swing and any(each.simulated < DAY for each in rows):
        print("note: the day's swing is laid over less than a day; what piles up at the peak is less than in a day")


def check(times: Times, rule: BatchRule, args: argparse.Namespace) -> int:
    """A real server beside its simulation."""
    rate = args.rate or args.load * times.capacity(rule.most)
    requests = args.requests or CHECKED
    arrivals, shapes = poisson_times(requests, rate, args.seed), chosen_shapes(times, requests, args.seed)
    bodies = [
        {"prompt": f"a red star {number}", "size": times.shapes[shape].size, "steps": args.steps, "seed": number}
        for number, shape in enumerate(shapes)
    ]
    words = ["--provider", args.provider, "--size", ",".join(shape.size for shape in times.shapes)]
    with served(
        args.pipeline, *words, "--images-at-once", str(rule.most), "--batch-wait", str(rule.wait), "--timeout", "3600"
    ) as server:
        answers = ask_in_time(server.url, bodies, arrivals, 3600.0)
        print(f"{requests} requests at {rate:.3g} a second; {len(answers.problems)} failed")
        if answers.problems:
            return 1
        computed = sum(map(float, re.findall(r"(?m)^sdort_stage_seconds_sum.* (\S+)$", metrics(server.url))))
    drift, first = 1.0, simulate(times, rule, 1, args.queue, arrivals, shapes, args.seed)
    run = first
    for _ in range(_TURNS):
        drift *= math.sqrt(computed / run.busy)
        run = simulate(times.slower(drift), rule, 1, args.queue, arrivals, shapes, args.seed)
    table = Table("", ["", ">as measured before", f">{drift:.2f} times as slow", ">measured", ">ratio"])
    columns = [(requests / each.seconds, *np.nanpercentile(each.latencies, (50, 99))) for each in (first, run)]
    columns.append((answers.per_second, *np.nanpercentile(answers.latencies, (50, 99))))
    for name, early, predicted, real in zip(("images/s", "p50 s", "p99 s"), *columns, strict=True):
        table.add_row(name, f"{early:.3f}", f"{predicted:.3f}", f"{real:.3f}", f"{real / predicted:.2f}")
    show(table)
    ratio = columns[2][1] / columns[1][1]
    return int(not 1 / args.within <= ratio <= args.within)


def metrics(url: str) -> str:
    """The metrics of a server."""
    with urlopen(f"{url}/metrics") as answer:
        return str(answer.read().decode())


def main() -> int:
    args = arguments()
    sdort.set_verbosity(0)
    try:
        times = read_times(args.times) if args.times else measured(args)
    except SdortError as error:
        sys.exit(str(error))
    if args.save:
        args.save.write_text(json.dumps(asdict(times), indent=2))
    rule = BatchRule([each for each in times.numbers if each <= args.images_at_once], args.batch_wait)
    for shape in times.shapes:
        each = ", ".join(f"{number}: {np.mean(shape.seconds[number]):.4g}" for number in rule.numbers)
        print(f"{shape.size}: seconds of a batch by its images: {each}")
    if args.check:
        return check(times, rule, args)
    capacity = times.capacity(rule.most)
    print(f"a GPU with full batches: {capacity:.4g} images/s")
    rows = [row(times, rule, gpus, args.rate or args.load * capacity * gpus, args) for gpus in args.gpus]
    print_rows(rows, args)
    if args.json:
        args.json.write_text(json.dumps({"capacity": capacity, "rows": [asdict(each) for each in rows]}))
    return 0


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "--provider --steps --repeat --json", steps=STEPS, repeat=5)
    usual = ServeOptions()
    parser.add_argument("pipeline", nargs="?", type=Path, help="a pipeline that is measured on this machine")
    parser.add_argument("--times", type=Path, help="seconds that were measured before, in place of measuring")
    parser.add_argument("--save", type=Path, help="write the seconds that were measured to this file")
    parser.add_argument("--sizes", default="512x512", help="of images, with commas in between")
    parser.add_argument("--shares", help="of the requests, one for each size")
    parser.add_argument("--images-at-once", type=int, default=usual.images_at_once)
    parser.add_argument("--batch-wait", type=float, default=usual.batch_wait)
    parser.add_argument("--queue", type=int, default=usual.queue, help="requests that wait at most, for each GPU")
    parser.add_argument("--gpus", default="1,10,100,1000")
    parser.add_argument("--load", type=float, default=0.7, help="requests, as a share of what full batches would do")
    parser.add_argument("--rate", type=float, help="requests a second, in place of --load")
    parser.add_argument("--swing", type=float, default=0.0, help="of the rate in a day, from 0 to 1")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--price", type=float, default=0.0, help="of an hour of a GPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="beside a real server")
    parser.add_argument("--within", type=float, default=2.0, help="the factor of --check")
    args = parser.parse_args()
    if args.pipeline is None and (args.check or args.times is None):
        parser.error("name a pipeline to measure" if args.check else "name a pipeline to measure, or --times FILE")
    if not (
        args.load > 0
        and 0 <= args.swing <= 1
        and (args.requests is None or args.requests > 0)
        and (args.rate is None or args.rate > 0)
    ):
        parser.error("--load, --rate and --requests are above 0, and --swing is from 0 to 1")
    args.sizes = args.sizes.split(",")
    try:
        args.shares = [float(each) for each in args.shares.split(",")] if args.shares else [1.0] * len(args.sizes)
        args.gpus = [int(each) for each in args.gpus.split(",")]
    except ValueError:
        parser.error("--shares and --gpus are numbers with commas in between")
    if len(args.shares) != len(args.sizes) or min(args.shares) <= 0 or min(args.gpus) < 1:
        parser.error("--shares has a number above 0 for each size, and --gpus has numbers from 1 on")
    return args


if __name__ == "__main__":
    sys.exit(main())
