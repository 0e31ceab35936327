"""Drawing: images are those of ``sdort run``, whatever they are drawn with."""

from __future__ import annotations

import base64
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.serving import Running, pixels

from sdort.generation.command import load_folder
from sdort.providers.runtime_options import RuntimeOptions


def test_openai_generations_answer_with_what_a_run_draws(served: Running, pipeline: Path) -> None:
    more = {"guidance": 3, "scheduler": "euler"}
    answer = served.post("/v1/images/generations", prompt="a cat", n=2, size="64x64", steps=2, seed=7, **more)
    assert answer.status_code == 200
    images = [pixels(base64.b64decode(each["b64_json"])) for each in answer.json()["data"]]
    expected = load_folder(pipeline, RuntimeOptions("cpu")).generate(
        "a cat", num_images=2, height=64, width=64, steps=2, seed=7, guidance_scale=3, scheduler="euler"
    )
    for image, other in zip(images, expected.images, strict=True):
        np.testing.assert_allclose(image, other.pixels.astype(int), atol=1)


LONG = "a long prompt, " * 20


def test_requests_at_once_are_drawn_together_and_are_what_they_are_alone(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one setting alone: another number of steps, another sampler, a longer prompt are others."""
    batches: list[list[str]] = []
    own = served.engine.draw

    def drawn(model: Any, job: Any, take: Any, **how: Any) -> Any:
        batches.append(sorted(request.prompt for request in job.requests))
        return own(model, job, take, **how)

    monkeypatch.setattr(served.engine, "draw", drawn)
    asked: list[dict[str, Any]] = [
        {"prompt": "a", "seed": 3},
        {"prompt": "b", "seed": 4},
        {"prompt": "c", "seed": 3, "negative_prompt": "fog"},
        {"prompt": "steps", "seed": 3, "steps": 3},
        {"prompt": "sampler", "seed": 3, "scheduler": "euler"},
        {"prompt": LONG, "seed": 3},
    ]
    alone = [image_of(served, body) for body in asked]
    assert [len(batch) for batch in batches] == [1] * 6
    batches.clear()
    waiting = served.service.waiting
    monkeypatch.setattr(waiting, "rule", replace(waiting.rule, wait=1.0))  # all are there by then
    together: dict[int, Any] = {}

    def ask(number: int) -> None:
        together[number] = image_of(served, asked[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(batches) == sorted([["a", "b", "c"], ["steps"], ["sampler"], [LONG]])
    for number, image in enumerate(alone):
        np.testing.assert_allclose(together[number], image, atol=1)
    assert abs(alone[0] - alone[3]).max() > 1


def image_of(served: Running, body: dict[str, Any]) -> Any:
    drawing = served.draw(**body)
    assert served.events(drawing)[-1][0] == "done"
    return pixels(served.client.get(f"/api/images/{drawing}/0.png").content)
