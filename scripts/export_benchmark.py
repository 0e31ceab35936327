#!/usr/bin/env python3
"""``sdort export`` of a checkpoint whose architecture is known, in turn with ``cp`` of its weights.

    python scripts/export_benchmark.py --work DIR [--rounds N] [--traces DIR] [--json FILE] [--keep]

DIR needs 8 GB. The checkpoint is DIR/checkpoint, by default Stable Diffusion 1.5's shape with random weights, of which
the UNet is exported. Its first export traces it; then it is exported N times (5) and copied N times, in turn, in
processes of their own. The checkpoint is in the system's cache, and what one step wrote is on the disk before the next
one begins. With --traces the exporter's traces are kept there, and what it has once is traced no more. The exit code
is 1 if a later export gives other bytes than the first.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compare_ort_optimizer import finish, made_in, measured, read_and_write
from measuring import Arguments

from sdort.demo import write_demo


def main() -> int:
    parser = Arguments(__doc__, "--work --json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--keep", action="store_true", help="Leave checkpoint and exports in DIR.")
    args = parser.parse_args()
    source, out = args.work / "checkpoint", args.work / "out"
    if not source.exists():
        source.mkdir(parents=True)
        write_demo("random:sd15", source)
    weights = source / "unet" / "diffusion_pytorch_model.safetensors"
    command = [sys.executable, "-m", "sdort", "-q", "export", str(source), str(out)]
    traces = args.traces or args.work / "traces"
    if not args.traces:
        shutil.rmtree(traces, ignore_errors=True)
    command += ["--component", "unet", "--overwrite", "--cache-dir", str(traces)]
    first, expected = measured(command), digest(out)
    result = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "versions": {package: version(package) for package in ("torch", "diffusers", "onnx", "xxhash")},
        "megabytes": weights.stat().st_size / 1e6,
        "first": first,
        "rounds": rounds(command, weights, out, args.rounds),
    }
    show(result)
    equal = digest(out) == expected
    finish(args, result)
    return 0 if equal else 1


def digest(folder: Path) -> list[str]:
    """SHA-256 of the UNet's files."""
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted((folder / "unet").iterdir())]


def rounds(command: list[str], weights: Path, out: Path, count: int) -> list[dict[str, float]]:
    copied = out.with_name("copy")
    read_and_write(weights, Path(os.devnull), 0)
    runs = []
    for _ in range(count):
        shutil.rmtree(out)
        os.sync()
        run = measured(command)
        run["copy_seconds"] = made_in(copied, lambda: subprocess.run(["cp", weights, copied], check=True))
        run["ratio"] = run["seconds"] / run["copy_seconds"]
        runs.append(run)
    return runs


def show(result: dict[str, Any]) -> None:
    first, runs = result["first"], result["rounds"]
    print(f"UNet, {result['megabytes']:.0f} MB, {result['machine']}, {result['versions']}\n")
    print("| | seconds | peak memory, MiB |\n|---|---|---|")
    print(f"| first export, traced | {first['seconds']:.1f} | {first['peak_mib']:.0f} |")
    for name, pick in (("median", statistics.median), ("least", min)):
        seconds, memory, copy = (pick(run[key] for run in runs) for key in ("seconds", "peak_mib", "copy_seconds"))
        print(f"| export of a known architecture, {name} of {len(runs)} | {seconds:.2f} | {memory:.0f} |")
        print(f"| cp of its weights, {name} | {copy:.2f} | |")
    print(f"\nAn export takes {statistics.median(run['ratio'] for run in runs):.2f} times as long as cp (median).")


if __name__ == "__main__":
    raise SystemExit(main())
