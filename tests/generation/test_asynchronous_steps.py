"""Steps that return before the device is done, as on the stream of a GPU, whose work is put off here until it is waited
for: what reads or writes too early draws another image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import late_stream
from support.late_stream import LateStream
from support.tiny_pipeline import Tiny

import sdort
from sdort.errors import CancelledError
from sdort.generation.requests.request import Request
from sdort.runtime import session as session_module

OPTIONS: dict[str, Any] = {"steps": 5, "seed": 3}


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateStream:
    return late_stream.install(monkeypatch)


def draw(pipeline: Any, prompt: str = "a cat", **options: Any) -> Any:
    return np.stack([image.pixels for image in pipeline.generate(prompt, **OPTIONS | options).images])


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two images": {"num_images": 2},
    "another prompt from a step on": {"prompt": "a [cat:dog:2]"},
    "a prompt that alternates": {"prompt": "a [cat|dog]"},
    "the deep part from earlier steps": {"deep_cache": 2},
    "two passes": {"hires": 2.0, "hires_strength": 0.6},
    "noise on the way": {"scheduler": "euler-a"},
    "through the host": {"scheduler": "unipc", "steps": 7},
    "one step": {"steps": 1},
}


@pytest.mark.parametrize("devices", [None, "0,1"])
@pytest.mark.parametrize("case", CASES)
def test_images_are_the_same(
    case: str, devices: str | None, tiny: Tiny, late: LateStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = sdort.load(tiny.onnx, provider="cpu", devices=devices)
    found = [draw(pipeline, **CASES[case]) for _ in range(2)]  # the second time in the buffers of the first
    assert late.asked == []
    assert late.most <= 4  # of two steps: a sum and a run each
    with monkeypatch.context() as plain:
        plain.setattr(session_module, "open_stream", lambda *_: None)
        expected = draw(sdort.load(tiny.onnx, provider="cpu"), **CASES[case])
    for each in found:
        np.testing.assert_array_equal(each, expected)


def test_previews_are_the_same(tiny: Tiny, late: LateStream, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, list[Any]] = {}
    for name in ("late", "plain"):
        with monkeypatch.context() as patched:
            if name == "plain":
                patched.setattr(session_module, "open_stream", lambda *_: None)
            shown = found[name] = []
            draw(sdort.load(tiny.onnx, provider="cpu"), on_preview=shown.append, preview_every=2)
    assert [each.step for each in found["late"]] == [2, 4]
    for ours, theirs in zip(found["late"], found["plain"], strict=True):
        np.testing.assert_array_equal(ours.images[0], theirs.images[0])


def test_a_step_counts_when_the_device_is_done(tiny: Tiny, late: LateStream) -> None:
    pipeline = sdort.load(tiny.onnx, provider="cpu")
    left: list[int] = []
    request = Request("a cat", **OPTIONS)
    list(pipeline._models.generate(request, lambda _: left.append(sum(callable(each) for each in late.asked))))
    assert left == [2, 2, 2, 2, 0]  # the next step's sum and run


def test_a_run_that_is_stopped_leaves_no_work_behind(tiny: Tiny, late: LateStream) -> None:
    """What is freed then, or taken by the next run, is in no use any more."""

    def stop(*_: object) -> None:
        raise CancelledError("stop")

    pipeline = sdort.load(tiny.onnx, provider="cpu")
    expected = draw(pipeline)
    with pytest.raises(CancelledError):
        list(pipeline._models.generate(Request("a dog", **OPTIONS), stop))
    assert late.asked == []
    np.testing.assert_array_equal(draw(pipeline), expected)
