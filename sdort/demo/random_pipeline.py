"""A tiny Stable Diffusion 1.x pipeline with random weights, made locally. Imports torch, diffusers, transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from safetensors.torch import load_file, save_file

from sdort.console import quiet_libraries
from sdort.demo.tokenizer import write_tokenizer
from sdort.pipelines.clip_tokenizer import LENGTH

WEIGHT_SEED = 15

# Stable Diffusion 1.5's configs, narrowed: the same levels and blocks, one layer a block instead of two, and head
# sizes of 16 and 32 instead of 40 to 160. GPU kernels of GroupNorm want an even number of channels in each of the 32
# groups, so no level is narrower than 64.
_WIDTH = 64
_UNET: dict[str, Any] = {
    "sample_size": 32,
    "block_out_channels": (64, 64, 64, 128),
    "layers_per_block": 1,
    "cross_attention_dim": _WIDTH,
    "attention_head_dim": 4,
}
_VAE: dict[str, Any] = {
    "sample_size": 256,
    "block_out_channels": (64, 64, 64, 64),
    "layers_per_block": 1,
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
}
_TEXT: dict[str, Any] = {
    "hidden_size": _WIDTH,
    "intermediate_size": 4 * _WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "hidden_act": "quick_gelu",
    "projection_dim": _WIDTH,
}
_SCHEDULER: dict[str, Any] = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "skip_prk_steps": True,
    "set_alpha_to_one": False,
    "steps_offset": 1,
}


def make_demo(folder: Path) -> None:
    """Write a diffusers directory that ``StableDiffusionPipeline.from_pretrained`` loads; always the same one."""
    size = write_tokenizer(folder / "tokenizer")
    text = {**_TEXT, "vocab_size": size, "bos_token_id": size - 2, "eos_token_id": size - 1, "pad_token_id": size - 1}
    # Forked, so that a caller's own random numbers are not disturbed.
    with quiet_libraries(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(WEIGHT_SEED)
        diffusers.StableDiffusionPipeline(
            vae=diffusers.AutoencoderKL(**_VAE),
            text_encoder=transformers.CLIPTextModel(transformers.CLIPTextConfig(**text)),
            tokenizer=transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer"),
            unet=diffusers.UNet2DConditionModel(**_UNET),
            scheduler=diffusers.PNDMScheduler(**_SCHEDULER),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        ).save_pretrained(folder)
    rename_parameters(folder / "text_encoder" / "model.safetensors")
    # transformers saves its newest format only; these files are what every version reads.
    write_tokenizer(folder / "tokenizer")


def rename_parameters(path: Path) -> None:
    """Name the text encoder's parameters as all published checkpoints do.

    transformers 5 reads both, but saves a new model without the inner module's name, and transformers 4 then starts
    from random values with no more than a warning.
    """
    tensors = load_file(path)
    save_file({f"text_model.{name}": tensor for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
