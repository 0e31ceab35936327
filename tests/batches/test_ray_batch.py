"""Batches on workers of Ray: the images of a batch without them, whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.tiny_pipeline import Tiny

import sdort
from sdort.batches import ray_pool
from sdort.batches.journal import IMAGES, SET_ASIDE
from sdort.batches.ray_cluster import LOCAL, connected
from sdort.batches.worker import Answer, Worker
from sdort.generation.job import Job
from sdort.providers.runtime_options import RuntimeOptions

# Not imported: it reads its settings then.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install ray"),
]

SETTINGS: Mapping[str, Any] = {"provider": "cpu", "steps": 1, "guidance_scale": 1.5, "height": 64, "width": 64}
LINES: list[dict[str, Any]] = [{"prompt": f"number {number}", "num_images": 1 + number % 2} for number in range(16)]


@pytest.fixture(scope="module")
def own_ray() -> Iterator[Any]:
    """A Ray of two CPUs, which all batches of this process then use."""
    with connected(LOCAL, RuntimeOptions("cpu"), 2) as ray:
        yield ray


@pytest.fixture(scope="module")
def whole(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The batch without workers."""
    out = tmp_path_factory.mktemp("whole") / "out"
    sdort.batch(tiny.onnx, written(out.parent, LINES), out, **SETTINGS)
    return out


def written(folder: Path, lines: list[dict[str, Any]]) -> Path:
    path = folder / "q.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def entries(out: Path, name: str = IMAGES) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


def images(out: Path) -> list[tuple[str, int, str, bytes]]:
    """What the journal says of each image, in the order of the lines, and its file."""
    return sorted(
        (each["id"], each["index"], each["sha256"], (out / each["file"]).read_bytes()) for each in entries(out)
    )


def test_the_images_are_those_without_workers_and_bad_lines_are_set_aside(
    own_ray: Any, tiny: Tiny, whole: Path, tmp_path: Path
) -> None:
    bad = [{"prompt": "a", "steps": 0}, {"prompt": "a", "clip_skip": 12}]  # the worker finds the second one
    path, out = written(tmp_path, [*LINES, *bad]), tmp_path / "out"
    report = sdort.batch(tiny.onnx, path, out, **SETTINGS, ray="local", workers=2)
    assert (report.images, report.set_aside, report.provider) == (24, 2, "cpu")
    assert images(out) == images(whole)
    assert [each["line"] for each in entries(out, SET_ASIDE)] == [17, 18]
    again = sdort.batch(tiny.onnx, path, out, **SETTINGS)  # without workers the folder goes on
    assert (again.images, again.done_before) == (0, 24)


def test_a_worker_that_is_killed_is_replaced_and_nothing_lost_or_doubled(
    own_ray: Any, tiny: Tiny, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = tmp_path / "died"

    class Mortal(Worker):
        """Its process is killed at its second part, once of all workers."""

        parts = 0

        def draw(self, job: Job) -> Answer:
            self.parts += 1
            if self.parts == 2 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().draw(job)

    monkeypatch.setattr(ray_pool, "Worker", Mortal)
    path, out = written(tmp_path, LINES), tmp_path / "out"
    report = sdort.batch(tiny.onnx, path, out, **SETTINGS, ray="local", workers=1)
    assert died.exists()
    assert (report.images, report.set_aside) == (24, 0)
    assert images(out) == images(whole)


def test_a_killed_driver_takes_its_ray_along_and_the_folder_goes_on(
    own_ray: Any, tiny: Tiny, whole: Path, tmp_path: Path
) -> None:
    path, out = written(tmp_path, LINES), tmp_path / "out"
    words = [sys.executable, "-m", "sdort", "batch", tiny.onnx, "--prompts", path, "--out", out, "--provider", "cpu"]
    words += ["--steps", "1", "--guidance-scale", "1.5", "--size", "64x64", "--workers", "1", "--ray"]
    driver = subprocess.Popen([*map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while driver.poll() is None and not ((out / IMAGES).exists() and (out / IMAGES).stat().st_size):
        assert time.monotonic() < end
        time.sleep(0.005)
    # Ray's agents look for their parent every few seconds, and are not waited for.
    started = [each for each in psutil.Process(driver.pid).children(recursive=True) if "Agent" not in each.name()]
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    assert any("raylet" in process.name() for process in started)
    before = len((out / IMAGES).read_bytes().splitlines())
    assert 0 < before < 24
    report = sdort.batch(tiny.onnx, path, out, **SETTINGS, ray="local", workers=1)
    assert before - 1 <= report.done_before  # but a line that was cut off
    assert report.done_before + report.images == 24
    assert images(out) == images(whole)
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive
