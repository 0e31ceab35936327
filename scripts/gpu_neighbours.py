#!/usr/bin/env python3
"""Neighbours on one GPU: concurrent sessions in threads and processes; each must make progress and be right.

    python scripts/gpu_neighbours.py --work DIR [--provider cuda|rocm|cpu] [--sessions 1,2,3,6,12] [--processes 1,2]
        [--modes stream,graph] [--parts vae,mixed] [--family sd15] [--size 512x512] [--seconds 8] [--stall 30]
        [--custom-ops FILE] [--json FILE]

Stable Diffusion 1.5's full architecture with seeded random weights, fp16, static: the decoder of 512x512 images, alone
("vae") or half of the sessions each with a UNet's step ("mixed"). Every session has inputs of its own and runs in a
thread of its own; every result must have the bits that the session had when it ran alone. A configuration ends as
"done"; as "hang" if no session ended a run for --stall seconds, and its processes are killed; or as "died" with the
exit code of a process that ended before its time. The exit code is 1 if one is not done, or a result is wrong. Runs a
second are those of all sessions together.

--provider cpu --family tiny --size 64x64 --modes stream tries all of it without a GPU; its times say nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Arguments

BATCHES = {"vae_decoder": 1, "unet": 2}
OPENING = 60
"""Seconds that sessions may take to open, beside --stall."""


def main() -> int:
    args = arguments()
    if args.worker:
        return work(args)
    args.work.mkdir(parents=True, exist_ok=True)
    args.models = {part: model(part, args) for part in ("vae_decoder", "unet")}
    rows = [
        measure(args, mode, part, processes, sessions)
        for mode in args.modes.split(",")
        for part in args.parts.split(",")
        for processes in map(int, args.processes.split(","))
        for sessions in map(int, args.sessions.split(","))
        if sessions >= processes
    ]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))
    return 0 if all(row["ok"] for row in rows) else 1


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "--work --provider --family --size --custom-ops --json", providers="cuda rocm cpu")
    parser.add_argument("--sessions", default="1,2,3,6,12", help="in all, over the processes")
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--modes", default="stream,graph", help="run by run, or recorded and replayed")
    parser.add_argument("--parts", default="vae,mixed")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--stall", type=float, default=30.0)
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)  # the models of one process's sessions
    return parser.parse_args()


def model(part: str, args: argparse.Namespace) -> Path:
    from gpu_benchmark import make_checkpoint, optimized

    args.batch = BATCHES[part]
    checkpoint = make_checkpoint(args.family, args.work / f"checkpoint-{args.family}")
    return optimized(part, checkpoint, args, static=True)


def measure(args: argparse.Namespace, mode: str, part: str, processes: int, sessions: int) -> dict[str, Any]:
    """One configuration: its processes are started, wait for each other, run for a while, and say what they did."""
    parts = ["unet" if part == "mixed" and i % 2 else "vae_decoder" for i in range(sessions)]
    workers = [Worker(args, mode, parts[i::processes]) for i in range(processes)]
    try:
        ready = all(worker.wait_for("ready") for worker in workers)
        for worker in workers:
            worker.tell("go")
        done = ready and all(worker.wait_for("done") for worker in workers)
        end = "done" if done else next(filter(None, (worker.death() for worker in workers)), "hang")
    finally:
        for worker in workers:
            worker.end()
    runs = sum(worker.runs for worker in workers)
    row = {
        "mode": mode, "part": part, "processes": processes, "sessions": sessions, "end": end,
        "runs": runs, "wrong": sum(worker.wrong for worker in workers), "runs a second": round(runs / args.seconds, 1),
        "ok": done and runs > 0 and not any(worker.wrong for worker in workers),
    }  # fmt: skip
    print(json.dumps(row), flush=True)
    return row


class Worker:
    """A process with sessions, seen from outside: a line says how it goes; silence for too long means that it hangs."""

    def __init__(self, args: argparse.Namespace, mode: str, parts: list[str]) -> None:
        command = [sys.executable, __file__, "--work", str(args.work), "--provider", args.provider]
        command += ["--custom-ops", str(args.custom_ops), "--modes", mode, "--seconds", str(args.seconds)]
        command += ["--size", args.size, "--worker", json.dumps([[part, str(args.models[part])] for part in parts])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.stall = args.stall
        self.runs = self.wrong = 0
        self.seen: set[str] = set()
        self.last = time.monotonic() + OPENING
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            word, *numbers = line.split()
            if word == "runs":
                runs, wrong = map(int, numbers)
                if runs > self.runs:
                    self.last = time.monotonic()
                self.runs, self.wrong = runs, wrong
            else:
                self.seen.add(word)
                self.last = time.monotonic()

    def wait_for(self, word: str) -> bool:
        while word not in self.seen and self.process.poll() is None and time.monotonic() - self.last < self.stall:
            time.sleep(0.05)
        return word in self.seen

    def death(self) -> str:
        """How a process ended that has not done its work; nothing while it runs."""
        code = self.process.poll()
        return "" if code is None or "done" in self.seen else f"died with exit code {code}"

    def tell(self, word: str) -> None:
        self.last = time.monotonic()
        if self.process.stdin:
            with suppress(BrokenPipeError):  # it died
                print(word, file=self.process.stdin, flush=True)

    def end(self) -> None:
        if "done" not in self.seen:
            self.process.kill()
        self.process.wait()


class Runner(threading.Thread):
    """A session with inputs and outputs on the device, in a thread of its own: what it gives alone, and then always.

    ONNX Runtime records a graph for one thread, and nothing else may use the device meanwhile: threads take turns to
    record, and wait for each other before they go on.
    """

    recording = threading.Lock()
    EVERY = 8
    """Runs between two whose result is looked at: a copy to the host waits, and keeps the others from their work."""

    def __init__(self, part: str, path: str, args: argparse.Namespace, seed: int, all_ready: threading.Barrier) -> None:
        super().__init__()
        from sdort.options.number_ranges import parse_size
        from sdort.pipelines.folder import open_folder
        from sdort.providers import find_provider
        from sdort.providers.runtime_options import RuntimeOptions
        from sdort.runtime.session import open_session
        from sdort.workload.cases import Case, make_feeds

        options = RuntimeOptions(args.provider, custom_ops=args.custom_ops, graph=args.modes == "graph")
        session = open_session(Path(path), part, find_provider(args.provider), options)
        factor = open_folder(Path(path).parents[1], ()).vae_factor
        case = Case(part, BATCHES[part], *parse_size(args.size), seed=seed)
        self.binding = session.bind(make_feeds(case, session.inputs, factor))
        self.all_ready, self.seconds = all_ready, args.seconds
        self.runs = self.wrong = 0
        self.failed = False

    def bits(self) -> bytes:
        """The output of the last run: bits are compared, as a NaN would be equal to nothing."""
        (output,) = self.binding.outputs().values()
        return output.tobytes()

    def run(self) -> None:
        try:
            self.work()
        except BaseException:
            self.failed = True
            self.all_ready.abort()
            raise

    def work(self) -> None:
        with self.recording:
            for _ in range(3):
                self.binding.run()
            expected = self.bits()
        (output,) = self.binding.outputs().values()
        assert np.isfinite(output.astype(np.float32)).all(), "the model gives no finite numbers"
        self.all_ready.wait()
        self.all_ready.wait()
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            for _ in range(self.EVERY):
                self.binding.run()
                self.runs += 1
            self.wrong += self.bits() != expected


def work(args: argparse.Namespace) -> int:
    if args.provider != "cpu":
        import torch  # noqa: F401  loads the CUDA libraries that ONNX Runtime needs

    models = json.loads(args.worker)
    all_ready = threading.Barrier(len(models) + 1)
    runners = [Runner(part, path, args, seed, all_ready) for seed, (part, path) in enumerate(models)]
    for runner in runners:
        runner.start()
    all_ready.wait()
    print("ready", flush=True)
    sys.stdin.readline()
    all_ready.wait()
    going = True
    while going:
        going = any(runner.is_alive() for runner in runners)
        print("runs", sum(runner.runs for runner in runners), sum(runner.wrong for runner in runners), flush=True)
        time.sleep(0.5 if going else 0)
    if any(runner.failed for runner in runners):
        return 1
    print("done", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
