#!/usr/bin/env python3
"""What fusions are worth on the CPU: a component without each of them, beside all of it, in fp32.

    python scripts/cpu_ablation.py --work DIR [--lacking upsampling_phases,...] [--component vae_decoder]
        [--size 512x512] [--family sd15|sd21|sdxl|tiny] [--checkpoint DIR] [--static] [--repeat 9] [--json FILE]

Each row is a model that lacks what --disable takes. `sdort bench` compares its outputs with those of the model that has
all, and times the two in turn, call by call: medians, and the time of all over the other's with its 95 % interval. It
warns of other programs that run meanwhile. A row whose outputs differ makes the exit code 5.

Without --checkpoint (a diffusers folder) the weights are random and seeded. With --static the graph is exported for its
size, a UNet for both halves of guidance. --family tiny --size 64x64 tries all of it in seconds; its times say nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gpu_benchmark import make_checkpoint
from measuring import Arguments

import sdort
from sdort.benchmark.timing import LEAST
from sdort.exporter.export_options import StaticSize
from sdort.options.number_ranges import parse_size

WARM_UP = 2
HEADER = (
    f"{'lacking':20} {'without, ms':>11} {'all, ms':>10} {'time ratio':>24} {'error':>8} {'weights, MB':>14} "
    f"{'memory, MiB':>14}"
)


def main() -> int:
    args = arguments()
    sdort.set_verbosity(0)
    args.work.mkdir(parents=True, exist_ok=True)
    exported = args.work / f"{args.component}-{args.family}{f'-{args.size}' if args.static else ''}"
    if args.checkpoint or not exported.exists():
        checkpoint = args.checkpoint or make_checkpoint(args.family, args.work / f"checkpoint-{args.family}")
        size = StaticSize(1, *args.sides) if args.static else None
        sdort.export(checkpoint, exported, components=[args.component], static=size, overwrite=True)
    whole = optimized(exported, "all")
    rows: list[dict[str, Any]] = []
    for lacking in args.lacking.split(","):
        rows.append(measure(whole, optimized(exported, lacking), lacking, args))
        if len(rows) == 1:
            versions = ", ".join(f"{name} {number}" for name, number in rows[0]["versions"].items())
            print(f"{rows[0]['device']}; {args.component}, {args.size}, fp32; {versions}", HEADER, sep="\n")
        print(line(rows[-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(row["ok"] for row in rows) else 5


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "--work --size --family --checkpoint --static --repeat --json", repeat=9)
    parser.add_argument("--lacking", default="upsampling_phases", help="names that --disable takes, by commas")
    parser.add_argument("--component", default="vae_decoder", choices=["unet", "vae_decoder", "vae_encoder"])
    args = parser.parse_args()
    if args.repeat < LEAST:
        parser.error(f"--repeat {args.repeat}: fewer than {LEAST} calls have no interval")
    args.sides = parse_size(args.size)
    return args


def optimized(exported: Path, lacking: str) -> Path:
    """The export as ``sdort optimize`` makes it for the CPU, with the name of what it lacks."""
    out = exported.with_name(f"{exported.name}-{lacking}")
    sdort.optimize(exported, out, provider="cpu", disable=() if lacking == "all" else (lacking,), overwrite=True)
    return out


def measure(whole: Path, less: Path, lacking: str, args: argparse.Namespace) -> dict[str, Any]:
    """Both models in one run."""
    result = sdort.bench(
        whole, baseline=less, provider="cpu", components=[args.component], sizes=[args.sides],
        batch_sizes=[2 if args.component == "unet" else 1], warmup=WARM_UP, repeat=args.repeat,
    )  # fmt: skip
    assert isinstance(result, sdort.Measurement)
    without, full = result.rows
    return {
        "lacking": lacking, "component": args.component, "size": args.size, "family": args.family,
        "static": args.static, "ok": not (without.failed or full.failed), "status": [without.status, full.status],
        "without_ms": without.median_ms, "all_ms": full.median_ms, "ratio": full.ratio, "error": full.error,
        "weights_mb": [weight_megabytes(folder) for folder in (less, whole)],
        "memory_mib": [without.host_later_mib, full.host_later_mib], "repeat": full.repeat, "device": full.device,
        "versions": full.versions, "measured_at": full.measured_at,
        "disturbances": [each.what for each in full.disturbances],
    }  # fmt: skip


def weight_megabytes(folder: Path) -> float:
    """Weights of a pipeline's only component, in units of 10^6 bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*.onnx.data")) / 1e6


def line(row: dict[str, Any]) -> str:
    """A row of the table; one that failed says why."""
    if not row["ok"]:
        return f"{row['lacking']:20} {'; '.join(row['status'])}"
    ratio = "{:.3f} ({:.3f} to {:.3f})".format(*row["ratio"])
    weights, memory = ("{:,.0f} / {:,.0f}".format(*row[key]) for key in ("weights_mb", "memory_mib"))
    return (
        f"{row['lacking']:20} {row['without_ms']:11,.1f} {row['all_ms']:10,.1f} {ratio:>24} {row['error']:8.1e} "
        f"{weights:>14} {memory:>14}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
