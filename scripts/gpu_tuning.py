#!/usr/bin/env python3
"""Tuning that is carried to an empty cache, for real: warm, export, import, and runs that use it without tuning.

    python scripts/gpu_tuning.py --work DIR [--provider cuda|rocm] [--exported DIR] [--custom-ops FILE] [--size 256x256]

Every step is a command in a process of its own, on the demo pipeline (or --exported, from sdort export), with caches
in DIR. Prints a line per step; exit code 1 if one did not do what it should. On the CPU nothing is tuned, so runs there
use nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from measuring import Arguments, timed

from sdort.errors import ProviderError
from sdort.operator_library.library import OFF, resolve


class Steps:
    """Commands of sdort with a cache in ``work``, and what they should have done."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.work: Path = args.work
        self.cache = self.work / "cache"
        self.passed = True
        self.seconds = 0.0  # of the last command
        # By path: the cache that moves away is where a built library is looked for.
        library = resolve(args.custom_ops)
        self.library = OFF if library is None else str(library)
        self.tunes = args.provider != "cpu"
        self.place = ["--provider", args.provider, "--custom-ops", self.library]

    def sdort(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache)}
        command = [sys.executable, "-m", "sdort", *arguments]
        run = partial(subprocess.run, command, env=environment, capture_output=True, text=True)
        done: subprocess.CompletedProcess[str]
        done, self.seconds = timed(run)
        return done

    def expect(self, what: str, good: bool, done: subprocess.CompletedProcess[str]) -> None:
        self.passed &= good
        print(f"{'ok    ' if good else 'FAILED'} {self.seconds:5.1f} s  {what}", flush=True)
        if not good:
            print(f"exit code {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")

    def statuses(self, pipeline: Path, size: str) -> tuple[list[str], subprocess.CompletedProcess[str]]:
        """The status of each component after a warm-up."""
        done = self.sdort("warm", str(pipeline), "--size", size, *self.place, "--json")
        return [item["status"] for item in json.loads(done.stdout)["items"]] if not done.returncode else [], done

    def files(self) -> dict[str, bytes]:
        """All that is kept; not the store's lock, which looking for something there makes."""
        folder = self.cache / "sdort" / "tuning"
        files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def main() -> int:
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    steps = Steps(args)
    fast, other = prepare(steps, args)
    warm_and_export(steps, fast, args.size)
    carried = import_again(steps, fast, args.size)
    run_pipelines(steps, fast, other, args.size, carried)
    return 0 if steps.passed else 1


def arguments() -> argparse.Namespace:
    parser = Arguments(
        __doc__, "--work --provider --custom-ops --size", providers="cuda rocm migraphx cpu", size="256x256"
    )
    parser.add_argument("--exported", type=Path, help="a pipeline from sdort export, instead of the demo")
    return parser.parse_args()


def prepare(steps: Steps, args: argparse.Namespace) -> tuple[Path, Path]:
    """The pipeline in fp16, and another model: the same in fp32."""
    exported = args.exported or steps.work / "exported"
    fast, other = steps.work / "fp16", steps.work / "fp32"
    if not exported.exists():
        done = steps.sdort("export", "demo", str(exported))
        steps.expect("sdort export demo", done.returncode == 0, done)
    for folder, precision in ((fast, ["--fp16"]), (other, [])):
        if not folder.exists():
            done = steps.sdort("optimize", str(exported), str(folder), "--provider", args.provider, *precision)
            steps.expect(f"sdort optimize {folder.name}", done.returncode == 0, done)
    for left in (steps.cache, steps.work / "away", steps.work / "tuned.tar"):
        shutil.rmtree(left, ignore_errors=True)
        left.unlink(missing_ok=True)
    return fast, other


def warm_and_export(steps: Steps, fast: Path, size: str) -> None:
    statuses, done = steps.statuses(fast, size)
    steps.expect(f"warm in an empty cache tunes every component: {statuses}", {*statuses} == {"new"}, done)
    done = steps.sdort("tuning", "export", str(steps.work / "tuned.tar"))
    steps.expect("tuning export", done.returncode == 0, done)
    kept = steps.files()
    tables = sum(content.count(b"\n") for name, content in kept.items() if name.endswith(".tsv"))
    print(f"       {len(kept)} files kept, {sum(map(len, kept.values()))} bytes, {tables} lines of kernel choices")


def import_again(steps: Steps, fast: Path, size: str) -> dict[str, bytes]:
    """Into an empty cache: refused with another library of operators, accepted with the same; what is there then."""
    archive = str(steps.work / "tuned.tar")
    steps.cache.rename(steps.work / "away")
    if steps.library != OFF:
        done = steps.sdort("tuning", "import", archive, "--custom-ops", OFF)
        refused = done.returncode == ProviderError.exit_code and "custom_ops is" in done.stderr and not steps.files()
        steps.expect("tuning import is refused where the operators are others", refused, done)
    done = steps.sdort("tuning", "import", archive, "--custom-ops", steps.library)
    steps.expect("tuning import is accepted", done.returncode == 0, done)
    carried = steps.files()
    statuses, done = steps.statuses(fast, size)
    steps.expect(f"warm finds nothing to do: {statuses}", {*statuses} == {"kept"}, done)
    return carried


def run_pipelines(steps: Steps, fast: Path, other: Path, size: str, carried: dict[str, bytes]) -> None:
    """A run of the model uses what was imported and tunes nothing; a run of another model does not use it."""
    for folder, uses in ((fast, 3 if steps.tunes else 0), (other, 0)):
        image = steps.work / f"{folder.name}.png"
        asked: list[Any] = ["--prompt", "a red circle", "--size", size, "--steps", "2"]
        done = steps.sdort(
            "run", str(folder), *asked, *steps.place, "-o", str(image), "--overwrite", "--seed", "1", "-v"
        )
        used = done.stderr.count("tuned before, ")
        good = done.returncode == 0 and used == uses and steps.files() == carried
        steps.expect(f"run of {folder.name} uses {used} bundles of 3 and leaves all as it was", good, done)


if __name__ == "__main__":
    sys.exit(main())
