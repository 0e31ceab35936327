"""Pipelines of diffusers, exported whole or refused with the names of the models that would be missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.published_configs import TEXT_ENCODERS

from sdort.checkpoints.configs import write_json
from sdort.errors import BadModelError
from sdort.exporter.pipeline_parts import check_channels, check_parts, model_parts
from sdort.exporter.source import Source, read_source, select_components
from sdort.exporter.trace_cache import TraceCache
from sdort.families.unet import UNET

EXPORTED = {
    "unet": {"UNet2DConditionModel"},
    "vae": {"AutoencoderKL", "AutoencoderTiny"},
    "text_encoder": {"CLIPTextModel", "CLIPTextModelWithProjection", "Qwen3Model", "T5EncoderModel"},
    "text_encoder_2": {"CLIPTextModel", "CLIPTextModelWithProjection", "Qwen3Model", "T5EncoderModel"},
    "text_encoder_3": {"CLIPTextModel", "CLIPTextModelWithProjection", "Qwen3Model", "T5EncoderModel"},
    "transformer": {
        "ChromaTransformer2DModel",
        "FluxTransformer2DModel",
        "SD3Transformer2DModel",
        "ZImageTransformer2DModel",
    },
    "controlnet": {"ControlNetModel"},
    "adapter": {"T2IAdapter"},
}


VISION = "CLIPVisionModelWithProjection"
ANY_SCHEDULER = re.compile("KarrasDiffusionSchedulers|SchedulerMixin")


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec
    assert spec.origin
    return Path(spec.origin).parent


@cache
def _model_classes() -> frozenset[str]:
    """The classes of diffusers and transformers that are torch modules, by where and how they are defined."""
    import transformers

    named = transformers._class_to_module.items()
    names = {name for name, module in named if ".modeling_" in module}
    base = re.compile(r"^class (\w+)\([^)]*(?:ModelMixin|PreTrainedModel|nn\.Module)", re.MULTILINE)
    files = [file for part in ("models", "pipelines") for file in (_package("diffusers") / part).rglob("*.py")]
    return frozenset(names.union(*(base.findall(file.read_text()) for file in files)))


def _pipelines() -> Iterator[tuple[str, dict[str, str]]]:
    """Every pipeline class of diffusers, and the first class that its constructor takes for each part."""
    start = re.compile(
        r"^class (\w+Pipeline)\(.*?^    def __init__\(\s*self,(.*?)\)(?: -> None)?:\n", re.MULTILINE | re.DOTALL
    )
    for file in sorted((_package("diffusers") / "pipelines").rglob("pipeline_*.py")):
        for name, taken in start.findall(file.read_text()):
            parts = re.findall(r"^\s*(\w+): (?:\w+\[)*[\"']?([A-Z]\w+)", taken.replace(", ", ",\n"), re.MULTILINE)
            # Z-Image's say no class of their text encoder.
            named = [(part, "Qwen3Model" if kind == "PreTrainedModel" else kind) for part, kind in parts]
            yield name, {part: ANY_SCHEDULER.sub("DDIMScheduler", kind) for part, kind in named}


@cache
def published() -> dict[str, dict[str, str]]:
    return {
        name: {part: kind for part, kind in parts.items() if kind not in ("None", "Optional", "Union", "Any")}
        for name, parts in _pipelines()
        if parts and "Onnx" not in name  # of graphs, not of checkpoints
    }


def _library(kind: str) -> str:
    import transformers

    return "transformers" if hasattr(transformers, kind) else "diffusers"


def _foreign(parts: dict[str, str]) -> set[str]:
    models = {part: kind for part, kind in parts.items() if kind in _model_classes() and part != "safety_checker"}
    foreign = {part for part, kind in models.items() if kind not in EXPORTED.get(part, ())}
    if {"text_encoder", "text_encoder_2"} & models.keys() and models.get("image_encoder") == VISION:
        foreign -= {"image_encoder"}
    return foreign


def test_every_pipeline_of_diffusers_is_exported_whole_or_refused_by_name(tmp_path: Path) -> None:
    whole, cache = set(), TraceCache(tmp_path)
    for name, parts in published().items():
        index: dict[str, Any] = {"_class_name": name, **{part: [_library(kind), kind] for part, kind in parts.items()}}
        foreign = _foreign(parts)
        if not foreign:
            check_parts(index, name)
            whole.add(name)
            continue
        with pytest.raises(BadModelError) as refused:
            select_components(Source(name, tmp_path, index), (), cache)
        said = str(refused.value)
        if foreign <= EXPORTED.keys() - {"transformer"}:  # a component of another class: that of the first
            assert any(parts[part] in said for part in foreign), (name, said)
        else:
            assert all(f"a {part} ({parts[part]})" in said for part in foreign), (name, said)
    assert len(published()) > 200
    usual = {"StableDiffusionPipeline", "StableDiffusionXLPipeline", "StableDiffusionInpaintPipeline"}
    assert "StableDiffusion3PAGPipeline" in whole
    assert usual | {"LatentConsistencyModelPipeline", "StableDiffusionXLInpaintPipeline"} <= whole
    assert not any(name.startswith(("Flux2", "PixArt", "Kandinsky", "AnimateDiff")) for name in whole)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"transformer": ["diffusers", "AuraFlowTransformer2DModel"]}, "transformer"),
        ({"text_encoder_4": ["transformers", "LlamaForCausalLM"]}, "text_encoder_4"),
        ({"refiner": ["my_pipeline", "Refiner"]}, "refiner"),  # a part of a pipeline that somebody wrote
        ({"refiner": ["my.own.pipeline", "Refiner"]}, "refiner"),
        ({"vqgan": ["diffusers.models.tokens", "ImageTokenizer"]}, "vqgan"),
        ({"prior": ["diffusers", "PriorTransformer", {"variant": None}]}, "prior"),
        ({"image_encoder": ["transformers", "Dinov2Model"]}, "image_encoder"),
        ({"image_encoder": ["transformers", VISION], "text_encoder": [None, None]}, "image_encoder"),
        ({"motion_adapter": ["diffusers", "MotionAdapter"]}, "motion_adapter"),
    ],
)
def test_a_model_that_is_not_exported_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    index = {"_class_name": "Custom", "unet": ["diffusers", "UNet2DConditionModel"]}
    index |= {"vae": ["diffusers", "AutoencoderKL"], "text_encoder": ["transformers", "CLIPTextModel"], **change}
    with pytest.raises(BadModelError, match=rf"is a Custom with a {named} "):
        select_components(Source("it", tmp_path, index), (), TraceCache(tmp_path))
    with pytest.raises(BadModelError, match="cannot read the config"):  # the others can be had
        select_components(Source("it", tmp_path, index), ("unet",), TraceCache(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"scheduler": ["diffusers", "DDIMScheduler"], "inverse_scheduler": ["diffusers", "DDIMInverseScheduler"]},
        {
            "tokenizer": ["transformers", "CLIPTokenizerFast"],
            "feature_extractor": ["transformers", "CLIPImageProcessor"],
        },
        {"safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"], "image_encoder": [None, None]},
        {"image_encoder": ["transformers", VISION]},
        {
            "scheduler": ["diffusers_modules.local.lcm_scheduler", "LCMScheduler"],
            "feature_extractor": ["transformers.models.clip.image_processing_clip", "CLIPImageProcessor"],
            "image_processor": ["diffusers.image_processor", "VaeImageProcessor"],
            "tokenizer": ["my.own.tokens", "WordTokenizer"],
        },
        {"transformer": [None, None], "pag_applied_layers": ["mid", "down.block_1"], "sizes": [1, 2]},
    ],
)
def test_what_is_no_model_or_left_out_by_rule_is_no_reason_to_refuse(change: dict[str, Any]) -> None:
    check_parts({"_class_name": "Custom", "text_encoder": ["transformers", "CLIPTextModel"], **change}, "it")


@pytest.mark.parametrize("pipeline", ["SDXLLongPromptWeightingPipeline", ["my_pipeline", "MyPipeline"]])
def test_a_pipeline_that_somebody_wrote_is_exported_by_its_parts(tmp_path: Path, pipeline: Any) -> None:
    """Of SDXL, whose text encoders have outputs that those of SD 1.x lack."""
    parts = {"text_encoder": ("CLIPTextModel", "CLIP-L"), "text_encoder_2": ("CLIPTextModelWithProjection", "SDXL 2")}
    for part, (_, config) in parts.items():
        (tmp_path / part).mkdir()
        write_json(tmp_path / part / "config.json", TEXT_ENCODERS[config])
    index = {part: ["transformers", class_name] for part, (class_name, _) in parts.items()}
    write_json(tmp_path / "model_index.json", {"_class_name": pipeline, **index})
    source = read_source(tmp_path, "it")
    assert source.index["_class_name"] == (pipeline if isinstance(pipeline, str) else "MyPipeline")
    for component in select_components(source, (), TraceCache(tmp_path)):
        assert any(output.name.startswith("hidden_states") for output in component.outputs)


def test_parts_of_an_index_are_models_by_their_classes() -> None:
    index = {"_class_name": ["a", "Class"], "unet": ["diffusers", "Model"], "scheduler": ["diffusers", "LCMScheduler"]}
    assert dict(model_parts(index)) == {"unet": "Model"}


@pytest.mark.parametrize("outputs", [4, 16])
@pytest.mark.parametrize("more", range(14))
def test_a_unet_takes_latents_or_an_image_and_a_mask_beside_them(more: int, outputs: int) -> None:
    unet, vae = {"in_channels": outputs + more, "out_channels": outputs}, {"latent_channels": outputs}
    for pipeline, taken in (
        ("StableDiffusionPipeline", {0, outputs + 1}),
        ("StableDiffusionInstructPix2PixPipeline", {0, outputs, outputs + 1}),
    ):
        if more in taken:
            check_channels({"_class_name": pipeline}, UNET, unet, vae)
        else:
            with pytest.raises(BadModelError, match=f"takes {outputs + more} channels and makes {outputs}"):
                check_channels({"_class_name": pipeline}, UNET, unet, vae)


def test_a_unet_makes_the_latents_of_its_vae() -> None:
    with pytest.raises(BadModelError, match="makes 8 channels, and the VAE decodes latents of 4"):
        check_channels({}, UNET, {"in_channels": 8, "out_channels": 8}, {"latent_channels": 4})
    check_channels({}, UNET, {"in_channels": 8, "out_channels": 8}, None)
