"""One pipeline, many threads: everybody gets what was asked for, in turn, or an answer in words."""

from __future__ import annotations

import asyncio
import gc
import io
import multiprocessing
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.tiny_pipeline import Tiny

import sdort
from sdort.errors import CancelledError, UsageError
from sdort.generation.call_queue import CallQueue

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

# --- the turns themselves ---


def test_turns_come_in_the_order_of_the_calls() -> None:
    turns, order, together = CallQueue(), list[int](), list[int]()
    inside = 0

    def call(number: int) -> None:
        nonlocal inside
        with turns.take():
            inside += 1
            together.append(inside)
            order.append(number)
            time.sleep(0.001)
            inside -= 1

    with turns.take():
        threads = [threading.Thread(target=call, args=(number,)) for number in range(20)]
        for count, thread in enumerate(threads, 2):
            thread.start()
            while len(turns._calls) < count:
                time.sleep(0.0001)
    for thread in threads:
        thread.join()
    assert order == [*range(20)]
    assert together == [1] * 20


def test_a_call_that_fails_gives_its_turn_away() -> None:
    turns = CallQueue()
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"), turns.take():
            raise ValueError("bad")


def test_a_call_inside_of_a_call_is_refused_and_ends_nothing() -> None:
    turns = CallQueue()
    with turns.take(), pytest.raises(UsageError, match="from inside of its own call"), turns.take():
        pass
    with turns.take():
        pass


def test_a_call_that_waits_can_be_cancelled() -> None:
    turns, cancel, ends = CallQueue(), threading.Event(), list[str]()

    def call(event: threading.Event | None) -> None:
        try:
            with turns.take(event):
                ends.append("ran")
        except CancelledError:
            ends.append("cancelled")

    with turns.take():
        threads = [threading.Thread(target=call, args=(event,)) for event in (cancel, None)]
        for thread in threads:
            thread.start()
        cancel.set()
        threads[0].join(10)
        assert ends == ["cancelled"]
    threads[1].join(10)
    assert ends == ["cancelled", "ran"]
    with pytest.raises(CancelledError), turns.take(cancel):
        pass
    assert not turns._calls


def in_a_fork(turns: CallQueue, ends: Any) -> None:
    try:
        with turns.take():
            ends.send("ran")
    except UsageError as error:
        ends.send(error.message)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_is_told(held: bool) -> None:
    """Also where a thread held the turn when it was forked, which nobody gives back there."""
    context, turns = multiprocessing.get_context("fork"), CallQueue()
    if held:
        turns._changed.acquire()
    ours, theirs = context.Pipe()
    process = context.Process(target=in_a_fork, args=(turns, theirs))
    process.start()
    assert ours.poll(60)
    assert "from which this one was forked" in ours.recv()
    process.join(60)


# --- the pipeline ---

CALLS: list[dict[str, Any]] = [
    {"prompt": "a red star", "steps": 2, "seed": 1},
    {"prompt": "a blue circle", "steps": 3, "seed": 2, "height": 72, "width": 40},
    {"prompt": ["a", "b"], "steps": 2, "seed": 5, "scheduler": "euler-a", "num_images": 2},
    {"prompt": "a green square", "steps": 4, "seed": 1, "guidance_scale": 1.0, "scheduler": "ddim"},
]


@pytest.fixture
def pipeline(tiny: Tiny) -> Iterator[sdort.Pipeline]:
    with sdort.load(tiny.onnx, provider="cpu") as loaded:
        yield loaded


def drawn(pipeline: sdort.Pipeline, call: dict[str, Any], **more: Any) -> list[Any]:
    return [image.pixels for image in pipeline.generate(**call, **more).images]


def test_every_thread_gets_the_images_of_its_own_call(pipeline: sdort.Pipeline) -> None:
    """With the progress and the previews of its own, and its own error."""
    alone = [drawn(pipeline, call) for call in CALLS]

    def work(number: int) -> None:
        call, seen = CALLS[number % len(CALLS)], list[tuple[float, float]]()
        previews: list[Any] = []
        if number % 5 == 4:
            with pytest.raises(UsageError, match="no scheduler"):
                pipeline.generate("a", scheduler="of nobody", height=64, width=64)
            return
        made = drawn(
            pipeline, call, on_progress=lambda *at: seen.append(at), on_preview=previews.append, preview_every=1
        )
        for one, other in zip(made, alone[number % len(CALLS)], strict=True):
            np.testing.assert_array_equal(one, other)
        assert seen[-1][0] == seen[-1][1] == len(made) * call["steps"]
        assert {preview.images[0].shape[0] * 4 for preview in previews} == {
            call.get("height", pipeline.default_size[0])
        }

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, number) for number in range(12)]:
            done.result()


def test_a_call_is_cancelled_by_another_thread(pipeline: sdort.Pipeline, tmp_path: Path) -> None:
    """The images until then are written, and the next call is not touched."""
    cancel, alone = threading.Event(), drawn(pipeline, CALLS[0])

    def look(done: float, total: float) -> None:
        if done >= 3:  # in the second image
            threading.Thread(target=cancel.set).start()
            cancel.wait(10)

    with pytest.raises(CancelledError):
        pipeline.generate(
            "a", steps=2, seed=3, num_images=3, images_at_once=1, cancel=cancel, on_progress=look,
            output=tmp_path / "a.png",
        )  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["a-1.png"]
    np.testing.assert_array_equal(drawn(pipeline, CALLS[0]), alone)
    with pytest.raises(CancelledError):
        pipeline.generate("a", cancel=cancel)


def test_a_closed_pipeline_gives_its_memory_back_and_says_so(tiny: Tiny) -> None:
    with sdort.load(tiny.onnx, provider="cpu") as pipeline:
        drawn(pipeline, CALLS[0])
        sessions = [weakref.ref(session) for session in pipeline._models.sessions.values()]
    pipeline.close()
    gc.collect()
    assert [session() for session in sessions] == [None] * len(sessions)
    calls: list[Callable[[], object]] = [lambda: pipeline.generate("a"), lambda: pipeline.default_size]
    for call in calls:
        with pytest.raises(UsageError, match="the pipeline is closed"):
            call()
    assert pipeline.provider == "cpu"


def test_an_event_loop_goes_on_meanwhile(pipeline: sdort.Pipeline) -> None:
    alone = [drawn(pipeline, call) for call in CALLS]

    async def all_at_once() -> list[Any]:
        return [*await asyncio.gather(*(asyncio.to_thread(drawn, pipeline, call) for call in CALLS))]

    for one, other in zip(asyncio.run(all_at_once()), alone, strict=True):
        np.testing.assert_array_equal(one, other)


def test_images_go_to_open_files(pipeline: sdort.Pipeline, tmp_path: Path) -> None:
    result = pipeline.generate(**CALLS[0])
    [path] = result.save(tmp_path / "a.png")
    for saved in (result, result.images[0]):
        file = io.BytesIO()
        assert not saved.save(file)
        assert file.getvalue() == path.read_bytes()
    np.testing.assert_array_equal(np.asarray(Image.open(path)), result.images[0].pixels)
    with pytest.raises(UsageError, match="takes one image, and there are 4"):
        pipeline.generate(**CALLS[2]).save(io.BytesIO())
