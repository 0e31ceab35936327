"""Graphs of one size: what their inputs become, what folds, and who is asked for the size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.pipelines import trace_folder
from support.small_graphs import parse

import sdort
from sdort.errors import UsageError
from sdort.exporter.command import export
from sdort.verification.recorded_inputs import RECORDED, Inputs, in_batches, random_inputs


@pytest.fixture(scope="module")
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "model"
    export("demo", folder, cache_dir=trace_folder(request.config), components=("unet", "vae_decoder", "text_encoder"))
    return folder


def shapes(folder: Path, component: str) -> dict[str, list[int | str]]:
    graph = onnx.load(folder / component / "model.onnx", load_external_data=False).graph
    values = (*graph.input, *graph.output)
    return {v.name: [d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim] for v in values}


def test_directml_gets_the_models_own_size(demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = sdort.optimize(demo, tmp_path / "fast", provider="dml")
    assert "graphs for images of 64x64 alone, one at a time, the size that the model was made for" in (
        capsys.readouterr().err
    )
    assert report.misses == []
    unet = shapes(tmp_path / "fast", "unet")
    assert (unet["sample"], unet["out_sample"]) == ([2, 4, 16, 16], [2, 4, 16, 16])
    assert unet["encoder_hidden_states"][:2] == [2, 77]
    assert shapes(tmp_path / "fast", "vae_decoder")["sample"] == [1, 3, 64, 64]
    assert shapes(tmp_path / "fast", "text_encoder")["input_ids"] == [1, 77]
    assert all("Shape" not in component.operators for component in report.components.values())
    result = sdort.verify(tmp_path / "fast", provider="cpu", against=demo, torch=False, inputs="random", images=False)
    assert result.passed


def test_a_size_is_for_every_provider(demo: Path, tmp_path: Path) -> None:
    sdort.optimize(demo, tmp_path / "fast", provider="cpu", size="96x64", components=("unet",))
    assert shapes(tmp_path / "fast", "unet")["sample"] == [2, 4, 16, 24]
    sdort.optimize(demo, tmp_path / "free", provider="cpu", components=("unet",))
    assert shapes(tmp_path / "free", "unet")["sample"][2:] != [16, 16]
    with pytest.raises(UsageError, match="the model is static: 'sample' is"):
        sdort.optimize(tmp_path / "fast", tmp_path / "other", provider="cpu", size="64x64")
    for size, words in (("96x66", "multiples of 4"), ("96", "is no size")):
        with pytest.raises(UsageError, match=words):
            sdort.optimize(demo, tmp_path / "bad", provider="cpu", size=size)
    assert not (tmp_path / "bad").exists()


def test_a_file_of_unknown_size_needs_one(demo: Path, tmp_path: Path) -> None:
    file = demo / "unet" / "model.onnx"
    with pytest.raises(UsageError, match="dml plans a graph for its sizes, and those of unet are free") as caught:
        sdort.optimize(file, tmp_path / "out", provider="dml")
    assert "--size 512x512" in str(caught.value.hint)
    assert not (tmp_path / "out").exists()
    sdort.optimize(file, tmp_path / "out", provider="dml", size="64x128")
    assert shapes(tmp_path, "out")["sample"] == [2, 4, 16, 8]  # a lone file: eight pixels a latent


def test_a_size_without_a_component_is_refused(tmp_path: Path) -> None:
    onnx.save(parse("g (float[N] x) => (float[N] y) { y = Neg (x) }", {}, 18), tmp_path / "any.onnx")
    with pytest.raises(UsageError, match="--size is for components of a pipeline"):
        sdort.optimize(tmp_path / "any.onnx", tmp_path / "out", provider="cpu", size="64x64", any_graph=True)
    sdort.optimize(tmp_path / "any.onnx", tmp_path / "out", provider="dml", any_graph=True)


def saved(folder: Path, name: str, dims: str) -> Path:
    text = f"g (float[{dims}] sample, float t) => (float[{dims}] y) {{ y = Mul (sample, t) }}"
    onnx.save(parse(text, {}, 18), folder / name)
    return folder / name


def test_what_a_model_of_one_size_is_compared_on(tmp_path: Path) -> None:
    free, fixed = saved(tmp_path, "free.onnx", "B, 4, H, W"), saved(tmp_path, "fixed.onnx", "2, 4, 8, 16")
    made = random_inputs(free, "vae_decoder", 8, (16, 16), candidate=fixed)
    assert [each.feeds["sample"].shape for each in made] == [(2, 4, 8, 16)]
    assert len(random_inputs(free, "vae_decoder", 8, (16, 16))) == 2
    values = np.arange(4 * 4 * 8 * 16, dtype=np.float32).reshape(4, 4, 8, 16)
    recorded = Inputs(RECORDED, "step 1", {"sample": values, "t": np.array(3, np.float32)}, 3.0)
    parts = in_batches(recorded, fixed, "vae_decoder")
    assert [each.label for each in parts] == ["step 1, sample 1 of 2", "step 1, sample 2 of 2"]
    assert np.array_equal(np.concatenate([each.feeds["sample"] for each in parts]), values)
    assert {each.timestep for each in parts} == {3.0}
    assert in_batches(recorded, free, "vae_decoder") == [recorded]
    odd = Inputs(RECORDED, "odd", {"sample": values[:3], "t": np.array(3, np.float32)})
    assert in_batches(odd, fixed, "vae_decoder") == [odd]
