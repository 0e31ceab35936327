#!/usr/bin/env python3
"""Verification and benchmarks on one GPU: the results of sdort verify and sdort bench, in one folder.

    python scripts/gpu_trust.py --provider cuda|rocm|migraphx|cpu --output DIR [--custom-ops FILE] [--seconds 470]
        [--work DIR] [--checkpoint DIR] [--size 512x512] [--batch-size 1,8] [--steps 20] [--only STEP,...]
        [--slow 4] [--pack]

The demo model is exported, optimized, verified with its semantic score and run; then Stable Diffusion 1.5's full
architecture (random weights, or the diffusers folder in --checkpoint) and the demo model are measured: the ablation,
and ONNX Runtime beside torch and torch.compile, with plots, reports and rooflines. Every step has its own time limit
and log; one that fails or does not fit into --seconds is reported, and leaves the others their results. A second call
with the same --work goes on with what is not done yet.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from measuring import Arguments

SCRIPTS = Path(__file__).resolve().parent
ENGINES = "onnxruntime,torch,torch-compile"
SHOWN = 40
"""Lines of a failed step's log that are shown at once."""
LARGEST = 4 << 20
"""Bytes of a file that --pack takes along."""
GRACE = 10
"""Seconds that a step may take to end after its limit."""


@dataclass(frozen=True)
class Step:
    """A command with a limit in seconds. ``needs`` names the step without which it makes no sense."""

    name: str
    seconds: int
    words: list[str]
    needs: str = ""
    result: str = ""
    """The file for its stdout, if that is more than a log."""


def main() -> int:
    args = arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    args.work.mkdir(parents=True, exist_ok=True)
    runner = Runner(args)
    behind = threading.Thread(target=runner.run_all, args=(full_size(args),))
    behind.start()
    runner.run_all(right(args))
    behind.join()  # what is timed has the machine to itself
    runner.run_all(fast(args))
    return runner.close()


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "--provider --custom-ops --checkpoint --size", providers="cuda rocm migraphx cpu")
    parser.add_argument("--output", type=Path, required=True, help="reports, plots, tables and logs")
    parser.add_argument("--work", type=Path, default=Path("/tmp/sdort-trust"), help="models; several GB")
    parser.add_argument("--batch-size", default="1,8", help="of the ablations")
    parser.add_argument("--steps", default="20", help="denoising steps of what is timed")
    parser.add_argument("--repeat", default="3", help="timed calls of the full-size pipeline")
    parser.add_argument("--seconds", type=float, default=3600, help="of all steps together")
    parser.add_argument("--slow", type=float, default=1, help="multiplies each step's limit, for slow machines")
    parser.add_argument("--only", default="", help="names of steps, with what they need")
    parser.add_argument("--pack", action="store_true", help="write OUTPUT/results.tgz too, of all but large files")
    args = parser.parse_args()
    args.output, args.work = args.output.resolve(), args.work.resolve()
    args.checkpoint = args.checkpoint and args.checkpoint.resolve()
    return args


def sdort(*words: object) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "sdort", *map(str, words)]


def full_size(args: argparse.Namespace) -> Iterator[Step]:
    """The full-size model, made while the demo model is looked at."""
    full, out = args.work / "sd15", args.work / "sd15-fp16"
    yield Step("export-full", 420, sdort("export", args.checkpoint or "random:sd15", full, "--overwrite"))
    words = sdort("optimize", full, out, "--fp16", "--provider", args.provider, "--overwrite")
    yield Step("optimize-full", 120, words, "export-full")


def right(args: argparse.Namespace) -> Iterator[Step]:
    """The steps that are not timed."""
    demo, half, auto = args.work / "demo", args.work / "demo-fp16", args.work / "demo-auto"
    there = ["--provider", args.provider]
    yield Step("doctor", 60, sdort("doctor", *there))
    yield Step("export-demo", 120, sdort("export", "demo", demo, "--overwrite"))
    yield Step("optimize-demo", 60, sdort("optimize", demo, half, "--fp16", *there, "--overwrite"), "export-demo")
    scan = sdort(
        "optimize", demo, auto, "--fp16", "auto", *there, "--overwrite", "--report", args.output / "fp16-auto.json"
    )
    yield Step("fp16-auto", 120, scan, "export-demo")
    ran = [*there, "--custom-ops", args.custom_ops]
    for name, model, more in (("verify", half, ["--semantic", "--bisect"]), ("verify-auto", auto, [])):
        words = sdort("verify", model, *ran, *more, "--report", args.output / f"{name}.html", "--json")
        yield Step(name, 400 if more else 120, words, "optimize-demo" if model is half else "fp16-auto", f"{name}.json")
    words = [sys.executable, "-W", "ignore", str(SCRIPTS / "demo_sheet.py"), str(half), *ran]
    yield Step("sheet", 300, [*words, "--output", str(args.output / "demo-drawings.png")], "optimize-demo")


def fast(args: argparse.Namespace) -> Iterator[Step]:
    """The timed steps: the full-size model first."""
    demo, full = args.work / "demo-fp16", args.work / "sd15-fp16"
    size, steps = ["--size", args.size], ["--steps", args.steps]
    few = ["--warmup", "1", "--repeat", args.repeat]
    source = ["--checkpoint", str(args.checkpoint)] if args.checkpoint else []
    parts = ["--component", "unet", "--component", "vae_decoder", "--batch-size", "2"]
    ablation = ["--ablation", "--batch-size", args.batch_size]
    whole = ["--component", "pipeline"]
    yield bench(args, "engines-full", 220, full, "--engines", ENGINES, *source, *parts, *size, needs="optimize-full")
    yield bench(args, "ablation-full", 330, full, *ablation, *whole, *size, *steps, *few, needs="optimize-full")
    yield bench(args, "ablation-demo", 240, demo, *ablation, *steps, needs="optimize-demo")
    yield bench(args, "engines-demo", 240, demo, "--engines", ENGINES, *steps, needs="optimize-demo")


def bench(args: argparse.Namespace, name: str, seconds: int, model: Path, *words: str, needs: str) -> Step:
    out = args.output / name
    where = ["--provider", args.provider, "--custom-ops", args.custom_ops]
    kept = ["--report", f"{out}.html", "--plots", out, "--json", "--output", f"{out}.json"]
    return Step(name, seconds, sdort("bench", model, *words, *where, *kept), needs)


class Runner:
    """Runs steps one after the other, and keeps what came of each."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.ends = time.monotonic() + args.seconds
        self.outcomes: dict[str, str] = {}
        self.lock = threading.Lock()
        self.chosen = self._chosen()
        (args.output / "logs").mkdir(exist_ok=True)
        (args.work / "done").mkdir(exist_ok=True)

    def _chosen(self) -> set[str]:
        """The steps that were asked for, with what they need."""
        steps = {step.name: step for make in (full_size, right, fast) for step in make(self.args)}
        chosen, names = set(), list(filter(None, self.args.only.split(","))) or list(steps)
        while names:
            name = names.pop()
            if name not in steps:
                raise SystemExit(f"there is no step {name!r}; there are {', '.join(steps)}")
            chosen.add(name)
            names += [steps[name].needs] if steps[name].needs else []
        return chosen

    def run_all(self, steps: Iterator[Step]) -> None:
        for step in steps:
            if step.name in self.chosen:
                started = time.monotonic()
                outcome = self._run(step)
                with self.lock:
                    self.outcomes[step.name] = outcome
                    print(f"{step.name:16} {outcome:40} {time.monotonic() - started:6.1f} s", flush=True)
                    if outcome.startswith(("FAILED", "stopped")):
                        print(last_lines(self.args.output / "logs" / f"{step.name}.log"), flush=True)

    def _run(self, step: Step) -> str:
        done = self.args.work / "done" / step.name
        if done.exists():
            return "ok, earlier"
        if step.needs and not (self.args.work / "done" / step.needs).exists():
            return f"left out: {step.needs} is missing"
        seconds = min(step.seconds * self.args.slow, self.ends - time.monotonic() - GRACE)
        if seconds < GRACE:
            return "left out: no time left"
        code = self._call(step, seconds)
        if code == 0:
            done.touch()
            return "ok"
        return (
            f"stopped after {seconds:.0f} s" if code is None else f"FAILED with exit code {code}: logs/{step.name}.log"
        )

    def _call(self, step: Step, seconds: float) -> int | None:
        """The exit code; None if time ran out."""
        log = self.args.output / "logs" / f"{step.name}.log"
        out = self.args.output / step.result if step.result else log
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPTS), os.environ.get("PYTHONPATH", "")])}
        # One file may take both, each after what is there.
        log.unlink(missing_ok=True)
        out.unlink(missing_ok=True)
        with log.open("a") as errors, out.open("a") as output:
            process = subprocess.Popen(
                step.words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment,
                start_new_session=True, cwd=self.args.work,
            )  # fmt: skip
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # torch.compile's workers too
                process.wait()
                return None

    def close(self) -> int:
        """Write the summary; 1 if anything is not as asked."""
        (self.args.output / "summary.json").write_text(json.dumps(self.outcomes, indent=2) + "\n")
        if self.args.pack:
            pack(self.args.output)
        return 0 if all(outcome.startswith("ok") for outcome in self.outcomes.values()) else 1


def last_lines(log: Path) -> str:
    """The end of a log, set off from what is around it."""
    return "".join(
        f"    | {line}\n" for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN:]
    ).rstrip("\n")


def pack(folder: Path) -> Path:
    """Write ``results.tgz`` of what lies in a folder, without itself and what is larger than :data:`LARGEST`."""
    packed = folder / "results.tgz"
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.stat().st_size <= LARGEST]
    with tarfile.open(packed, "w:gz") as archive:
        for file in files:  # tarfile leaves out the archive itself
            archive.add(file, Path(folder.name) / file.relative_to(folder))
    print(f"packed {packed}, {packed.stat().st_size / 1e6:.1f} MB", flush=True)
    return packed


if __name__ == "__main__":
    sys.exit(main())
