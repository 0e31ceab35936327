"""A disk that is full or broken at the n-th call, and writes that do half: a sentence and exit code 7, or all of it.

Every call of the cheap commands, and a seeded sample of the others'; ``SDORT_ALL_FAULTS=1`` takes every call of all.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import tiny_pipeline
from support.faults import KINDS, Ended, Faults
from support.forked import OPTIMIZING

SAMPLE = 3
"""Calls of each kind of fault, of commands that have more."""

COMMANDS = {
    "run": ("run", "{model}", "--prompt", "a", "--steps", "1", "--height", "64", "--width", "64", "--provider", "cpu",
            "--seed", "1", "-o", "new/image.png"),
    "optimize": ("optimize", "{model}", "out", "--provider", "cpu", "--component", "text_encoder",
                 "--report", "r.json"),
}  # fmt: skip
SEPARATE = ("r.json",)
"""Whole files of their own, written just before the folder that they report on takes its place."""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    modules = (
        "PIL.PngImagePlugin", "diffusers.schedulers.scheduling_ddim", "onnxruntime", "sdort.cli.optimize",
        "sdort.cli.run", "sdort.generation.command", "sdort.optimizer.command",
        "transformers.models.clip.modeling_clip",
        "transformers.models.clip.tokenization_clip", *OPTIMIZING,
    )  # fmt: skip
    with Faults(tmp_path_factory.mktemp("faults"), modules) as started:
        yield started


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_pipeline.shared(tmp_path_factory.mktemp("tiny")).onnx


def emptied(root: Path) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    (root / "tmp").mkdir(parents=True)
    return root


def results(root: Path) -> dict[str, bytes]:
    """The content of every file but of caches; numbers that differ from run to run are left out."""
    varying = re.compile(
        rb'"[a-z_]*(?:seconds|date|created|rss_mb|_s)": [^,\n]*|"changes": .*?\}|"seconds": .*?\}', re.S
    )
    return {
        str(path.relative_to(root)): varying.sub(b"", path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] != "cache" and path.name != ".ses"  # ONNX Runtime's
    }


def problems(ended: Ended, before: dict[str, bytes], whole: dict[str, bytes], kind: str) -> list[str]:
    """What is wrong with how a command ended, and with what it left; temporary files are among ``before``."""
    found = []
    if ended.code not in (0, 7) or (kind == "short" and ended.code):
        found.append(f"exit code {ended.code}")
    if "Traceback" in ended.said or "bug in sdort" in ended.said or (ended.code and "Error: " not in ended.said):
        found.append("no sentence")
    if ended.code == 0 and before.keys() != whole.keys():
        found.append(f"files: {before.keys() ^ whole.keys()}")
    if ended.code and before.keys() - {*SEPARATE}:
        found.append(f"left: {sorted(before)[:3]}")
    if ended.code == 0 and [
        name for name in whole if name.endswith((".onnx", ".data")) and before[name] != whole[name]
    ]:
        found.append("another model")
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_a_failing_disk_ends_in_a_sentence_and_leaves_nothing(
    name: str, faults: Faults, model: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    command = [str(model) if word == "{model}" else word for word in COMMANDS[name]]
    clean = faults.run(emptied(root), *command)
    assert clean.code == 0, clean.said
    whole = results(root)
    calls = [*range(1, clean.calls + 1)]
    if len(calls) > 2 * SAMPLE and not os.environ.get("SDORT_ALL_FAULTS"):
        calls = [calls[-1], *random.Random(15).sample(calls[:-1], SAMPLE)]
    wrong, struck = [], 0
    for kind in KINDS:
        for at in calls:
            ended = faults.run(emptied(root), *command, at=at, kind=kind)
            struck += bool(ended.place)
            wrong += [
                f"{kind} {ended.place}: {text}\n{ended.said}" for text in problems(ended, results(root), whole, kind)
            ]
    assert wrong == []
    assert struck == len(calls) * len(KINDS)
