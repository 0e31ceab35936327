"""ControlNets, T2I-Adapters, and UNets that take their outputs: exported, fused, and held against diffusers."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_pipeline
from support.pipelines import run_onnx, trace_folder
from support.tiny_control import build_controlnet, build_t2i_adapter, export_part

from sdort.errors import BadModelError, UsageError
from sdort.exporter.command import export
from sdort.exporter.signatures import at_size, describe_component
from sdort.optimizer.command import optimize

TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
"""Sums in another order, of values up to 30."""


@dataclass
class Made:
    """Models of diffusers', and the folder of each one's export."""

    models: dict[str, Any]
    folder: Path

    def out(self, name: str) -> Path:
        return self.folder / f"{name} exported"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Made:
    folder, traces = tmp_path_factory.mktemp("control"), trace_folder(request.config)
    pipeline = tiny_pipeline.build_diffusers(folder / "unet")
    made = Made(
        {
            "unet": pipeline.unet,
            "controlnet": build_controlnet(folder / "controlnet"),
            "t2i_adapter": build_t2i_adapter(folder / "t2i_adapter"),
        },
        folder,
    )
    for name in made.models:
        options: dict[str, Any] = {"control": True, "components": ["unet"]} if name == "unet" else {}
        export_part(folder / name, made.out(name), traces, **options)
    return made


def _inputs(height: int, width: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    context = tiny_pipeline.TEXT["hidden_size"]
    return {
        "sample": torch.randn(2, 4, height, width, generator=generator),
        "timestep": torch.tensor(431.0),
        "encoder_hidden_states": torch.randn(2, 7, context, generator=generator),
    }


def _residuals(made: Made, height: int, width: int) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """The outputs of torch's ControlNet with a scale for each, random features, and the inputs of the ControlNet."""
    import torch

    inputs = _inputs(height, width)
    inputs["controlnet_cond"] = torch.rand(2, 3, 4 * height, 4 * width, generator=torch.Generator().manual_seed(2))
    net = made.models["controlnet"]
    with torch.no_grad():
        down, mid = net(*inputs.values(), return_dict=False)
        features = [
            feature.expand(2, -1, -1, -1) for feature in made.models["t2i_adapter"](inputs["controlnet_cond"][:1])
        ]
    inputs["conditioning_scale"] = torch.linspace(0.3, 1.2, len(down) + 1)
    outputs = [output * scale for output, scale in zip([*down, mid], inputs["conditioning_scale"], strict=True)]
    return outputs, features, inputs


@pytest.mark.parametrize("size", [(16, 16), (9, 13)], ids=str)
def test_a_controlnet_gives_diffusers_residuals(made: Made, size: tuple[int, int]) -> None:
    expected, _, inputs = _residuals(made, *size)
    got = run_onnx(made.out("controlnet") / "controlnet" / "model.onnx", **inputs)
    assert list(got) == [f"down_block_res_samples.{index}" for index in range(len(expected) - 1)] + [
        "mid_block_res_sample"
    ]
    for output, residual in zip(got.values(), expected, strict=True):
        np.testing.assert_allclose(output, residual, **TOLERANCE)


@pytest.mark.parametrize("size", [(16, 16), (9, 13)], ids=str)
def test_a_t2i_adapter_gives_diffusers_features(made: Made, size: tuple[int, int]) -> None:
    _, expected, inputs = _residuals(made, *size)
    image = inputs["controlnet_cond"][:1]
    got = run_onnx(made.out("t2i_adapter") / "t2i_adapter" / "model.onnx", sample=image)
    for output, feature in zip(got.values(), expected, strict=True):
        np.testing.assert_allclose(output, feature[:1], **TOLERANCE)


@pytest.mark.parametrize("size", [(16, 16), (9, 13)], ids=str)
def test_a_unet_takes_residuals_and_features(made: Made, size: tuple[int, int]) -> None:
    import torch

    residuals, features, _ = _residuals(made, *size)
    inputs = _inputs(*size)
    with torch.no_grad():
        expected = made.models["unet"](
            **inputs,
            down_block_additional_residuals=residuals[:-1],
            mid_block_additional_residual=residuals[-1],
            down_intrablock_additional_residuals=[feature.clone() for feature in features],
            return_dict=False,
        )[0]
        plain = made.models["unet"](**inputs, return_dict=False)[0]
    fed = {f"down_block_additional_residuals.{index}": value for index, value in enumerate(residuals[:-1])}
    fed["mid_block_additional_residual"] = residuals[-1]
    fed |= {f"down_intrablock_additional_residuals.{index}": value for index, value in enumerate(features)}
    path = made.out("unet") / "unet" / "model.onnx"
    # The UNet has three levels or fewer: its mid block takes a feature too, of which this adapter has none.
    open_inputs = _zeros_for_the_rest(path, inputs | fed, size)
    np.testing.assert_allclose(run_onnx(path, **inputs, **fed, **open_inputs)["out_sample"], expected, **TOLERANCE)
    zeros = {name: torch.zeros_like(value) for name, value in fed.items()}
    np.testing.assert_allclose(run_onnx(path, **inputs, **zeros, **open_inputs)["out_sample"], plain, **TOLERANCE)
    assert float((expected - plain).abs().max()) > 0.1


def _zeros_for_the_rest(path: Path, fed: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    channels = {
        value.name: value.type.tensor_type.shape.dim[1].dim_value for value in graph.input if value.name not in fed
    }
    side = [(edge + 1) // 2 for edge in size]
    return {name: np.zeros((2, width, *side), np.float32) for name, width in channels.items()}


def test_names_of_sizes_follow_a_static_size() -> None:
    config = {**tiny_pipeline.UNET, "in_channels": 4, "out_channels": 4}
    unet = at_size(describe_component("unet", "UNet2DConditionModel", config, control=True), {"height": 9, "width": 12})
    shapes = {spec.name: spec.dims for spec in unet.inputs}
    assert shapes["down_block_additional_residuals.0"] == ("batch_size", 16, 9, 12)
    assert shapes["mid_block_additional_residual"] == ("batch_size", 32, 5, 6)


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["controlnet", "t2i_adapter", "unet"])
def test_all_that_fuses_in_a_unet_fuses(made: Made, tmp_path: Path, name: str, provider: str) -> None:
    report = optimize(made.out(name), tmp_path / "fast", provider=provider, fp16=True)
    assert not report.misses
    operators = report.components[name].operators
    assert name == "t2i_adapter" or operators["com.microsoft.MultiHeadAttention"]
    assert not {"Softmax", "Attention"} & operators.keys()
    assert (tmp_path / "fast" / name / "config.json").is_file()


def test_what_is_no_controlnet_is_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--control is for a UNet"):
        export(made.folder / "controlnet", tmp_path / "out", control=True)
    broken = shutil.copytree(made.folder / "controlnet", tmp_path / "broken")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"block_out_channels": [16, 32, 32]}))
    with pytest.raises(BadModelError, match="2 entries for 3 block_out_channels"):
        export(broken, tmp_path / "out")
    (broken / "config.json").write_text(json.dumps(config | {"_class_name": "FluxControlNetModel"}))
    with pytest.raises(BadModelError, match="a ControlNet, and no pipeline"):
        export(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()
