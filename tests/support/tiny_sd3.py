"""A tiny Stable Diffusion 3 pipeline of the true architecture, as diffusers saves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from support import models
from support.tiny_pipeline import byte_tokenizer

HEADS, SIZE = 2, 16
WIDTH = HEADS * SIZE
TEXT: dict[str, Any] = {
    "vocab_size": 514, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
    "bos_token_id": 512, "eos_token_id": 513, "pad_token_id": 513, "projection_dim": 12,
}  # fmt: skip
TEXT_2 = {**TEXT, "hidden_size": 8, "hidden_act": "gelu", "projection_dim": 8, "num_hidden_layers": 2}
T5 = {
    "vocab_size": 300, "d_model": 40, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": HEADS,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip
TRANSFORMER: dict[str, Any] = {
    "sample_size": 16, "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": 3,
    "attention_head_dim": SIZE, "num_attention_heads": HEADS, "joint_attention_dim": T5["d_model"],
    "caption_projection_dim": WIDTH, "pooled_projection_dim": TEXT["projection_dim"] + TEXT_2["projection_dim"],
    "pos_embed_max_size": 40, "dual_attention_layers": (0,), "qk_norm": "rms_norm",
}  # fmt: skip
VAE: dict[str, Any] = {
    "block_out_channels": (8, 16), "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2, "norm_num_groups": 4, "layers_per_block": 1, "latent_channels": 16,
    "scaling_factor": 1.5305, "shift_factor": 0.0609, "use_quant_conv": False, "use_post_quant_conv": False,
}  # fmt: skip


def t5_tokenizer() -> Any:
    """T5's tokenizer, whose pieces are single letters."""
    from transformers import T5TokenizerFast

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(chr(code), -3.0 - code / 100) for code in range(33, 127)]
    return T5TokenizerFast(vocab=pieces, extra_ids=0)


def build_diffusers(folder: Path, *, t5: bool = True) -> Any:
    """Build the pipeline, save it to ``folder``, and return it; all parameters are random and distinct."""
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        SD3Transformer2DModel,
        StableDiffusion3Pipeline,
    )
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

    torch.manual_seed(models.SEED)
    parts: dict[str, Any] = {
        "transformer": SD3Transformer2DModel(**TRANSFORMER),
        "vae": AutoencoderKL(**VAE),
        "text_encoder": CLIPTextModelWithProjection(CLIPTextConfig(**TEXT)),
        "text_encoder_2": CLIPTextModelWithProjection(CLIPTextConfig(**TEXT_2)),
        "text_encoder_3": T5EncoderModel(T5Config(**T5)) if t5 else None,
    }
    for part in parts.values():
        if part is not None:
            models.randomize(part.eval())
    pipeline = StableDiffusion3Pipeline(
        **parts,
        tokenizer=byte_tokenizer(folder.with_name(f"{folder.name} words")),
        tokenizer_2=byte_tokenizer(folder.with_name(f"{folder.name} words 2")),
        tokenizer_3=t5_tokenizer() if t5 else None,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
    pipeline.save_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
