"""Single-file checkpoints: key map, configs and tokenizer, against diffusers' models of the published configs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderTiny, ControlNetModel, UNet2DConditionModel
from diffusers.loaders.single_file_utils import (
    convert_controlnet_checkpoint,
    convert_ldm_unet_checkpoint,
    convert_ldm_vae_checkpoint,
)
from support import published_configs as published
from support.full_size import VAE
from support.ldm_files import ldm_control, ldm_unet, ldm_vae, open_clip
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from sdort.checkpoints.clip_merges import read_clip_merges
from sdort.checkpoints.clip_tokenizer import write_clip_tokenizer
from sdort.checkpoints.layout import (
    clip_tensors,
    control_tensors,
    tiny_vae_tensors,
    unet_tensors,
    vae_tensors,
)
from sdort.checkpoints.ldm_names import original_unet_names
from sdort.checkpoints.shape_configs import (
    controlnet_config,
    text_config,
    tiny_vae_config,
    unet_config,
    vae_config,
)
from sdort.exporter.component_configs import class_defaults, normalise
from sdort.graph.weights import Stored

UNETS = ("SD 1.5", "SD 1.5 inpainting", "SD 2.1", "SDXL", "SDXL refiner", "LCM SDXL")
LAYERS = 2


def described(state: Mapping[str, Any]) -> dict[str, Stored]:
    """Tensors of these shapes in no file."""
    return {name: Stored(Path("nowhere"), 0, tuple(tensor.shape), np.float32) for name, tensor in state.items()}


def shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def on_meta(model_class: Any, config: Any) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        model = model_class.from_config(config) if hasattr(model_class, "from_config") else model_class(config)
    return dict(model.named_parameters())


@cache
def published_unet(name: str) -> dict[str, torch.Tensor]:
    return on_meta(UNet2DConditionModel, published.UNETS[name])


@pytest.mark.parametrize("name", UNETS)
def test_a_published_unet_is_recognised_by_its_shapes(name: str) -> None:
    state = published_unet(name)
    found = unet_tensors(described(ldm_unet(state, LAYERS)))
    assert shapes(found) == shapes(state)
    defaults = class_defaults("UNet2DConditionModel")
    expected = normalise("UNet2DConditionModel", published.UNETS[name], defaults)
    assert normalise("UNet2DConditionModel", unet_config(shapes(found)), defaults) == expected


@pytest.mark.parametrize("name", UNETS)
def test_the_key_map_of_unets_agrees_with_diffusers(name: str) -> None:
    state = {f"model.diffusion_model.{key}": tensor for key, tensor in ldm_unet(published_unet(name), LAYERS).items()}
    config = {"layers_per_block": LAYERS, "addition_embed_type": published.UNETS[name].get("addition_embed_type")}
    expected = convert_ldm_unet_checkpoint(state, config)
    found = unet_tensors(described({key.removeprefix("model.diffusion_model."): state[key] for key in state}))
    known = {key: shape for key, shape in shapes(found).items() if "cond_proj" not in key}  # diffusers leaves it out
    assert known == shapes(expected)


@pytest.mark.parametrize("name", UNETS)
def test_the_key_map_of_unets_works_in_both_directions(name: str) -> None:
    state = published_unet(name)
    for original, parameter in ldm_unet({key: key for key in state}, LAYERS).items():
        assert original in original_unet_names(parameter, LAYERS)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("SD 1.5", {}), ("SD 2.1", {}), ("SDXL", {}), ("SDXL", {"down_block_types": ("DownBlock2D",) * 3})],
    ids=["SD 1.5", "SD 2.1", "SDXL", "SDXL small"],
)
def test_a_controlnet_is_recognised_in_both_layouts(name: str, changes: dict[str, Any]) -> None:
    config = {**published.UNETS[name], **changes}
    if changes:
        config |= {"transformer_layers_per_block": 1, "mid_block_type": "UNetMidBlock2D"}
    state = on_meta(ControlNetModel, config)
    original = ldm_control(state, LAYERS)
    if not changes:  # diffusers gives the mid block the names of one with attention
        assert control_tensors(described(original)).keys() >= convert_controlnet_checkpoint(original, config).keys()
    for names in (state, original):
        found = control_tensors(described(names))
        assert shapes(found) == shapes(state)
        recognised = controlnet_config(shapes(found))
        assert shapes(on_meta(ControlNetModel, recognised)) == shapes(state)
    for key in ("down_block_types", "block_out_channels", "cross_attention_dim"):
        assert list(np.ravel(recognised[key])) == list(np.ravel(config[key])), key
    if not changes:
        heads = config["attention_head_dim"]
        assert recognised["attention_head_dim"] == (list(heads) if isinstance(heads, (list, tuple)) else heads)


def test_the_key_map_of_vaes_agrees_with_diffusers_and_its_config() -> None:
    state = on_meta(AutoencoderKL, VAE)
    original = ldm_vae(state)
    found = vae_tensors(described(original))
    expected = convert_ldm_vae_checkpoint({f"first_stage_model.{key}": tensor for key, tensor in original.items()}, VAE)
    assert shapes(found) == shapes(expected) == shapes(state)
    defaults = class_defaults("AutoencoderKL")
    actual = normalise("AutoencoderKL", vae_config(shapes(found)), defaults)
    assert actual == normalise("AutoencoderKL", json.loads(json.dumps(VAE)), defaults)


@pytest.mark.parametrize(
    ("name", "layers", "projects"), [("CLIP-L", 12, False), ("SD 2", 23, False), ("SDXL 2", 32, True)]
)
def test_text_encoders_are_recognised_by_their_shapes(name: str, layers: int, projects: bool) -> None:
    published_config = {**published.TEXT_ENCODERS[name], "num_hidden_layers": layers}
    model_class = CLIPTextModelWithProjection if projects else CLIPTextModel
    state = on_meta(model_class, CLIPTextConfig(**published_config))
    found = clip_tensors(described(state if name == "CLIP-L" else open_clip(state)))
    expected = {key.removeprefix("text_model."): shape for key, shape in shapes(state).items()}
    found = {key.removeprefix("text_model."): value for key, value in found.items() if key != "logit_scale"}
    assert shapes(found) == expected
    config = text_config(shapes(found), published_config["hidden_act"], layers)
    for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "eos_token_id"):
        assert config[key] == published_config[key], key


def test_taesd_is_recognised_in_its_own_names_and_in_those_of_diffusers() -> None:
    state = on_meta(AutoencoderTiny, {})
    original = {}
    for name, tensor in state.items():
        half, _, number, rest = name.split(".", 3)
        original[f"{half}.{int(number) + (half == 'decoder')}.{rest}"] = tensor
    for names in (state, original):
        found = tiny_vae_tensors(described(names))
        assert shapes(found) == shapes(state)
        assert AutoencoderTiny.from_config(tiny_vae_config(shapes(found))).config.decoder_block_out_channels


def test_the_tokenizer_is_clips(tmp_path: Path) -> None:
    """The numbers are those of openai/CLIP's own tokenizer."""
    assert write_clip_tokenizer(tmp_path, read_clip_merges(), pad="!") == 49408
    tokenizer = CLIPTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("a photo of a cat", padding="max_length", max_length=9).input_ids
    assert ids == [49406, 320, 1125, 539, 320, 2368, 49407, 0, 0]
    assert tokenizer("").input_ids == [49406, 49407]
    assert tokenizer("Hello, WORLD! naïve 猫 🐱").input_ids[1:3] == [3306, 267]
