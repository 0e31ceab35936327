"""Whole pipelines of the true architectures at their true depth, made narrow, as diffusers saves them.

Levels, layers and transformer blocks are those of the released models (:mod:`full_size`); only widths are smaller. What
a pass does to one layer it has to do to the last of them too, and how many of them it can follow shows nowhere else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from support import full_size
from support.models import randomize
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

GROUPS = 32
"""Groups of every normalization, as in the released models; GPU kernels take an even number of channels each."""
HEAD = 32
"""Channels of a head where a config states heads, as the released ones state 64."""
EMBEDDING = 8
"""Width of each of SDXL's sizes and crops."""
FAMILIES: dict[str, dict[str, Any]] = {
    "sd15": {"pipeline": "StableDiffusionPipeline", "texts": {"text_encoder": "clip_l"}},
    "sd21": {"pipeline": "StableDiffusionPipeline", "texts": {"text_encoder": "openclip_h"}},
    "sdxl": {
        "pipeline": "StableDiffusionXLPipeline",
        "texts": {"text_encoder": "clip_l", "text_encoder_2": "openclip_bigg"},
    },
    # Its text encoder is the base's second one.
    "sdxl_refiner": {"pipeline": "StableDiffusionXLImg2ImgPipeline", "texts": {}},
}
WITH_VAE = ("sd15", "sdxl")


def build(family: str) -> dict[str, Any]:
    """The family's models by folder name, with random weights of a fixed seed."""
    torch.manual_seed(0)
    parts = {name: _text(text, name) for name, text in FAMILIES[family]["texts"].items()}
    context = sum(part.config.hidden_size for part in parts.values()) or 32
    parts["unet"] = UNet2DConditionModel(**_unet(family, context))
    if family in WITH_VAE:
        parts["vae"] = AutoencoderKL(**{**full_size.VAE, "block_out_channels": (64, 64, 128, 128)})
    for part in parts.values():
        randomize(part.eval())
    return parts


def save(family: str, parts: dict[str, Any], folder: Path) -> None:
    """Save the models as a diffusers folder."""
    for name, part in parts.items():
        part.save_pretrained(folder / name)
    classes = {name: [type(part).__module__.partition(".")[0], type(part).__name__] for name, part in parts.items()}
    index = {"_class_name": FAMILIES[family]["pipeline"], **classes}
    (folder / "model_index.json").write_text(json.dumps(index))


def _unet(family: str, context: int) -> dict[str, Any]:
    config = full_size.UNETS[family]
    widths = [2 * GROUPS * (level + 1) for level in range(len(config.get("block_out_channels", range(4))))]
    narrow = {**config, "block_out_channels": widths, "norm_num_groups": GROUPS, "cross_attention_dim": context}
    if "attention_head_dim" in config:
        narrow["attention_head_dim"] = [width // HEAD for width in widths]
    if "addition_time_embed_dim" in config:
        ids = 5 if family == "sdxl_refiner" else 6
        narrow |= {
            "addition_time_embed_dim": EMBEDDING,
            "projection_class_embeddings_input_dim": TEXT["projection_dim"] + ids * EMBEDDING,
        }
    return narrow


TEXT: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "projection_dim": 24,
    "bos_token_id": 298,
    "eos_token_id": 299,
    "pad_token_id": 0,
}


def _text(name: str, folder: str) -> Any:
    true = full_size.TEXTS[name]
    depth = {key: true[key] for key in ("num_hidden_layers", "hidden_act") if key in true}
    model = CLIPTextModelWithProjection if folder == "text_encoder_2" else CLIPTextModel
    return model(CLIPTextConfig(**TEXT, **depth))
