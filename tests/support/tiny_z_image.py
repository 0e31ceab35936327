"""A tiny Z-Image pipeline as diffusers saves it: the classes and the number of axes of the released ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.models import SEED, randomize

HEADS, SIZE = 2, 16
WIDTH = HEADS * SIZE
TEXT: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
TRANSFORMER: dict[str, Any] = {
    "dim": WIDTH, "n_layers": 2, "n_refiner_layers": 1, "n_heads": HEADS, "n_kv_heads": HEADS, "cap_feat_dim": 24,
    "axes_dims": [4, 6, 6], "axes_lens": [1024, 256, 256],
}  # fmt: skip
VAE: dict[str, Any] = {
    "block_out_channels": (8, 8), "down_block_types": ("DownEncoderBlock2D",) * 2, "latent_channels": 16,
    "up_block_types": ("UpDecoderBlock2D",) * 2, "norm_num_groups": 4, "scaling_factor": 0.3611,
    "shift_factor": 0.1159, "use_quant_conv": False, "use_post_quant_conv": False, "layers_per_block": 1,
}  # fmt: skip


def build(**depth: int) -> dict[str, Any]:
    """Its models by folder name, with distinct random parameters of a fixed seed, gates too."""
    import torch
    from diffusers import AutoencoderKL, ZImageTransformer2DModel
    from transformers import Qwen3Config, Qwen3Model

    torch.manual_seed(SEED)
    parts = {
        "transformer": ZImageTransformer2DModel(**{**TRANSFORMER, **depth}),
        "text_encoder": Qwen3Model(Qwen3Config(**TEXT)),
        "vae": AutoencoderKL(**VAE),
    }
    for part in parts.values():
        randomize(part.eval())
    return parts


def save(parts: dict[str, Any], folder: Path) -> None:
    """Save a pipeline of these models."""
    from diffusers import FlowMatchEulerDiscreteScheduler
    from support.plain_tokenizers import qwen_checkpoint

    for name, part in parts.items():
        part.save_pretrained(folder / name)
    (folder / "tokenizer").mkdir()
    qwen_checkpoint(folder / "tokenizer")
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    index = {
        "_class_name": "ZImagePipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen3Model"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "ZImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
