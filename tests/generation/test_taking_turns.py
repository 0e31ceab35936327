"""Sizes that take turns in one open pipeline, on a provider that plans its convolutions for one shape at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.planned_shapes import planned_shapes
from support.tiny_pipeline import Tiny

import sdort
from sdort.generation.latents.decode import Plan
from sdort.runtime import session as session_module

OPTIONS: dict[str, Any] = {"steps": 3, "seed": 3}
SIZES = ("64x64", "64x96")


@pytest.fixture
def opened() -> Iterator[list[str]]:
    with planned_shapes() as found:
        yield found


def draw(pipeline: Any, size: str, **options: Any) -> Any:
    return np.stack([image.pixels for image in pipeline.generate("a cat", size=size, **OPTIONS | options).images])


def test_each_size_has_sessions_of_its_own_and_the_same_images(tiny: Tiny, opened: list[str]) -> None:
    wanted = {size: draw(sdort.load(tiny.onnx, provider="cpu"), size) for size in SIZES}
    pipeline = sdort.load(tiny.onnx, provider="cpu")
    opened.clear()
    for size in (*SIZES, *SIZES):
        np.testing.assert_array_equal(draw(pipeline, size), wanted[size])
    assert len(opened) == 2  # the UNet's and the decoder's of the second size
    assert draw(pipeline, SIZES[0], num_images=2).shape[0] == 2
    assert len(opened) == 3  # the UNet's: images are decoded one by one
    assert pipeline._models.decoded == Plan(slicing=True)


def test_the_number_of_sessions_is_bounded(tiny: Tiny, opened: list[str]) -> None:
    pipeline = sdort.load(tiny.onnx, provider="cpu")
    decoder = pipeline._models.sessions["vae_decoder"]
    name, channels = next(iter(decoder.inputs)), 4
    opened.clear()
    latents = [np.random.default_rng(0).normal(size=(1, channels, 8, 8 + 2 * more)) for more in range(7)]
    for each in (*latents, *latents):
        assert next(iter(decoder.run({name: each}).values())).shape[-1] == 4 * each.shape[-1]
    assert len(opened) == session_module.MOST_SHAPES - 1
    assert len(decoder.ran_on) == len(latents)


def test_without_room_one_session_serves_all(tiny: Tiny, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = sdort.load(tiny.onnx, provider="cpu")
    wanted = [draw(pipeline, size) for size in SIZES]
    pipeline = sdort.load(tiny.onnx, provider="cpu")
    opened.clear()
    monkeypatch.setattr(session_module, "free_memory", lambda *_: 3 << 20)
    for size, image in zip(SIZES, wanted, strict=True):
        np.testing.assert_array_equal(draw(pipeline, size), image)
    assert not opened
