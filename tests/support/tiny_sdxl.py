"""A tiny SDXL pipeline of the true architecture, with random weights of a fixed seed.

As in SDXL the text encoders are of different widths, the second one projects, their tokenizers pad with different
tokens, the UNet projects linearly, has transformers of another depth at each level and takes sizes, and an empty
negative prompt is zeros. Its autoencoder spans 32 pixels a latent, so that the usual 1024x1024 are 32x32 latents.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import models
from support.tiny_pipeline import SCHEDULER, byte_tokenizer

TEXT: dict[str, Any] = {
    "vocab_size": 514,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_act": "quick_gelu",
    "bos_token_id": 512,
    "eos_token_id": 513,
    "pad_token_id": 513,
}
TEXT_2 = {**TEXT, "hidden_size": 32, "intermediate_size": 64, "hidden_act": "gelu", "projection_dim": 24}
UNET: dict[str, Any] = {
    "sample_size": 32,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "use_linear_projection": True,
    "attention_head_dim": [4, 8],
    "transformer_layers_per_block": [1, 2],
    "cross_attention_dim": TEXT["hidden_size"] + TEXT_2["hidden_size"],
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": TEXT_2["projection_dim"] + 6 * 8,
}
ONE_LEVEL: dict[str, Any] = {
    "block_out_channels": (32,),
    "down_block_types": ("CrossAttnDownBlock2D",),
    "up_block_types": ("CrossAttnUpBlock2D",),
    "attention_head_dim": 4,
    "transformer_layers_per_block": 1,
}
"""Changes of :data:`UNET` for what does not depend on its depth: a trace takes half the time."""
LEVELS = 6
VAE: dict[str, Any] = {
    "block_out_channels": (8,) * LEVELS,
    "norm_num_groups": 4,
    "layers_per_block": 1,
    "down_block_types": ("DownEncoderBlock2D",) * LEVELS,
    "up_block_types": ("UpDecoderBlock2D",) * LEVELS,
    "scaling_factor": 0.13025,
}


def build_diffusers(folder: Path, unet: dict[str, Any] | None = None) -> Any:
    """Build diffusers' pipeline and save it to ``folder``."""
    import torch
    from diffusers import AutoencoderKL, EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    torch.manual_seed(models.SEED)
    parts = {
        "vae": AutoencoderKL(**VAE),
        "text_encoder": CLIPTextModel(CLIPTextConfig(**TEXT)),
        "text_encoder_2": CLIPTextModelWithProjection(CLIPTextConfig(**TEXT_2)),
        "unet": UNet2DConditionModel(**{**UNET, **(unet or {})}),
    }
    for part in parts.values():
        models.randomize(part.eval())
    second = byte_tokenizer(folder / "tokenizer_2")
    second.pad_token = "!"
    settings = {key: value for key, value in SCHEDULER.items() if key not in ("clip_sample", "set_alpha_to_one")}
    pipeline = StableDiffusionXLPipeline(
        **parts,
        tokenizer=byte_tokenizer(folder / "tokenizer"),
        tokenizer_2=second,
        scheduler=EulerDiscreteScheduler(**settings),
        add_watermarker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(str(folder))
    return pipeline
