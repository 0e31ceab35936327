#!/usr/bin/env python3
"""MLPerf Inference's SDXL task with sdort: images a second, latencies, and whether its limits hold.

    python scripts/mlperf.py PIPELINE --scenario offline [--prompts FILE] [--count N] [--out DIR] [--images-at-once N]
    python scripts/mlperf.py PIPELINE --scenario server --qps Q [--url URL] [--prompts FILE] [--count N]

Both take --provider, --graph, --size WxH, --steps N and --json FILE.

Offline draws all prompts with `sdort batch`. Server asks `sdort serve` for one after the other at random times (a
Poisson process whose seed is fixed): a server that it starts, or one that runs at --url. FILE has a caption a line, or
is MLPerf's captions.tsv; without it captions are made up. --accuracy-log FILE writes the images of an offline run as
MLPerf's tools/accuracy_coco.py reads them.

The settings are those of MLPerf's reference (https://github.com/mlcommons/inference: text_to_image/backend_pytorch.py);
the limits are those of its loadgen/mlperf.conf. This is not LoadGen, and its numbers are no results of MLPerf.

The exit code is 1 if an image is missing, or if the latency of the Server scenario is over its limit.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from measuring import Arguments
from open_loop import ask_in_time, poisson_times, served
from PIL import Image

import sdort
from sdort.demo import RANDOM
from sdort.errors import SdortError
from sdort.files.staging import staged_output
from sdort.pipelines.folder import open_folder

NEGATIVE = "normal quality, low quality, worst quality, low res, blurry, nsfw, nude"
GUIDANCE, STEPS, SIZE, SAMPLER, SEED = 8.0, 20, "1024x1024", "euler", 0
SAMPLES = 5000
"""Captions of COCO 2014 that are drawn: stable-diffusion-xl.Offline.min_query_count."""
LATENCY, PERCENTILE = 20.0, 99
"""Seconds, and the share of requests that has to be faster: stable-diffusion-xl.Server.target_latency and
*.Server.target_latency_percentile."""
DURATION = 600.0
"""Seconds that a run lasts at least: *.min_duration."""
ARRIVALS = 18209322760996052031
"""*.*.schedule_rng_seed; NumPy's generator makes other times of it than LoadGen's."""
PERCENTILES = (50, 90, 97, 99)
_WORDS = (
    ("A man", "A woman", "Two dogs", "A cat", "A red bus", "A small child", "A giraffe", "Several people"),
    ("sitting on", "standing beside", "looking at", "next to", "in front of", "behind"),
    ("a wooden bench", "a parked car", "a kitchen table", "a window", "a stop sign", "a large tree", "the ocean"),
    ("on a sunny day", "in the snow", "at night", "in black and white", "in a city", "with an umbrella"),
)


@dataclass(frozen=True)
class Outcome:
    """What a run measured."""

    scenario: str
    samples: int
    missing: int
    seconds: float
    samples_per_second: float
    latencies: dict[str, float]
    """Percentile -> seconds; empty of an offline run, for which MLPerf has no limit."""
    holds: bool
    remarks: list[str]


def main() -> int:
    args = arguments()
    sdort.set_verbosity(0)
    prompts = captions(args.prompts) if args.prompts else made_up(args.count or SAMPLES)
    prompts = prompts[: args.count or len(prompts)]
    try:
        outcome = offline(args, prompts) if args.scenario == "offline" else server(args, prompts)
        told = outcome.remarks + remarks(args, outcome)
    except SdortError as error:
        sys.exit(str(error))
    print(f"{outcome.scenario}: {outcome.samples} samples in {outcome.seconds:.1f} s")
    print(f"{outcome.samples_per_second:.4g} samples/s")
    for name, seconds in outcome.latencies.items():
        print(f"{name} {seconds:.3f} s")
    if outcome.missing:
        print(f"{outcome.missing} samples are missing")
    if outcome.latencies:
        verb = "holds" if outcome.holds else "DOES NOT HOLD"
        print(f"limit: p{PERCENTILE} within {LATENCY:g} s: {verb}")
    for remark in told:
        print(f"note: {remark}")
    if args.json:
        args.json.write_text(json.dumps(sdort.to_json(asdict(outcome) | {"remarks": told})))
    return int(not outcome.holds)


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "pipeline --provider --graph --steps --json", steps=STEPS)
    parser.add_argument("--scenario", choices=("offline", "server"), required=True)
    parser.add_argument("--prompts", type=Path, help="captions: a text file, a line each, or MLPerf's captions.tsv")
    parser.add_argument("--count", type=int, help=f"captions of them; {SAMPLES} are made up by default")
    parser.add_argument("--size", default=SIZE)
    parser.add_argument("--images-at-once", type=int, default=4)
    parser.add_argument("--qps", type=float, help="requests a second of the server scenario")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--out", type=Path, help="keep the images of an offline run in this folder")
    parser.add_argument("--accuracy-log", type=Path, help="mlperf_log_accuracy.json of an offline run")
    args = parser.parse_args()
    if args.scenario == "server" and not (args.qps and args.qps > 0):
        parser.error("--scenario server needs --qps: requests a second")
    if args.count is not None and args.count < 1:
        parser.error("--count is a number from 1 on")
    if args.scenario == "server" and (args.out or args.accuracy_log):
        parser.error("--out and --accuracy-log are for --scenario offline")
    return args


def captions(file: Path) -> list[str]:
    """The captions of a file, in its order."""
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            if file.suffix == ".tsv":
                found = [str(row.get("caption") or "") for row in csv.DictReader(lines, delimiter="\t")]
            else:
                found = [line.strip() for line in lines if line.strip()]
    except (OSError, ValueError, csv.Error) as error:
        sys.exit(f"{file} cannot be read: {error}")
    if not found or not all(found):
        sys.exit(f"{file} has lines without a caption" if found else f"{file} has no captions")
    return found


def made_up(count: int) -> list[str]:
    """Captions of a fixed seed that are as long as COCO's."""
    random = np.random.default_rng(0)
    return [" ".join(str(random.choice(words)) for words in _WORDS) + "." for _ in range(count)]


def offline(args: argparse.Namespace, prompts: list[str]) -> Outcome:
    """All prompts at once, as ``sdort batch`` draws them; the same noise for each, as MLPerf's reference has it."""
    with tempfile.TemporaryDirectory() as folder:
        lines, out = Path(folder) / "prompts.jsonl", args.out or Path(folder) / "images"
        lines.write_text("\n".join(json.dumps({"prompt": each}) for each in prompts), encoding="utf-8")
        report = sdort.batch(
            args.pipeline,
            lines,
            out,
            provider=args.provider,
            negative_prompt=NEGATIVE,
            prompt_weighting="none",
            guidance_scale=GUIDANCE,
            steps=args.steps,
            size=args.size,
            scheduler=SAMPLER,
            seed=SEED,
            images_at_once=args.images_at_once,
            graph=args.graph,
        )
        if args.accuracy_log:
            write_accuracy_log(args.accuracy_log, out)
    rate = report.images_per_second or 0.0
    missing = len(prompts) - report.images - report.done_before
    before = [f"{report.done_before} samples were drawn before this run"] if report.done_before else []
    return Outcome(
        "offline", report.images, missing, report.images / rate if rate else 0.0, rate, {}, not missing, before
    )


def write_accuracy_log(file: Path, folder: Path) -> None:
    """Write the images of a batch as LoadGen's log has them: their pixels in hexadecimal, by the number of the caption.

    MLPerf's tool holds all of it in memory: 5,000 images are 31 GB of text.
    """
    entries = [json.loads(line) for line in (folder / "images.jsonl").read_text("utf-8").splitlines()]
    with staged_output(file) as log:
        for number, entry in enumerate(entries):
            data = np.asarray(Image.open(folder / entry["file"]).convert("RGB")).tobytes().hex().upper()
            row = json.dumps({"seq_id": number, "qsl_idx": entry["line"] - 1, "data": data})
            log.write(f"{',' if number else '['}\n{row}".encode())
        log.write(b"\n]\n")


def server(args: argparse.Namespace, prompts: list[str]) -> Outcome:
    """One prompt after the other, at the times of a Poisson process."""
    body = {"negative_prompt": NEGATIVE, "guidance": GUIDANCE, "scheduler": SAMPLER, "steps": args.steps, "seed": SEED,
            "size": args.size}  # fmt: skip
    # Brackets weight words for the server; a caption means them as they are.
    bodies = [body | {"prompt": re.sub(r"([\\()\[\]])", r"\\\1", each)} for each in prompts]
    due, patience = poisson_times(len(bodies), args.qps, ARRIVALS), 60 * LATENCY
    if args.url:
        answers = ask_in_time(args.url.rstrip("/"), bodies, due, patience)
    else:
        words = ["--provider", args.provider, "--size", args.size, "--images-at-once", str(args.images_at_once)]
        words += ["--graph"][: args.graph]
        with served(args.pipeline, *words, "--timeout", str(patience)) as own:
            answers = ask_in_time(own.url, bodies, due, patience)
    found = {f"p{each}": answers.within(each) for each in PERCENTILES}
    missing = len(answers.problems)
    holds = not missing and found[f"p{PERCENTILE}"] <= LATENCY
    told = [f"requests arrive at {args.qps:g} a second", *sorted({f"failed: {each}" for each in answers.problems})]
    return Outcome("server", len(bodies) - missing, missing, answers.seconds, answers.per_second, found, holds, told)


def remarks(args: argparse.Namespace, outcome: Outcome) -> list[str]:
    """How the run is less than one of MLPerf's."""
    told = []
    if not args.prompts:
        told.append("the captions are made up, with a fixed seed: --prompts takes MLPerf's")
    if open_folder(args.pipeline).checkpoint.startswith(RANDOM):
        told.append("the weights are random: times are those of the shape, images show nothing")
    if (args.size, args.steps) != (SIZE, STEPS):
        told.append(f"{args.size} and {args.steps} steps, and not {SIZE} and {STEPS}")
    if outcome.samples < SAMPLES:
        told.append(f"{outcome.samples} samples, and not {SAMPLES}")
    if outcome.seconds < DURATION:
        told.append(f"{outcome.seconds:.0f} s, and not {DURATION:.0f} s or more")
    return told


if __name__ == "__main__":
    sys.exit(main())
