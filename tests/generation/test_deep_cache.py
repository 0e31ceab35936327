"""Pipelines whose steps take the deep part of the UNet from an earlier step, from a request to the pixels."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image
from support.infotext import read_infotext
from support.tiny_pipeline import Tiny

import sdort
from sdort.errors import BadModelError, UsageError
from sdort.generation.denoising import device_loop
from sdort.generation.requests.deep_cache import whole_calls
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import opener, placed_weights, session
from sdort.runtime.session import Session, open_session
from sdort.runtime.step import bound_unet
from sdort.runtime.step.step_conditions import StepConditions
from sdort.workload.samples import Sample, declared_inputs, make_inputs

OPTIONS: dict[str, Any] = {"steps": 5, "seed": 3}


@pytest.fixture(scope="module")
def pipeline(tiny: Tiny) -> Any:
    return sdort.load(tiny.onnx, provider="cpu")


def draw(pipeline: Any, prompt: str = "a cat", **options: Any) -> Any:
    return pipeline.generate(prompt, **OPTIONS | options).images[0].pixels


def test_each_image_is_that_of_a_fresh_pipeline(tiny: Tiny, pipeline: Any) -> None:
    """In whatever order: without, every step whole, and cut at one depth and at another."""
    plain = draw(pipeline)
    np.testing.assert_array_equal(draw(pipeline, deep_cache=1), plain)
    assert pipeline._models.sessions["unet"].shallow is None  # it stays as it was
    cases: list[dict[str, Any]] = [{"deep_cache": 2}, {"deep_cache": 3, "deep_cache_depth": 1}]
    drawn = [draw(sdort.load(tiny.onnx, provider="cpu"), **case) for case in cases]
    assert len({image.tobytes() for image in (plain, *drawn)}) == 3
    for number in (0, 1, 0):
        np.testing.assert_array_equal(draw(pipeline, **cases[number]), drawn[number])
        np.testing.assert_array_equal(draw(pipeline), plain)
        np.testing.assert_array_equal(draw(pipeline, **cases[number]), drawn[number])


@pytest.mark.parametrize("scheduler", ["euler", "heun"])
def test_steps_through_the_host_are_the_same(
    tiny: Tiny, pipeline: Any, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"deep_cache": 2, "num_images": 2, "scheduler": scheduler}
    expected = draw(pipeline, **options).astype(int)
    monkeypatch.setattr(device_loop.Loop, "fits", lambda *_: False)
    assert np.abs(draw(pipeline, **options) - expected).max() <= 1
    assert np.abs(draw(pipeline, **options | {"deep_cache": 1}) - expected).max() > 1


def test_every_pass_begins_with_a_whole_step(pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[bool] = []
    run = bound_unet.BoundBuffers.run

    def counted(self: Any, step: int, whole: bool = True, **options: Any) -> None:
        runs.append(whole)
        run(self, step, whole, **options)

    monkeypatch.setattr(bound_unet.BoundBuffers, "run", counted)
    draw(pipeline, deep_cache=3, hires=2.0, hires_strength=0.6)
    assert runs == [True, False, False, True, False, True, False, False]
    runs.clear()
    draw(pipeline, "a [cat:dog:2]", deep_cache=4)
    assert runs == [True, False, False, True, False]
    runs.clear()
    draw(pipeline, "a [cat|dog]", deep_cache=4)
    assert runs == [True, False, True, True, True]  # as in A1111 its first change is after the second call


def test_whole_calls_are_counted_from_the_last_one() -> None:
    one, other = [{"x": np.zeros((1, 1))}], [{"x": np.ones((1, 1))}]
    changing = StepConditions([[one, one, other, other, other, other]])
    assert whole_calls(3, 6, changing) == [True, False, True, False, False, True]
    assert whole_calls(2, 6, changing) == [True, False, True, False, True, False]
    assert whole_calls(1, 6, changing) == [True] * 6
    assert whole_calls(9, 6, StepConditions.fixed(one, 6)) == [True] + [False] * 5


def test_the_file_says_it_and_repeats_it(pipeline: Any, tmp_path: Path) -> None:
    first = pipeline.generate("a cat", **OPTIONS, deep_cache=2, deep_cache_depth=1, output=tmp_path / "a.png")
    assert (first.deep_cache, first.deep_cache_depth) == (2, 1)
    texts = Image.open(tmp_path / "a.png").text  # type: ignore[attr-defined]
    kept = json.loads(texts["sdort"])
    assert (kept["deep_cache"], kept["deep_cache_depth"]) == (2, 1)
    told = read_infotext(texts["parameters"])
    assert (told["Deep cache"], told["Deep cache depth"]) == ("2", "1")
    again = pipeline.generate(from_image=tmp_path / "a.png")
    np.testing.assert_array_equal(again.images[0].pixels, first.images[0].pixels)
    plain = pipeline.generate("a cat", **OPTIONS, output=tmp_path / "b.png")
    assert (plain.deep_cache, plain.deep_cache_depth) == (None, None)
    assert "Deep cache" not in Image.open(tmp_path / "b.png").text["parameters"]  # type: ignore[attr-defined]
    usual = pipeline.generate("a cat", **OPTIONS, deep_cache=2)
    assert usual.deep_cache_depth == 2


def test_what_cannot_be_cut_is_refused_before_a_step(tiny: Tiny, pipeline: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--deep-cache-depth 5 is more than the 4 skip connections"):
        draw(pipeline, deep_cache=2, deep_cache_depth=5)
    draw(pipeline, deep_cache=1, deep_cache_depth=5)  # nothing is cut
    shutil.copytree(tiny.onnx, tmp_path / "other")
    path = tmp_path / "other" / "unet" / "model.onnx"
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "Concat":  # of a skip connection and itself
            node.input[:] = [node.input[0]] * len(node.input)
    onnx.save(model, path)
    with pytest.raises(BadModelError, match="no skip connections, at which --deep-cache cuts it"):
        sdort.run(tmp_path / "other", "a cat", **OPTIONS, provider="cpu", deep_cache=2, output=tmp_path / "c.png")


def outputs(unet: Session, fed: dict[str, Any]) -> list[Any]:
    """The whole's outputs, with which the outer part's is compared."""
    assert unet.shallow is not None
    given = unet.run(fed)
    shallow = unet.shallow.run(fed | {unet.kept: given[unet.kept]})
    np.testing.assert_array_equal(shallow["out_sample"], given["out_sample"])
    return list(given.values())


def test_the_outer_part_reads_the_weights_that_the_whole_has_placed(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: here its memory is the host's."""
    blocks: list[Any] = []
    kept: list[dict[str, Any]] = []
    place, create = placed_weights.PlacedWeights, opener.create_session

    def placed(*of: Any) -> Any:
        blocks.append(place(*of))
        return blocks[-1]

    def created(*of: Any, initializers: Any, **more: Any) -> Any:
        kept.append({name: value.data_ptr() for name, value in initializers.items()})
        return create(*of, initializers=initializers, **more)

    monkeypatch.setattr(session, "PlacedWeights", placed)
    monkeypatch.setattr(session, "create_session", created)
    monkeypatch.setattr(session, "is_reachable", lambda vendor: True)
    monkeypatch.setattr(placed_weights, "LEAST", 0)
    path = tiny.onnx / "unet" / "model.onnx"
    options = RuntimeOptions("cpu", custom_ops="off", deep_cut=2)
    unet = open_session(path, "unet", replace(CPU, device="cpu"), options)
    *_, whole, shallow = kept
    assert len(blocks) == len(kept) - 1
    assert 0 < len(shallow) < len(whole)
    assert shallow.items() <= whole.items()
    outputs(unet, feeds(path))


def feeds(path: Path) -> dict[str, Any]:
    inputs = declared_inputs(onnx.load(path, load_external_data=False), "unet")
    return make_inputs(inputs, Sample(2, 16, 16, 77), "unet", 0)
