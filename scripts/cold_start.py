#!/usr/bin/env python3
"""Time to the first image: a fresh process of `sdort run` from its start to the PNG file, phase by phase.

    python scripts/cold_start.py PIPELINE [--provider cuda] [--steps 1] [--processes 5] [--graph] [--custom-ops FILE]
        [--json FILE]

The phases are those of `sdort run -v`. Processes keep bytecode, as an installed package has it. The files are read once
before, so weights lie in the page cache: "reading the weights" is a plain read of the files that a run opens, and the
target of the whole is 1.5 times that and 3 seconds. The first process is not counted: it compares the files, fills the
caches (tuning, schedules) and compiles what the provider compiles once. Of the others medians are printed, and the
largest resident memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from measuring import Arguments, timed

HERE = Path(__file__).resolve().parent.parent
SHARE, SECONDS = 1.5, 3.0
"""The target: this share of the time of reading the weights, and these seconds."""
READ = 1 << 22
"""Bytes that are read at once."""


def main() -> int:
    args = arguments()
    if args.worker:
        return work(args)
    args.pipeline = args.pipeline.resolve()
    start(args)
    rows = [start(args) for _ in range(args.processes)]
    reading = median(read_weights(rows[0]["files"]) for _ in range(args.processes))
    size = sum(Path(file).stat().st_size for file in rows[0]["files"])
    phases = {name: median(row["phases"].get(name, 0.0) for row in rows) for name in rows[0]["phases"]}
    whole, resident = median(row["whole"] for row in rows), max(row["resident"] for row in rows)
    for name, seconds in phases.items():
        print(f"{name:30} {seconds:8.3f} s")
    print(f"{'process start to PNG':30} {whole:8.3f} s, {len(rows)} processes, {args.steps} steps")
    print(f"{'target':30} {SHARE * reading + SECONDS:8.3f} s: reading {size / 1e6:,.0f} MB takes {reading:.3f} s")
    print(f"{'largest resident memory':30} {resident / 2**20:8,.0f} MiB")
    if args.json:
        found = {"phases": phases, "whole": whole, "reading": reading, "bytes": size, "resident": resident}
        args.json.write_text(json.dumps(found | {"provider": args.provider, "steps": args.steps}, indent=2))
    return 0


def arguments() -> argparse.Namespace:
    parser = Arguments(
        __doc__, "pipeline --provider --steps --graph --custom-ops --json", providers="cpu cuda rocm migraphx", steps=1
    )
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--worker", type=float, help=argparse.SUPPRESS)  # when its process was started
    return parser.parse_args()


def start(args: argparse.Namespace) -> Any:
    """What a fresh process measured of itself."""
    options = [f"--{name}" for name in ("graph", "tuning") if getattr(args, name)]
    command = [
        sys.executable, __file__, str(args.pipeline), "--provider", args.provider, "--steps", str(args.steps),
        "--custom-ops", args.custom_ops, *options, "--worker", repr(time.time()),
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def work(args: argparse.Namespace) -> int:
    """Generate one image in this process and print the seconds of every phase as JSON."""
    begun = time.time()
    sys.path.insert(0, str(HERE))
    phases: Any = import_module("sdort.machine.phases")
    with tempfile.TemporaryDirectory() as folder, phases.counted() as counted:
        with phases.phase("imports"):
            probe: Any = import_module("sdort.runtime.probe")
            probe.probe_ahead(provider=args.provider, device_id=0, devices=None)
            command: Any = import_module("sdort.first_use.command")
        result = command.run(
            args.pipeline, "a photograph of a red fox in the snow", provider=args.provider, steps=args.steps, seed=1,
            graph=args.graph, tuning=args.tuning, custom_ops=args.custom_ops, output=Path(folder) / "image.png",
        )  # fmt: skip
        whole = time.time() - args.worker
    from sdort.generation.run_summary import run_seconds
    from sdort.pipelines.folder import open_folder
    from sdort.runtime.memory import peak_resident

    seconds = run_seconds(result, counted.seconds, whole, begun - args.worker)
    opened = open_folder(args.pipeline)
    places = [opened.models[name].parent for name in opened.needed]
    files = [str(file) for place in places for file in sorted(place.glob("model.onnx*"))]
    print(json.dumps({"phases": seconds, "whole": whole, "files": files, "resident": peak_resident()}))
    return 0


def read_weights(files: Iterable[str]) -> float:
    """Seconds in which these files are read, each into one buffer again and again."""
    buffer = bytearray(READ)

    def read() -> None:
        for name in files:
            with open(name, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass

    return timed(read)[1]


if __name__ == "__main__":
    sys.exit(main())
