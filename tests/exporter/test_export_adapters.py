"""``sdort export --lora`` and ``--embedding`` end to end: baked weights, images, and their verification."""

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
from support.adapters import save
from support.ldm_files import write_ldm
from support.pipelines import locked, make_pipeline, run_onnx, trace_folder

import sdort
from sdort.checkpoints.added_tokens import expand_words, token_groups
from sdort.engines.original import as_exported
from sdort.engines.torch import TorchEngine
from sdort.engines.torch_runners import PipelineRunner
from sdort.errors import UsageError
from sdort.exporter.command import export
from sdort.exporter.manifest import ExportReport
from sdort.generation.requests.request import Request
from sdort.providers import CPU
from sdort.verification.metrics import psnr
from sdort.workload.cases import WHOLE_PIPELINE

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SCALE = 0.75
READ_BY_DIFFUSERS = "^(?!add_embedding|text_projection)"
"""diffusers drops these modules of sd-scripts' names when it loads an adapter, and sdort does not."""
ADAPTED = ("unet", "text_encoder", "text_encoder_2")
SIDE = 128
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
    lora = make_lora(checkpoint, folder / "style.safetensors", 1, READ_BY_DIFFUSERS)
    tensors = load_file(lora)
    save_file({**tensors, "lora_unet_other.alpha": np.ones(1, np.float32)}, lora)
    with locked(traces):
        report = export(checkpoint, folder / "baked", lora=[f"{lora}:{SCALE}"], cache_dir=traces)
    return Baked(family, checkpoint, lora, folder / "baked", traces, report)


@pytest.fixture(scope="module")
def sd1(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Baked:
    return build("sd1", tmp_path_factory.mktemp("sd1"), request.config)


@pytest.fixture(scope="module")
def sdxl(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Baked:
    return build("sdxl", tmp_path_factory.mktemp("sdxl"), request.config)


@pytest.fixture(params=["sd1", "sdxl"])
def baked(request: pytest.FixtureRequest) -> Baked:
    made: Baked = request.getfixturevalue(request.param)
    return made


def numbers(out: Path, component: str) -> Any:
    """The weights of a component, as they lie in its data file."""
    return np.fromfile(out / component / "model.onnx.data", "f4")


def test_weights_are_those_of_a_merged_checkpoint(baked: Baked, tmp_path: Path) -> None:
    plain = tmp_path / "plain.safetensors"
    save_file({key: array for key, array in load_file(baked.lora).items() if "other" not in key}, plain)
    components = [component.name for component in baked.report.components if component.name in ADAPTED]
    baked.export(bake(baked.checkpoint, plain, SCALE, tmp_path / "made"), tmp_path / "merged", components=components)
    for component in components:
        actual, expected = (numbers(out, component) for out in (baked.out, tmp_path / "merged"))
        # fp32 rounds each product, and the sum.
        assert np.abs(actual - expected).max() < 2e-6 * np.abs(expected).max()
        graphs = [out / component / "model.onnx" for out in (baked.out, tmp_path / "merged")]
        assert graphs[0].read_bytes() == graphs[1].read_bytes()
    (adapter,) = baked.report.adapters
    assert [entry.key for entry in adapter.unmatched] == ["lora_unet_other.alpha"]
    (recorded,) = json.loads((baked.out / "sdort.json").read_text())["adapters"]
    assert (recorded["name"], recorded["scale"], recorded["path"]) == ("style", SCALE, str(baked.lora))
    assert recorded["changed"].keys() == set(components)


def test_images_are_those_of_diffusers_with_the_adapter_loaded(baked: Baked) -> None:
    engine = TorchEngine(baked.checkpoint, CPU, "float32")
    pipeline = engine.pipeline(WHOLE_PIPELINE)
    options: Any = {"seed": 3, "steps": 2, "guidance_scale": 4, "height": SIDE, "width": SIDE}
    image = sdort.load(baked.out, provider="cpu").generate(REQUEST.prompt, **options).images[0].pixels

    def in_torch() -> Any:
        runner = PipelineRunner(pipeline, REQUEST, (SIDE, SIDE), engine.guard)
        runner()
        return runner.result()[0].pixels

    without = in_torch()
    tensors = {key: torch.from_numpy(array) for key, array in load_file(baked.lora).items() if "other" not in key}
    pipeline.load_lora_weights(tensors, adapter_name="style")
    pipeline.set_adapters(["style"], [SCALE])
    assert psnr(image, in_torch()) >= 60
    assert psnr(image, without) < 40


def test_it_is_verified_against_the_checkpoint_with_its_adapter(sd1: Baked, tmp_path: Path) -> None:
    out = Path(shutil.copytree(sd1.out, tmp_path / "baked"))
    options: Any = {"provider": "cpu", "components": ["unet", "text_encoder"], "inputs": "random"}
    assert sdort.verify(out, checkpoint=sd1.checkpoint, **options).passed
    manifest = json.loads((out / "sdort.json").read_text())
    (out / "sdort.json").write_text(json.dumps({**manifest, "adapters": []}))
    assert not sdort.verify(out, checkpoint=sd1.checkpoint, **options).passed


def test_an_adapter_that_is_another_file_by_now_is_said(sd1: Baked, tmp_path: Path) -> None:
    shutil.copytree(sd1.out, tmp_path / "baked")
    manifest = json.loads((sd1.out / "sdort.json").read_text())
    manifest["adapters"][0]["sha256"] = "0" * 64
    (tmp_path / "baked/sdort.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="'style' is in the weights, and its file"):
        sdort.verify(tmp_path / "baked", checkpoint=sd1.checkpoint, provider="cpu")


@pytest.mark.parametrize("baked", ["sdxl"], indirect=True)
def test_a_single_file_with_an_adapter_is_the_folder_with_it(baked: Baked, tmp_path: Path) -> None:
    write_ldm(tmp_path / "model.safetensors", baked.checkpoint, baked.family)
    lora = [f"{baked.lora}:{SCALE}"]
    baked.export(tmp_path / "model.safetensors", tmp_path / "out", config=baked.checkpoint, lora=lora)
    for component in baked.report.components:
        for file in ("model.onnx", "model.onnx.data"):
            pair = [out / component.name / file for out in (tmp_path / "out", baked.out)]
            assert pair[0].read_bytes() == pair[1].read_bytes()


def test_a_word_of_sdxl_is_in_both_text_encoders(sdxl: Baked, tmp_path: Path) -> None:
    from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

    vectors = {"clip_l": torch.randn(2, 48), "clip_g": torch.randn(2, 32)}
    file = save(tmp_path / "cat-toy.safetensors", vectors)
    encoders = {"text_encoder": CLIPTextModel, "text_encoder_2": CLIPTextModelWithProjection}
    report = sdxl.export(sdxl.checkpoint, tmp_path / "out", components=list(encoders), embedding=[str(file)])
    assert [component.traced for component in report.components] == [False, False]
    tables = {}
    with as_exported(tmp_path / "out", sdxl.checkpoint) as adapted:
        for name, model_class in encoders.items():
            tokenizer: Any = CLIPTokenizer.from_pretrained(tmp_path / "out" / name.replace("text_encoder", "tokenizer"))
            ids = tokenizer("a cat-toy", padding="max_length", max_length=77).input_ids
            ids = expand_words(ids, token_groups(tokenizer.added_tokens_encoder))[:77]
            model = model_class.from_pretrained(adapted / name).eval()
            tables[name] = model.get_input_embeddings().weight[-2:].detach()
            with torch.no_grad():
                expected = model(input_ids=torch.tensor([ids])).last_hidden_state.numpy()
            actual = run_onnx(tmp_path / "out" / name / "model.onnx", input_ids=np.array([ids]))["last_hidden_state"]
            assert np.abs(actual - expected).max() < 1e-5 * np.abs(expected).max()
            assert {514, 515} < set(ids)
    assert torch.equal(tables["text_encoder"], vectors["clip_l"])
    assert torch.equal(tables["text_encoder_2"], vectors["clip_g"])
