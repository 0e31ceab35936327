"""Tiny IP-Adapters in the layout of the published files, and a tiny CLIP image encoder; all parameters are random."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from support.models import randomize

ENCODER: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "projection_dim": 20,
    "hidden_act": "gelu",
}
HIDDEN, INNER, TOKENS, DEPTH = 32, 128, 6, 4
"""Of the resampler: width, two heads of 64, tokens, layers (diffusers builds four whatever the file has)."""


def build_image_encoder(folder: Path, **config: Any) -> Any:
    """A ``CLIPVisionModelWithProjection``, saved to ``folder``."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    encoder = CLIPVisionModelWithProjection(CLIPVisionConfig(**{**ENCODER, **config})).eval()
    randomize(encoder)
    encoder.save_pretrained(str(folder))
    return encoder


def build_ip_adapter(path: Path, unet: Any, kind: str, encoder: Any, *, seed: int = 5) -> None:
    """Write a file of the kind ``plain`` or ``plus`` for a UNet of diffusers and an encoder."""
    import torch
    from safetensors.torch import save_file

    width = unet.config.cross_attention_dim
    if kind == "plain":
        shapes = _plain(width, encoder.config.projection_dim)
    else:
        shapes = _plus(width, encoder.config.hidden_size)
    shapes = {f"image_proj.{name}": shape for name, shape in shapes.items()}
    cross = [name for name in unet.attn_processors if name.endswith("attn2.processor")]
    for number, name in enumerate(cross):
        shape = tuple(unet.get_submodule(name.removesuffix(".processor")).to_k.weight.shape)
        shapes |= {f"ip_adapter.{2 * number + 1}.to_{part}_ip.weight": shape for part in "kv"}
    generator = torch.Generator().manual_seed(seed)
    save_file({name: _values(name, shape, generator) for name, shape in shapes.items()}, path)


def published_state(path: Path) -> dict[str, dict[str, Any]]:
    """A file's tensors as diffusers' ``load_ip_adapter`` takes them."""
    from safetensors.torch import load_file

    state: dict[str, dict[str, Any]] = {"image_proj": {}, "ip_adapter": {}}
    for name, tensor in load_file(path).items():
        group, _, rest = name.partition(".")
        state[group][rest] = tensor
    return state


def _values(name: str, shape: tuple[int, ...], generator: Any) -> Any:
    import torch

    values = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return (1.0 if name.endswith("weight") else 0.0) + 0.2 * values
    return values / math.prod(shape[1:]) ** 0.5 if len(shape) == 2 else values


def _plain(width: int, embeds: int) -> dict[str, tuple[int, ...]]:
    return {
        "proj.weight": (4 * width, embeds),
        "proj.bias": (4 * width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }


def _plus(width: int, embeds: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "latents": (1, TOKENS, HIDDEN),
        "proj_in.weight": (HIDDEN, embeds),
        "proj_in.bias": (HIDDEN,),
        "proj_out.weight": (width, HIDDEN),
        "proj_out.bias": (width,),
        "norm_out.weight": (width,),
        "norm_out.bias": (width,),
    }
    for layer in range(DEPTH):
        for norm in ("0.norm1", "0.norm2", "1.0"):
            shapes |= {f"layers.{layer}.{norm}.{part}": (HIDDEN,) for part in ("weight", "bias")}
        shapes |= {
            f"layers.{layer}.0.to_q.weight": (INNER, HIDDEN),
            f"layers.{layer}.0.to_kv.weight": (2 * INNER, HIDDEN),
            f"layers.{layer}.0.to_out.weight": (HIDDEN, INNER),
            f"layers.{layer}.1.1.weight": (4 * HIDDEN, HIDDEN),
            f"layers.{layer}.1.3.weight": (HIDDEN, 4 * HIDDEN),
        }
    return shapes
