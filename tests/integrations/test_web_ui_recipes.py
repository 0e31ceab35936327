"""The scripts of docs/recipes behind stand-ins of the programs that they are for, on a tiny pipeline."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.tiny_pipeline import Tiny

from sdort.integrations.torch import GraphUNet

RECIPES = Path(__file__).parents[2] / "docs/recipes"
TOLERANCE = 1e-4
"""fp32 on both sides, outputs of about 1."""


def load(monkeypatch: pytest.MonkeyPatch, name: str, **modules: Any) -> ModuleType:
    """A recipe as the program loads it, with the program's ``modules``."""
    parts: dict[str, Any] = {
        "gradio": SimpleNamespace(Textbox=lambda label: label),
        "modules": SimpleNamespace(**modules),
    }
    for part, stand_in in parts.items():
        monkeypatch.setitem(sys.modules, part, stand_in)
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec
    assert spec.loader
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    return recipe


def scripts() -> Any:
    return SimpleNamespace(Script=object, AlwaysVisible=object())


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Latents, timesteps and prompts."""
    generator = torch.Generator().manual_seed(4)
    return (
        torch.randn(2, 4, 16, 24, generator=generator),
        torch.tensor([7.0, 7.0]),
        torch.randn(2, 77, 32, generator=generator),
    )


def test_sdnext(monkeypatch: pytest.MonkeyPatch, tiny: Tiny) -> None:
    own = tiny.pipeline.unet
    pipeline = SimpleNamespace(unet=own)
    pipeline.register_modules = lambda unet: setattr(pipeline, "unet", unet)
    shared = SimpleNamespace(sd_model=pipeline)
    script = load(monkeypatch, "sdnext_sdort", scripts_manager=scripts(), shared=shared).Script()
    request = SimpleNamespace(prompt="a house", all_prompts=["a house"])
    script.process(request, str(tiny.onnx))
    assert isinstance(pipeline.unet, GraphUNet)
    x, timesteps, prompts = inputs()
    with torch.no_grad():
        expected = own(x, timesteps, prompts).sample
    torch.testing.assert_close(pipeline.unet(x, timesteps, prompts).sample, expected, atol=TOLERANCE, rtol=0)
    script.process(request, str(tiny.onnx))
    for words in ("<lora:pastel:1>", "<lyco:pastel:1>"):  # of a style
        with pytest.raises(RuntimeError, match="LoRA"):
            script.process(SimpleNamespace(prompt="a house", all_prompts=[f"a house {words}"]), str(tiny.onnx))
    script.process(request, "")
    assert pipeline.unet is own
    pipeline.unet = other = SimpleNamespace(config={**own.config, "cross_attention_dim": 768})
    with pytest.raises(RuntimeError, match=r"another family.*: cross_attention_dim$"):
        script.process(request, str(tiny.onnx))
    assert pipeline.unet is other


def test_a1111(monkeypatch: pytest.MonkeyPatch, tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "sdort").mkdir()
    (tmp_path / "sdort" / "small").symlink_to(tiny.onnx)
    listed: list[Any] = []
    load(
        monkeypatch,
        "a1111_sdort",
        paths_internal=SimpleNamespace(models_path=str(tmp_path)),
        script_callbacks=SimpleNamespace(on_list_unets=lambda callback: callback(listed)),
        sd_unet=SimpleNamespace(SdUnetOption=object, SdUnet=torch.nn.Module),
    )
    (option,) = listed
    assert (option.model_name, option.label) == ("small", "[sdort] small")
    unet = option.create_unet()
    unet.activate()
    x, timesteps, prompts = inputs()
    with torch.no_grad():
        expected = tiny.pipeline.unet(x, timesteps, prompts).sample
    torch.testing.assert_close(unet(x, timesteps, prompts), expected, atol=TOLERANCE, rtol=0)
    monkeypatch.setitem(sys.modules, "networks", SimpleNamespace(loaded_networks=["pastel"]))
    with pytest.raises(RuntimeError, match="LoRA"):
        unet(x, timesteps, prompts)
    unet.deactivate()
    assert unet.denoiser is None


class Predictor:
    """Forge's, of an epsilon model; its timestep is a number that no sigma is."""

    def calculate_input(self, sigma: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x / (sigma[:, None, None, None] ** 2 + 1) ** 0.5

    def timestep(self, sigma: torch.Tensor) -> torch.Tensor:
        return (sigma * 10).long()

    def calculate_denoised(self, sigma: torch.Tensor, made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x - made * sigma[:, None, None, None]


class Patcher:
    """Forge's ``UnetPatcher``."""

    def __init__(self) -> None:
        self.model = SimpleNamespace(predictor=Predictor())
        self.wrapper: Any = None

    def clone(self) -> Patcher:
        return Patcher()

    def set_model_unet_function_wrapper(self, wrapper: Any) -> None:
        self.wrapper = wrapper


def test_forge(monkeypatch: pytest.MonkeyPatch, tiny: Tiny) -> None:
    script = load(monkeypatch, "forge_sdort", scripts=scripts()).Script()
    own = Patcher()
    objects = SimpleNamespace(unet=own)
    request = SimpleNamespace(all_prompts=["a house"], sd_model=SimpleNamespace(forge_objects=objects))
    script.process_before_every_sampling(request, "")
    assert objects.unet is own
    script.process_before_every_sampling(request, str(tiny.onnx))
    assert own.wrapper is None
    x, _, prompts = inputs()
    sigma, predictor = torch.tensor([2.5, 2.5]), Predictor()
    step = {"input": x, "timestep": sigma, "c": {"c_crossattn": prompts, "transformer_options": {}, "control": None}}
    with torch.no_grad():
        made = tiny.pipeline.unet(predictor.calculate_input(sigma, x), predictor.timestep(sigma), prompts).sample
        denoised = objects.unet.wrapper(None, step)
    torch.testing.assert_close(denoised, predictor.calculate_denoised(sigma, made, x), atol=3 * TOLERANCE, rtol=0)
    plain, words = ["a house"], ["a house <lyco:pastel:1>"]
    for prompts_, upscaled in ((words, None), (plain, words)):
        request.all_prompts, request.all_hr_prompts = prompts_, upscaled
        with pytest.raises(RuntimeError, match="LoRA"):
            script.process_before_every_sampling(request, str(tiny.onnx))
