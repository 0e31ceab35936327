#!/usr/bin/env python3
"""Verification and benchmarks end to end on the demo model, on any CPU, in under four minutes on two cores.

    python scripts/trust.py --output DIR

The demo model is exported, optimized to FP16 and with --fp16 auto, and verified: components, images, a few prompts with
the judge. A fault is planted in a copy, which verify has to find. Then the ablation with its report and plots is
measured, saved and compared with, and ONNX Runtime beside torch and torch.compile. What each command says is checked; a
benchmark is checked for its verdicts, not for its times. It ends with 1 if a check fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measuring import Arguments

COMPONENTS = {"text_encoder", "unet", "vae_encoder", "vae_decoder"}
REFERENCES = ("ONNX", "torch")
CPU = ("--provider", "cpu")
QUICK = ("--steps", "2", "--warmup", "1", "--repeat", "5")
FAULT = "conv_out.bias"
"""The initializer of the UNet that is changed."""
JUDGED = 8

PLOTS = ("ablation-batch-1", "latency-batch-1", "memory", "images")

Check = Callable[[Any, Path], Iterator[str]]
"""Problems of a command's JSON output and of the files in its folder."""


@dataclass(frozen=True)
class Step:
    """A command, the exit code that it has to end with, and what has to be true of the JSON that it prints."""

    name: str
    words: tuple[str, ...]
    check: Check | None = None
    code: int = 0
    before: Callable[[Path], None] | None = None
    """Prepares what the command works on, in its folder."""


def main() -> int:
    parser = Arguments(__doc__)
    parser.add_argument("--output", type=Path, required=True, help="models, reports, plots and logs")
    parser.add_argument("--without", action="append", default=[], choices=[step.name for step in STEPS],
                        help="leave out a step on which no other depends (repeatable)")  # fmt: skip
    args = parser.parse_args()
    folder = args.output.resolve()
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    failed = [step.name for step in STEPS if step.name not in args.without and not run(step, folder)]
    print(f"{'all of it' if not failed else 'FAILED: ' + ', '.join(failed)}: {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


def run(step: Step, folder: Path) -> bool:
    """Run and check one step; print what came of it."""
    started, log = time.monotonic(), folder / "logs" / f"{step.name}.log"
    if step.before:
        step.before(folder)
    command = [sys.executable, "-W", "ignore", "-m", "sdort", *step.words]
    with log.open("w") as errors:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment())
    problems = [f"exit code {done.returncode}, not {step.code}: {log}"] if done.returncode != step.code else []
    if not problems and step.check:
        problems += step.check(json.loads(done.stdout), folder)
    print(f"{step.name:16} {'; '.join(problems) or 'ok':60} {time.monotonic() - started:6.1f} s", flush=True)
    return not problems


def environment() -> dict[str, str]:
    """This sdort, from whatever folder it is run."""
    here = str(Path(__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))}


def right(said: Any, folder: Path) -> Iterator[str]:
    """All components against both references on both kinds of inputs, images, and what prompts ask for."""
    compared = {(row["component"], row["inputs"], row["against"]) for row in said["components"]}
    expected = {
        (name, kind, against) for name in COMPONENTS for kind in ("random", "recorded") for against in REFERENCES
    }
    if compared != expected:
        yield f"not compared: {sorted(expected - compared)}"
    if len(said["images"]) != 2:
        yield f"{len(said['images'])} images"
    counts = said["semantic"]["counts"]
    if counts["single"][1] + counts["pair"][1] != JUDGED:
        yield f"judged: {counts}"


def found_fault(said: Any, folder: Path) -> Iterator[str]:
    """The UNet alone fails, at the node whose weight was changed."""
    if said["failed"] != ["unet"]:
        yield f"failed: {said['failed']}"
    original = onnx.load(folder / "model" / "unet" / "model.onnx", load_external_data=False)
    planted = [node.name for node in original.graph.node if FAULT in node.input]
    blamed = [finding["node"] for finding in said["findings"]]
    if blamed != planted:
        yield f"the fault was found at {blamed}, and is at {planted}"


def safe(said: Any, folder: Path) -> Iterator[str]:
    """Everything is within its limits, images too."""
    if not said["passed"] or len(said["images"]) != 2:
        yield f"failed: {said['failed']}, {len(said['images'])} images"


def stages(said: Any, folder: Path) -> Iterator[str]:
    """Every step of the ablation was made, is right and has a time."""
    if len(said["stages"]) != 9:
        yield f"{len(said['stages'])} steps"
    for stage in said["stages"]:
        rows = stage["rows"]
        if stage["problem"] or not rows or not all(row["status"] == "ok" and row["median_ms"] for row in rows):
            yield f"{stage['step']}: {stage['problem'] or [row['status'] for row in rows]}"
    plots = [f"{name}-{theme}.png" for name in PLOTS for theme in ("light", "dark")]
    yield from (f"no {name}" for name in plots if not (folder / "plots" / name).is_file())


def compared(verdict: str) -> Check:
    """All of the ablation's rows were compared; at least one with this verdict."""

    def check(said: Any, folder: Path) -> Iterator[str]:
        verdicts = [row["compared"]["verdict"] for stage in said["stages"] for row in stage["rows"]]
        if verdict not in verdicts or "not comparable" in verdicts:
            yield f"verdicts: {verdicts}"

    return check


def engines(*names: str) -> Check:
    """Every component was measured in each engine and is right."""

    def check(said: Any, folder: Path) -> Iterator[str]:
        for row in said["rows"]:
            if row["status"] != "ok":
                yield f"{row['engine']}, {row['component']}: {row['status']}"
        if [row["engine"] for row in said["rows"][: len(names)]] != list(names):
            yield f"engines: {[row['engine'] for row in said['rows']]}"

    return check


def plant(folder: Path) -> None:
    """A copy of ``fast`` with one changed weight of the UNet."""
    broken = folder / "broken"
    shutil.rmtree(broken, ignore_errors=True)
    shutil.copytree(folder / "fast", broken)
    path = broken / "unet" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    [tensor] = [weight for weight in model.graph.initializer if weight.name == FAULT]
    onnx.load_external_data_for_model(model, str(path.parent))
    changed = onnx.numpy_helper.to_array(tensor)
    tensor.CopyFrom(onnx.numpy_helper.from_array(changed + np.ones_like(changed), FAULT))
    onnx.save(model, path, save_as_external_data=False)


def hasten(folder: Path) -> None:
    """A saved benchmark that says that everything took a thousandth of the time."""
    saved = json.loads((folder / "before.json").read_text())
    for row in saved["rows"]:
        row["times_ms"] = [time / 1000 for time in row["times_ms"]]
    (folder / "hasty.json").write_text(json.dumps(saved))


RANDOM = ("--no-torch", "--inputs", "random")
FEW = ("--seeds", "1", "--steps", "8", "--json")
ABLATION = ("bench", "fast", "--ablation", "--batch-size", "1", *CPU, *QUICK, "--format", "json")
SHORT = ("--component", "text_encoder")
STEPS = (
    Step("export", ("export", "demo", "model", "--overwrite")),
    Step("optimize", ("optimize", "model", "fast", "--fp16", *CPU, "--overwrite")),
    Step("fp16-auto", ("optimize", "model", "auto", "--fp16", "auto", *CPU, "--overwrite", "--report", "auto.json")),
    Step(
        "verify",
        ("verify", "fast", *CPU, *FEW, "--semantic", "--semantic-prompts", str(JUDGED), "--report", "verify.html"),
        right,
    ),
    Step("verify-auto", ("verify", "auto", *CPU, *FEW, "--no-torch", "--inputs", "recorded"), safe),
    Step(
        "bisect",
        ("verify", "broken", *CPU, "--component", "unet", *RANDOM, "--bisect", "--json", "--no-check"),
        found_fault,
        code=5,
        before=plant,
    ),
    Step("ablation", (*ABLATION, "--report", "ablation.html", "--plots", "plots"), stages),
    Step("save", (*ABLATION, *SHORT, "--save", "before.json")),
    # A margin that no other work on the machine can use up.
    Step("compare", (*ABLATION, *SHORT, "--compare", "before.json", "--margin", "1000"), compared("same")),
    Step("compare-slower", (*ABLATION, *SHORT, "--compare", "hasty.json"), compared("slower"), code=8, before=hasten),
    Step(
        "engines",
        ("bench", "fast", "--engines", "onnxruntime,torch", *CPU, *QUICK, "--format", "json"),
        engines("onnxruntime", "torch"),
    ),
    Step(
        "compile",
        ("bench", "fast", "--engines", "onnxruntime,torch-compile", "--component", "vae_decoder", *CPU, *QUICK,
         "--format", "json"),
        engines("onnxruntime", "torch-compile"),
    ),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
