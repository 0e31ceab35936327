"""``sdort export --lora`` end to end: baked weights, images, and their verification."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from support.adapter_files import bake, make_lora
from support.pipelines import locked, make_pipeline, trace_folder

import sdort
from sdort.engines.torch import TorchEngine
from sdort.engines.torch_runners import PipelineRunner
from sdort.errors import UsageError
from sdort.exporter.command import export
from sdort.exporter.manifest import ExportReport
from sdort.generation.request import Request
from sdort.providers import CPU
from sdort.verification.metrics import psnr
from sdort.workload.cases import WHOLE_PIPELINE

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SCALE = 0.75
ADAPTED = ("unet", "text_encoder", "text_encoder_2")
REQUEST = Request(prompt="a red circle", seed=3, steps=2, guidance_scale=4)


@dataclass
class Baked:
    """A checkpoint, an adapter, the export with the adapter in its weights, and where its traces are."""

    family: str
    checkpoint: Path
    lora: Path
    out: Path
    traces: Path
    report: ExportReport

    def export(self, source: Path, out: Path, **options: Any) -> ExportReport:
        with locked(self.traces):
            return export(source, out, cache_dir=self.traces, **options)


def build(family: str, folder: Path, config: pytest.Config) -> Baked:
    checkpoint, traces = folder / "checkpoint", trace_folder(config)
    checkpoint.mkdir()
    make_pipeline(family, checkpoint)
    lora = make_lora(checkpoint, folder / "style.safetensors", 1)
    tensors = load_file(lora)
    save_file({**tensors, "lora_unet_other.alpha": np.ones(1, np.float32)}, lora)
    with locked(traces):
        report = export(checkpoint, folder / "baked", lora=[f"{lora}:{SCALE}"], cache_dir=traces)
    return Baked(family, checkpoint, lora, folder / "baked", traces, report)


@pytest.fixture(scope="module")
def sd1(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Baked:
    return build("sd1", tmp_path_factory.mktemp("sd1"), request.config)


def numbers(out: Path, component: str) -> Any:
    """The weights of a component, as they lie in its data file."""
    return np.fromfile(out / component / "model.onnx.data", "f4")


def test_weights_are_those_of_a_merged_checkpoint(sd1: Baked, tmp_path: Path) -> None:
    plain = tmp_path / "plain.safetensors"
    save_file({key: array for key, array in load_file(sd1.lora).items() if "other" not in key}, plain)
    components = [component.name for component in sd1.report.components if component.name in ADAPTED]
    sd1.export(bake(sd1.checkpoint, plain, SCALE, tmp_path / "made"), tmp_path / "merged", components=components)
    for component in components:
        actual, expected = (numbers(out, component) for out in (sd1.out, tmp_path / "merged"))
        # fp32 rounds each product, and the sum.
        assert np.abs(actual - expected).max() < 2e-6 * np.abs(expected).max()
        graphs = [out / component / "model.onnx" for out in (sd1.out, tmp_path / "merged")]
        assert graphs[0].read_bytes() == graphs[1].read_bytes()
    (adapter,) = sd1.report.adapters
    assert [entry.key for entry in adapter.unmatched] == ["lora_unet_other.alpha"]
    (recorded,) = json.loads((sd1.out / "sdort.json").read_text())["adapters"]
    assert (recorded["name"], recorded["scale"], recorded["path"]) == ("style", SCALE, str(sd1.lora))
    assert recorded["changed"].keys() == set(components)


def test_images_are_those_of_diffusers_with_the_adapter_loaded(sd1: Baked) -> None:
    engine = TorchEngine(sd1.checkpoint, CPU, "float32", compiled=False)
    pipeline = engine.pipeline(WHOLE_PIPELINE)
    image = sdort.load(sd1.out, provider="cpu").generate(
        REQUEST.prompt, seed=REQUEST.seed, steps=REQUEST.steps, guidance_scale=REQUEST.guidance_scale
    ).images[0].pixels  # fmt: skip

    def in_torch() -> Any:
        runner = PipelineRunner(pipeline, REQUEST, engine.default_size(), engine.guard)
        runner()
        return runner.result()[0].pixels

    without = in_torch()
    tensors = {key: torch.from_numpy(array) for key, array in load_file(sd1.lora).items() if "other" not in key}
    pipeline.load_lora_weights(tensors, adapter_name="style")
    pipeline.set_adapters(["style"], [SCALE])
    assert psnr(image, in_torch()) >= 60
    assert psnr(image, without) < 40


def test_it_is_verified_against_the_checkpoint_with_its_adapter(sd1: Baked, tmp_path: Path) -> None:
    for name in ("sdort.json", "unet", "text_encoder"):
        copy = shutil.copytree if (sd1.out / name).is_dir() else shutil.copyfile
        copy(sd1.out / name, tmp_path / name)
    options: Any = {"provider": "cpu", "components": ["unet", "text_encoder"], "inputs": "random"}
    result = sdort.verify(tmp_path, checkpoint=sd1.checkpoint, **options)
    assert result.passed
    manifest = json.loads((tmp_path / "sdort.json").read_text())
    (tmp_path / "sdort.json").write_text(json.dumps({**manifest, "adapters": []}))
    assert not sdort.verify(tmp_path, checkpoint=sd1.checkpoint, **options).passed


def test_an_adapter_that_is_another_file_by_now_is_said(sd1: Baked, tmp_path: Path) -> None:
    shutil.copytree(sd1.out, tmp_path / "baked")
    manifest = json.loads((sd1.out / "sdort.json").read_text())
    manifest["adapters"][0]["sha256"] = "0" * 64
    (tmp_path / "baked/sdort.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="'style' is in the weights, and its file"):
        sdort.verify(tmp_path / "baked", checkpoint=sd1.checkpoint, provider="cpu")
