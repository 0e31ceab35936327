"""Tiny pipelines of transformers in the layouts of single files, whose shapes tell all of their configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from support import authors_layouts, models, tiny_chroma, tiny_flux, tiny_sd3, tiny_z_image
from support.ldm_files import ldm_vae, save, with_prefix

from sdort.console import quiet_libraries

CLIP: dict[str, Any] = {
    "vocab_size": 600, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 1,
    "projection_dim": 64, "hidden_act": "quick_gelu", "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip
CLIP_G = {**CLIP, "hidden_act": "gelu", "projection_dim": 16, "num_hidden_layers": 3}
QWEN = {
    **tiny_z_image.TEXT, "rope_theta": 1_000_000.0, "tie_word_embeddings": True, "max_position_embeddings": 40960,
}  # fmt: skip
WIDE = {"attention_head_dim": 32, "axes_dims_rope": (4, 14, 14), "num_single_layers": 2}
FLUX = {**tiny_flux.TRANSFORMER, **WIDE}
AXES = {"axes_lens": [1536, 512, 512]}


@dataclass
class Made:
    """A pipeline's models, and its tensors in the authors' layout without a prefix."""

    parts: dict[str, Any]
    transformer: dict[str, Any]
    texts: dict[str, str]
    """Component -> its name in ComfyUI's whole files."""

    @property
    def rest(self) -> dict[str, Any]:
        """All but the transformer, as ComfyUI writes it."""
        made = with_prefix("first_stage_model.", ldm_vae(self.parts["vae"].state_dict()))
        for component, name in self.texts.items():
            state = self.parts[component].state_dict()
            if name == "clip_l":
                state.pop("text_projection.weight", None)
            if name in ("clip_l", "clip_g"):
                state = {key if key.startswith("text_") else f"text_model.{key}": each for key, each in state.items()}
            if name == "qwen3_4b":
                state = with_prefix("model.", state)
            made |= with_prefix(f"text_encoders.{name}.transformer.", state)
            made[f"text_encoders.{name}.logit_scale"] = torch.ones(())
        return made


def clip(config: Mapping[str, Any], *, projected: bool) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(CLIPTextConfig(**config))


@cache
def build(family: str) -> Made:
    from diffusers import (
        AutoencoderKL,
        ChromaTransformer2DModel,
        FluxTransformer2DModel,
        SD3Transformer2DModel,
        ZImageTransformer2DModel,
    )
    from transformers import Qwen3Config, Qwen3Model, T5Config, T5EncoderModel

    torch.manual_seed(models.SEED)
    wide = {"block_out_channels": (32, 32), "norm_num_groups": 32}
    if family == "SD 3":
        parts = {
            "transformer": SD3Transformer2DModel(**tiny_sd3.TRANSFORMER),
            "vae": AutoencoderKL(**{**tiny_sd3.VAE, **wide}),
            "text_encoder": clip(CLIP, projected=True),
            "text_encoder_2": clip(CLIP_G, projected=True),
            "text_encoder_3": T5EncoderModel(T5Config(**tiny_sd3.T5)),
        }
        texts = {"text_encoder": "clip_l", "text_encoder_2": "clip_g", "text_encoder_3": "t5xxl"}
        layout: Callable[[Any], dict[str, Any]] = authors_layouts.sd3
    elif family == "Flux.1":
        parts = {
            "transformer": FluxTransformer2DModel(**FLUX, guidance_embeds=True),
            "vae": AutoencoderKL(**{**tiny_flux.VAE, **wide}),
            "text_encoder": clip({**CLIP, "projection_dim": 768}, projected=False),
            "text_encoder_2": T5EncoderModel(T5Config(**tiny_flux.TEXT_2)),
        }
        texts, layout = {"text_encoder": "clip_l", "text_encoder_2": "t5xxl"}, authors_layouts.flux
    elif family == "Chroma":
        with quiet_libraries():
            transformer = ChromaTransformer2DModel(**{**tiny_chroma.TRANSFORMER, **WIDE})
        parts = {
            "transformer": transformer,
            "vae": AutoencoderKL(**{**tiny_flux.VAE, **wide}),
            "text_encoder": T5EncoderModel(T5Config(**tiny_flux.TEXT_2)),
        }
        texts, layout = {"text_encoder": "t5xxl"}, authors_layouts.chroma
    else:
        parts = {
            "transformer": ZImageTransformer2DModel(**{**tiny_z_image.TRANSFORMER, **AXES}),
            "vae": AutoencoderKL(**{**tiny_z_image.VAE, **wide}),
            "text_encoder": Qwen3Model(Qwen3Config(**QWEN)),
        }
        texts, layout = {"text_encoder": "qwen3_4b"}, authors_layouts.z_image
    for part in parts.values():
        models.randomize(part.eval())
    if family == "SD 3":  # no file has this one
        with torch.no_grad():
            parts["text_encoder"].text_projection.weight.copy_(torch.eye(64))
    return Made(parts, layout(parts["transformer"].state_dict()), texts)


def write(path: Path, tensors: Mapping[str, Any]) -> Path:
    save({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path
