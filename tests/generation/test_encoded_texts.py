"""Texts that an image has in common with an earlier one are not encoded again, and the image is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.tiny_pipeline import Tiny

import sdort
from sdort.engines.onnx import OnnxEngine, _OnnxPipeline
from sdort.generation.prompts import encoded_texts
from sdort.generation.prompts.encoded_texts import EncodedTexts
from sdort.generation.requests.request import Request
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

OPTIONS: Any = {"steps": 2, "seed": 3, "height": 64, "width": 64}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The token ids of each run of a text encoder."""
    seen: list[list[int]] = []
    run = Session.run

    def noted(session: Session, feeds: Any) -> Any:
        if session.component.startswith("text_encoder"):
            seen.append(np.asarray(feeds["input_ids"])[0].tolist())
        return run(session, feeds)

    monkeypatch.setattr(Session, "run", noted)
    return seen


def pixels(result: Any) -> Any:
    return np.asarray(result.images[0].pixels)


@pytest.mark.parametrize(("memory", "wanted"), [("normal", [2, 2, 3, 3, 3]), ("low", [2, 4, 6, 8, 10])])
def test_a_text_is_encoded_once(memory: Any, wanted: list[int], tiny: Tiny, runs: list[list[int]]) -> None:
    """Where models are loaded in turn each call runs all of them."""
    asked = [("a cat", ""), ("a cat", ""), ("a dog", ""), ("a (cat:1.3)", "a dog"), ("a cat", "")]
    with sdort.load(tiny.onnx, provider="cpu", memory=memory) as pipeline:
        found, counts = [], []
        for prompt, negative in asked:
            found.append(pixels(pipeline.generate(prompt, negative_prompt=negative, **OPTIONS)))
            counts.append(len(runs))
    assert counts == wanted
    for image, (prompt, negative) in zip(found, asked, strict=True):
        with sdort.load(tiny.onnx, provider="cpu", memory=memory) as fresh:
            again = pixels(fresh.generate(prompt, negative_prompt=negative, **OPTIONS))
        np.testing.assert_array_equal(image, again)
    assert not np.array_equal(found[0], found[2])
    assert not np.array_equal(found[0], found[3])


def test_another_output_of_the_encoder_is_another_text(tiny: Tiny, runs: list[list[int]]) -> None:
    with sdort.load(tiny.onnx, provider="cpu") as pipeline:
        models = pipeline._models
        [name] = [name for name in models.sessions if name.startswith("text_encoder")]
        ids = tuple(range(8))
        outputs = [{name: {"words": output.name}} for output in models.sessions[name].outputs]
        assert len(outputs) > 1
        first, *_, last = [models._encode(each, name, [ids])[0]["words"] for each in [*outputs, outputs[0]]]
    assert len(runs) == len(outputs)
    assert first is last


def test_a_measured_pipeline_encodes_each_time(tiny: Tiny, runs: list[list[int]]) -> None:
    engine = OnnxEngine(tiny.onnx, CPU, RuntimeOptions("cpu"))
    pipeline = _OnnxPipeline(engine, Request("a cat", height=64, width=64, steps=1))
    for _ in range(3):
        pipeline()
    assert len(runs) == 6


def values(size: int) -> dict[str, Any]:
    return {"states": np.zeros(size, np.uint8)}


def test_what_is_kept_is_bounded_and_the_longest_unused_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_texts, "MAX_BYTES", 30)
    kept = EncodedTexts()
    kept.keep("plain", [(1,), (2,), (3,)], [values(10)] * 3)
    assert kept.get("plain", [(1,), (4,)]).keys() == {(1,)}
    assert kept.get("another", [(1,)]) == {}
    kept.keep("another", [(1,)], [values(10)])
    assert kept.get("plain", [(1,), (2,), (3,)]).keys() == {(1,), (3,)}
    kept.keep("plain", [(5,)], [values(31)])  # the image that asked for it has it all the same
    assert kept.get("plain", [(1,), (3,), (5,)]) == {}
    kept.keep("plain", [(1,)], [values(10)])
    kept.clear()
    assert kept.get("plain", [(1,)]) == {}


def test_what_is_kept_cannot_be_changed() -> None:
    [made] = EncodedTexts().keep("plain", [(1,)], [values(4)]).values()
    with pytest.raises(ValueError, match="read-only"):
        made["states"][0] = 1


def test_a_text_that_is_encoded_in_another_precision_is_encoded_whole(
    tiny: Tiny, runs: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoder is widened while it runs for the second text: both come from the wide one."""
    with sdort.load(tiny.onnx, provider="cpu") as pipeline:
        models = pipeline._models
        pipeline.generate("a cat", **OPTIONS)
        guard, run = models.guard, models._run_encoder
        assert guard is not None

        def widening(*arguments: Any) -> Any:
            made = run(*arguments)
            guard.widened.setdefault("text_encoder", "all of it")
            return made

        monkeypatch.setattr(models, "_run_encoder", widening)
        pipeline.generate("a dog", **OPTIONS)
        assert len(runs) == 2 + 1 + 2
        pipeline.generate("a dog", **OPTIONS)
        assert len(runs) == 5
