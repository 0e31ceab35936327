"""The real architectures' configs, and their modules without any weights."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from support.models import Built, TextEncoder, UNet, VaeDecoder, VaeEncoder
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from sdort.demo import shapes

UNETS: dict[str, dict[str, Any]] = {
    "sd15": {**shapes.SD1_UNET},
    "sd15_inpaint": {**shapes.SHAPES["sd15-inpainting"].denoiser},
    "sd21": {**shapes.SD2_UNET},
    "sdxl": {**shapes.SDXL_UNET},
    "sdxl_refiner": {**shapes.REFINER_UNET},
}
VAE: dict[str, Any] = {**shapes.VAE, "latent_channels": 4}
TEXTS: dict[str, dict[str, Any]] = {
    "clip_l": {**shapes.CLIP_L},
    "openclip_h": {**shapes.OPENCLIP_H},
    "openclip_bigg": {**shapes.OPENCLIP_G},
}
NAMES = (*UNETS, "vae_encoder", "vae_decoder", *TEXTS)


def build_full(name: str) -> Built:
    """The named architecture on the meta device, with example inputs there: shapes and no storage."""
    with torch.device("meta"):
        if name in UNETS:
            return _unet(name)
        return _vae(name) if name.startswith("vae") else _text(name)


def _unet(name: str) -> Built:
    model = UNet2DConditionModel(**{"sample_size": 64, **UNETS[name]}).eval()
    config = dict(model.config)
    inputs = {
        "sample": torch.empty(2, config["in_channels"], 64, 64),
        "timestep": torch.empty(1, dtype=torch.int64),
        "encoder_hidden_states": torch.empty(2, 77, config["cross_attention_dim"]),
    }
    dynamic = {
        "sample": {0: "batch", 2: "height", 3: "width"},
        "timestep": {},
        "encoder_hidden_states": {0: "batch", 1: "sequence"},
    }
    if config["addition_embed_type"]:
        ids = 6 if name == "sdxl" else 5
        pooled = config["projection_class_embeddings_input_dim"] - ids * config["addition_time_embed_dim"]
        inputs |= {"text_embeds": torch.empty(2, pooled), "time_ids": torch.empty(2, ids)}
        dynamic |= {"text_embeds": {0: "batch"}, "time_ids": {0: "batch"}}
    return Built("unet", config, UNet(model), inputs, ["out_sample"], dynamic, model)


def _vae(name: str) -> Built:
    model = AutoencoderKL(**VAE).eval()
    encoder = name == "vae_encoder"
    key = "sample" if encoder else "latent_sample"
    inputs = {key: torch.empty(2, 3, 64, 96) if encoder else torch.empty(2, 4, 64, 96)}
    module = (VaeEncoder if encoder else VaeDecoder)(model)
    outputs = ["latent_parameters" if encoder else "sample"]
    return Built(name, dict(model.config), module, inputs, outputs, {key: {0: "batch", 2: "height", 3: "width"}}, model)


def _text(name: str) -> Built:
    config = CLIPTextConfig(**TEXTS[name])
    projection = "projection_dim" in TEXTS[name]
    model = (CLIPTextModelWithProjection if projection else CLIPTextModel)(config).eval()
    outputs = ["last_hidden_state", "pooler_output"]
    if projection:
        hidden = [f"hidden_states.{i}" for i in range(config.num_hidden_layers + 1)]
        outputs = ["text_embeds", "last_hidden_state", *hidden]
    inputs = {"input_ids": torch.empty(2, 77, dtype=torch.int64)}
    return Built(
        "text_encoder_2" if projection else "text_encoder",
        config.to_dict(),
        TextEncoder(model, projection),
        inputs,
        outputs,
        {"input_ids": {0: "batch", 1: "sequence"}},
        model,
    )
