#!/usr/bin/env python3
"""Images from images, by sdort and by diffusers: every scheduler, task and family, from the same noise.

    python scripts/check_tasks.py [--steps 6] [--limit 60] [--family NAME]... [--task NAME]...
        [--scheduler NAME]... [--traces DIR]

Builds tiny pipelines with random weights of the true architectures (tests/support/task_parity.py), exports them, and
prints a table of the PSNR in dB in fp32 on the CPU. The exit code is 1 if one is below the limit. A scheduler that
needs a package which is not installed is a line of its own. It takes some minutes.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

from measuring import Arguments

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import task_parity

from sdort.console import quiet_libraries
from sdort.errors import SdortError
from sdort.samplers.scheduler_names import SAMPLERS
from sdort.verification.metrics import psnr


def cell(built: task_parity.Built, family: str, task: str, scheduler: str, steps: int) -> float | None:
    """The PSNR; None where the family does not do the task."""
    if family not in task_parity.families_of(task):
        return None
    drawn = task_parity.ours(built, task, steps=steps, seed=11, scheduler=scheduler)[0]
    wanted = task_parity.theirs(built, task, steps=steps, seed=11, scheduler=scheduler)
    return psnr(drawn, wanted) if drawn.shape == wanted.shape else 0.0


def main() -> int:
    parser = Arguments(__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--family", action="append", choices=list(task_parity.FAMILIES))
    parser.add_argument("--task", action="append", choices=list(task_parity.TASKS))
    parser.add_argument("--traces", type=Path, help="keep the exporter's traces here; by default they are thrown away")
    parser.add_argument("--scheduler", action="append", choices=list(SAMPLERS))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    low, tasks = [], args.task or list(task_parity.TASKS)
    print("| family | scheduler |", " | ".join(tasks), "|")
    print("|---|---|" + "---|" * len(tasks))
    with tempfile.TemporaryDirectory() as folder, quiet_libraries():
        for family in args.family or task_parity.FAMILIES:
            traces = args.traces or Path(folder) / "traces"
            traces.mkdir(exist_ok=True)
            built = task_parity.build(family, Path(folder) / family.replace(" ", "-"), traces)
            for scheduler in args.scheduler or SAMPLERS:
                try:
                    row = [cell(built, family, task, scheduler, args.steps) for task in tasks]
                except SdortError as error:
                    print(f"| {family} | {scheduler} | {error.message} |", flush=True)
                    continue
                low += [value for value in row if value is not None and not value >= args.limit]
                shown = ["" if value is None else f"{value:.0f}" for value in row]
                print(f"| {family} | {scheduler} |", " | ".join(shown), "|", flush=True)
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
