"""What draws: sizes that compile do not hold it, and whether it draws is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from support.serving import Running, running

from sdort.errors import BadModelError, MemoryShortageError, ParityError, ProviderError
from sdort.generation.command import Pipeline, load_folder
from sdort.serving import engine as engines
from sdort.serving import worker
from sdort.serving.metrics import Metrics
from sdort.serving.waiting import Waiting
from sdort.serving.worker import Worker

OTHER = {"width": 64, "height": 128}


def until(found: Any, seconds: float = 20.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.01)


def drawn(served: Running, **body: Any) -> str:
    """The last event of a drawing."""
    return served.events(served.draw(**body))[-1][0]


class Compiling:
    """Second pipelines, whose first image takes until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go, self.opened, self.calls = threading.Event(), threading.Event(), 0, list[Any]()
        load = load_folder

        def opened(folder: Any, runtime: Any) -> Any:
            self.opened += 1
            pipeline: Any = load(folder, runtime)
            own = pipeline.generate_job

            def generate(job: Any, *more: Any) -> Any:
                self.calls.append((job.requests[0].height, job.images))
                self.begun.set()
                assert self.go.wait(30)
                return own(job, *more)

            pipeline.generate_job = generate
            return pipeline

        monkeypatch.setattr(engines, "load_folder", opened)


@pytest.fixture
def served(pipeline: Path) -> Iterator[Running]:
    with running(pipeline, any_size=True, batch_wait=0.0) as found:
        yield found


def test_no_request_waits_behind_a_compilation(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    compiling = Compiling(monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        new = pool.submit(drawn, served, **OTHER)
        assert compiling.begun.wait(20)
        another = pool.submit(drawn, served, width=128, height=64)
        for _ in range(3):
            assert drawn(served) == "done"  # a size that is warm, while one compiles and another waits to be
        assert not new.done()
        assert compiling.calls == [(128, 1)]
        compiling.go.set()
        assert [new.result(30), another.result(30)] == ["done", "done"]
    # With the client's image all numbers of its size are compiled; the first pipeline then draws it.
    until(lambda: len(compiling.calls) == 6)
    assert compiling.calls == [(128, 1), (128, 1), (128, 4), (64, 1), (64, 1), (64, 4)]
    assert drawn(served, **OTHER) == "done"
    assert (compiling.opened, len(compiling.calls)) == (2, 6)


def test_without_room_for_a_second_pipeline_the_first_one_draws_new_sizes(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling = Compiling(monkeypatch)
    monkeypatch.setattr(served.engine, "_has_room", lambda model, size: False)
    assert [drawn(served, **OTHER), drawn(served)] == ["done", "done"]
    assert compiling.opened == 0


def test_without_second_pipelines_one_of_several_engines_compiles_at_a_time() -> None:
    engines: list[Any] = [Mock(has_second=False), Mock(has_second=False)]
    model: Any = SimpleNamespace(name="m", sizes=[(64, 64)], any_size=True)
    own = Worker(engines, [model], Waiting(1, [1], 0.0), lambda *_: None, Metrics([1], int, int, None))
    warm, new = (Mock(model=model, requests=[Mock(height=64, width=width)]) for width in (64, 128))
    first, second = own._lanes
    assert [own._rank(lane, each) for lane in (first, second) for each in (warm, new)] == [0, 1, 0, 1]
    own._begin(first, new)
    assert [own._rank(lane, each) for lane in (first, second) for each in (warm, new)] == [0, 1, 0, None]


@pytest.mark.parametrize("broken", [1, 2])
def test_an_engine_that_does_not_start_leaves_the_others(broken: int) -> None:
    waiting, ended = Waiting(1, [1], 0.0), threading.Event()

    def engine(error: Exception | None) -> Any:
        def start() -> bool:
            if error:
                raise error
            return False

        return SimpleNamespace(has_second=False, start=start, close=lambda: None)

    errors = [BadModelError("broken")] * broken + [None] * (2 - broken)
    own = Worker([*map(engine, errors)], [], waiting, lambda *_: None, Metrics([1], int, int, None))
    own.on_end = ended.set
    own.start()
    assert ended.wait(0.3) == (broken == 2)
    assert own.sound == 2 - broken
    waiting.close()
    own.join(10)
    assert ended.is_set()
    assert own.failure is errors[1]


def test_what_an_engine_has_taken_when_it_ends_is_another_ones() -> None:
    """An engine that is found dead when images are there for it, and does not start again."""
    waiting = Waiting(1, [1], 0.0)
    starts = iter([True])

    def start() -> bool:
        if next(starts, None) is None:
            raise ProviderError("its GPU is gone")
        return True

    dying: Any = SimpleNamespace(has_second=False, start=start, close=lambda: None)
    own = Worker([dying], [], waiting, lambda *_: None, Metrics([1], int, int, None))
    own.start()
    until(lambda: own.sound == 1)
    drawing: Any = Mock(begun=0.0, keys=["x"], requests=[Mock(height=64, width=64)])
    drawing.unwanted.is_set.return_value = False
    waiting.reserve()
    waiting.put(drawing)
    own.join(10)
    assert waiting.clear() == [drawing]


class Failing:
    """Pipelines that raise what is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        own = Pipeline.generate_job

        def generate(pipeline: Pipeline, *arguments: Any) -> Any:
            if self.error:
                raise self.error
            return own(pipeline, *arguments)

        monkeypatch.setattr(Pipeline, "generate_job", generate)


def state(served: Running) -> tuple[int, str | None, str]:
    """The answer of ``/ready``, its reason, and the number of workers in the metrics."""
    answer = served.client.get("/ready")
    (count,) = (line for line in served.client.get("/metrics").text.splitlines() if line.startswith("sdort_workers "))
    return answer.status_code, answer.json().get("reason"), count.split()[1]


def test_a_server_whose_provider_fails_is_not_ready_until_it_draws_again(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_LOOK", 0.05)
    with running(pipeline, batch_wait=0.0) as served:
        failing = Failing(monkeypatch)
        assert state(served) == (200, None, "1.0")
        failing.error = ProviderError(f"the device is lost, below {pipeline}")
        assert drawn(served) == "failed"
        until(lambda: state(served)[0] == 503)
        assert state(served) == (503, f"the device is lost, below {pipeline.name}", "0.0")
        failing.error = None  # nobody asks: it sees by itself that it draws again
        until(lambda: state(served) == (200, None, "1.0"))
        assert drawn(served) == "done"


def test_errors_of_an_image_leave_a_server_ready_but_for_shortages_that_repeat(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_LOOK", 60.0)
    with running(pipeline, batch_wait=0.0) as served:
        failing = Failing(monkeypatch)
        for error in (ParityError("NaN"), MemoryShortageError("no room"), MemoryShortageError("no room")):
            failing.error = error
            assert drawn(served) == "failed"
            assert state(served)[0] == 200
        failing.error = MemoryShortageError("no room")
        assert drawn(served) == "failed"
        until(lambda: state(served)[:2] == (503, "no room"))
        failing.error = None
        assert drawn(served) == "done"  # an image that a client asks for
        until(lambda: state(served)[0] == 200)
