"""Safety checkers of an export: diffusers' scores, what is left out and told, and what the folder says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.pipelines import trace_folder
from support.tiny_safety_checker import PROCESSOR, VISION, build_safety_checker

from sdort.checkpoints.clip_vision import vision_settings
from sdort.errors import BadModelError, UsageError
from sdort.exporter.command import _at_static_size, export
from sdort.exporter.export_options import StaticSize
from sdort.exporter.manifest import write_index
from sdort.exporter.source import Source, read_source, select_components
from sdort.exporter.trace_cache import TraceCache
from sdort.generation.pictures.safety import verdict_of
from sdort.onnx_io.component_file import read_component
from sdort.optimizer.command import optimize
from sdort.pipelines.folder import open_folder
from sdort.providers import find_provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import open_session
from sdort.verification.checks import precision
from sdort.verification.component_comparison import compare_component
from sdort.verification.recorded_inputs import random_inputs
from sdort.verification.runners import RunConfiguration

CHECKER = ["stable_diffusion", "StableDiffusionSafetyChecker"]
CPU = RuntimeOptions("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A pipeline's folder with nothing but a safety checker, in the names that published ones have; and the model."""
    folder = tmp_path_factory.mktemp("checkpoint")
    model = build_safety_checker(folder / "safety_checker")
    path = folder / "safety_checker" / "model.safetensors"
    old = {
        f"vision_model.{name}" if name.startswith("vision_") else name: each for name, each in load_file(path).items()
    }
    old["vision_model.vision_model.embeddings.position_ids"] = torch.arange(5)[None]
    save_file(old, path)
    others = ("vae", "text_encoder", "tokenizer", "unet", "scheduler", "image_encoder")
    index = {"_class_name": "StableDiffusionPipeline", "safety_checker": CHECKER, "requires_safety_checker": True}
    index |= {name: [None, None] for name in others}
    index["feature_extractor"] = ["transformers", "CLIPImageProcessor"]
    (folder / "feature_extractor").mkdir()
    (folder / "feature_extractor" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder, model


@pytest.fixture(scope="module")
def exported(checkpoint: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory, pytestconfig: Any) -> Path:
    out = tmp_path_factory.mktemp("exported") / "out"
    export(checkpoint[0], out, cache_dir=trace_folder(pytestconfig))
    return out


def scores(path: Path, pixels: Any) -> list[Any]:
    session = open_session(path, "safety_checker", find_provider("cpu"), CPU)
    return list(session.run({"clip_input": pixels}).values())


def test_scores_and_decisions_are_those_of_diffusers(
    checkpoint: tuple[Path, Any], exported: Path, tmp_path: Path
) -> None:
    """With thresholds between the images' own cosines, in fp32 and optimized in fp16."""
    pixels = np.random.default_rng(0).standard_normal((6, 3, 28, 28)).astype(np.float32)
    model = checkpoint[1]
    with torch.no_grad():
        embeds = torch.nn.functional.normalize(model.visual_projection(model.vision_model(torch.from_numpy(pixels))[1]))
        concepts = torch.nn.functional.normalize(model.concept_embeds)
        expected = (embeds @ concepts.T - model.concept_embeds_weights).numpy()
    optimize(exported, tmp_path / "half", provider="cpu", fp16=True)
    for folder, near in ((exported, 2e-6), (tmp_path / "half", 3e-3)):
        found, special = scores(folder / "safety_checker" / "model.onnx", pixels)
        assert found == pytest.approx(expected, abs=near)
        for image in range(len(pixels)):
            # A threshold that this image's nearest concept just passes, or just misses; no other concept counts.
            for edge, flagged in ((0.02, True), (-0.02, False)):
                moved = np.full(17, -1, np.float32)
                moved[3] = found[image, 3] - expected[image, 3] + edge
                assert verdict_of(moved, special[image] - 3).flagged == flagged
    weights = read_component(tmp_path / "half" / "safety_checker" / "model.onnx", "safety_checker")
    assert weights.dtype == "float16"


def test_flags_are_those_of_diffusers(checkpoint: tuple[Path, Any], exported: Path) -> None:
    pixels = np.random.default_rng(1).standard_normal((12, 3, 28, 28)).astype(np.float32)
    found, special = scores(exported / "safety_checker" / "model.onnx", pixels)
    images = [np.ones((2, 2, 3)) for _ in pixels]
    _, flags = checkpoint[1](torch.from_numpy(pixels), images)
    assert [verdict_of(*each).flagged for each in zip(found, special, strict=True)] == flags


def test_the_folder_says_nothing_of_it_to_other_libraries(exported: Path) -> None:
    index = json.loads((exported / "model_index.json").read_text())
    assert (index["safety_checker"], index["requires_safety_checker"]) == ([None, None], False)
    assert list(open_folder(exported, ()).models) == ["safety_checker"]


def source(folder: Path, **index: Any) -> Source:
    return Source("it", folder, {"_class_name": "StableDiffusionPipeline", **index})


def test_it_is_left_out_if_asked_or_unknown_and_that_is_told(
    checkpoint: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, folder = TraceCache(tmp_path), checkpoint[0]
    taken = select_components(read_source(folder, "it"), (), cache)
    assert [component.name for component in taken] == ["safety_checker"]
    assert capsys.readouterr().err == ""
    assert select_components(read_source(folder, "it"), (), cache, safety_checker=False) == []
    assert "the safety checker of it is left out, as asked" in " ".join(capsys.readouterr().err.split())
    other = source(folder, safety_checker=["my_pipeline", "OwnChecker"])
    assert select_components(other, (), cache) == []
    assert "is left out: sdort does not export a OwnChecker" in " ".join(capsys.readouterr().err.split())
    gone = source(tmp_path, safety_checker=CHECKER)
    assert select_components(gone, (), cache) == []
    assert "safety_checker is not there" in "".join(capsys.readouterr().err.split("\n")).replace("  ", " ")
    (tmp_path / "safety_checker").mkdir()
    with pytest.raises(BadModelError, match=r"config\.json") as refused:
        select_components(gone, (), cache)
    assert "--no-safety-checker" in str(refused.value)
    config = checkpoint[0] / "safety_checker" / "config.json"
    (tmp_path / "safety_checker" / "config.json").write_bytes(config.read_bytes())
    select_components(gone, (), cache)
    with pytest.raises(BadModelError, match="safetensors") as refused:
        gone.read_tensors("safety_checker", "safety_checker", None, False)
    assert "--no-safety-checker" in str(refused.value)
    write_index(tmp_path, other, [])
    assert json.loads((tmp_path / "model_index.json").read_text())["safety_checker"] == [None, None]
    with pytest.raises(BadModelError, match="OwnChecker there, which sdort does not export"):
        select_components(other, ("safety_checker",), cache)
    with pytest.raises(UsageError, match="exclude each other"):
        export(folder, tmp_path / "out", components=["safety_checker"], safety_checker=False)


def test_a_fixed_size_takes_one_image_at_a_time(checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    made = read_source(checkpoint[0], "it")
    cache = TraceCache(tmp_path)
    [fixed] = _at_static_size(made, select_components(made, (), cache), StaticSize(4, 64, 64), cache)
    assert [each.dims for each in (*fixed.inputs, *fixed.outputs)] == [(1, 3, 28, 28), (1, 17), (1, 3)]


def test_the_config_of_the_vision_half_with_the_width_of_the_whole() -> None:
    old = {"hidden_size": 24, "num_attention_heads": 2}  # some are saved with both, and this one counts
    whole = {"projection_dim": 20, "vision_config": {**VISION, "hidden_size": 99, "projection_dim": 512}}
    assert vision_settings({**whole, "vision_config_dict": old}) == {**VISION, "projection_dim": 20}
    assert "projection_dim" not in vision_settings({"vision_config": {**VISION, "projection_dim": 512}})
    assert vision_settings(VISION) is VISION


def test_verify_compares_it_with_torch(checkpoint: tuple[Path, Any], exported: Path) -> None:
    path = exported / "safety_checker" / "model.onnx"
    inputs = random_inputs(path, "safety_checker", 8, (64, 64))
    configuration = RunConfiguration(find_provider("cpu"), CPU)
    limits = precision("float32", configuration.provider)
    found, missing = compare_component("safety_checker", path, {"torch": checkpoint[0]}, configuration, inputs, limits)
    assert not missing
    assert {each.output for each in found} == {"concept_scores", "special_care_scores"}
    assert all(each.passed for each in found)
