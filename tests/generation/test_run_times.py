"""Seconds of earlier runs: what a run of the same kind will take, and nothing where there was none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.generation import run_times
from sdort.generation.requests.request import Request
from sdort.generation.run_times import OFFLOADED, keep_speed, known_seconds


@pytest.fixture(autouse=True)
def _stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_times, "total_calls", lambda steps: steps)


def job(count: int = 1, **options: Any) -> Any:
    request = Request("a", num_images=count, **options)
    return SimpleNamespace(requests=[request], images=count)


def result(count: int, calls: int, memory: str = "normal") -> Any:
    """2 s of loading, with low memory on the way; 0.5 s of encoding a batch, 3 s a call, 1 s of decoding an image."""
    seconds = SimpleNamespace(load=2.0, encode=0.5 * -(-count // 4), denoise=3.0 * calls, decode=1.0 * count)
    opened = [] if memory == "normal" else [SimpleNamespace(seconds=1.5), SimpleNamespace(seconds=0.5)]
    seconds.load = 2.0 if memory == "normal" else 0.0
    offloaded = object() if memory == OFFLOADED else None
    return SimpleNamespace(
        images=[object()] * count, seconds=seconds, provider="cpu", device="a processor", opened=opened,
        memory="low" if offloaded else memory, offloaded=offloaded,
    )  # fmt: skip


FOLDER: Any = SimpleNamespace(model_hash="hash", default_size=(512, 512))


def known(*jobs: Any, folder: Any = FOLDER, provider: str = "cpu", device: str = "a processor") -> float | None:
    return known_seconds(folder, jobs, plans(jobs), provider, device)


def keep(jobs: Sequence[Any], found: Any) -> None:
    keep_speed(FOLDER, jobs, plans(jobs), found)


def plans(jobs: Sequence[Any]) -> Any:
    return [SimpleNamespace(stages=each.requests[0].steps) for each in jobs]


def test_the_last_run_of_a_kind_tells_what_the_next_takes() -> None:
    assert known(job(steps=8)) is None
    keep([job(steps=4)], result(1, 4))
    assert known(job(steps=8)) == pytest.approx(2 + 0.5 + 8 * 3 + 1), "other steps"
    assert known(job(steps=8), job(steps=4)) == pytest.approx(2 + 2 * 0.5 + 12 * 3 + 2 * 1), "loaded once"
    assert known(job(steps=8, width=512, height=512)) == known(job(steps=8)), "the model's own size"


@pytest.mark.parametrize(("kind", "other"), [("low", OFFLOADED), (OFFLOADED, "low")])
def test_with_low_memory_each_job_loads(kind: str, other: str) -> None:
    jobs = [job(steps=8), job(steps=4)]
    keep([job(steps=4)], result(1, 4, kind))
    assert known(job(steps=4)) is None
    found, unknown = (known_seconds(FOLDER, jobs, plans(jobs), "cpu", "a processor", each) for each in (kind, other))
    assert found == pytest.approx(2 * 2 + 2 * 0.5 + 12 * 3 + 2 * 1)
    assert unknown is None


@pytest.mark.parametrize(
    "other",
    [{"width": 768}, {"height": 768}, {"guidance_scale": 1.0}, {"count": 2}],
    ids=["width", "height", "guidance", "batch"],
)
def test_another_kind_is_not_known(other: dict[str, Any]) -> None:
    keep([job(steps=4)], result(1, 4))
    assert known(job(steps=4)) is not None
    assert known(job(steps=4, **other)) is None


def test_another_pipeline_provider_or_device_is_not_known() -> None:
    keep([job(steps=4)], result(1, 4))
    assert known(job(steps=4), folder=SimpleNamespace(model_hash="other", default_size=(512, 512))) is None
    assert known(job(steps=4), provider="cuda") is None
    assert known(job(steps=4), device="another") is None


def test_a_smaller_last_batch_takes_its_share() -> None:
    keep([job(4, steps=4)], result(4, 4))
    assert known(job(6, steps=4)) == pytest.approx(2 + 2 * 0.5 + 4 * 3 * 1.5 + 6 * 1)


def test_what_takes_more_than_steps_is_not_remembered() -> None:
    made = job(steps=4)
    made.requests[0] = replace(made.requests[0], hires=2.0)
    keep([made], result(1, 4))
    keep([job(steps=4), job(steps=4)], result(1, 4))
    assert known(job(steps=4)) is None
