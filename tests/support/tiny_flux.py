"""Tiny Flux.1 pipelines of the true architecture, with random weights of a fixed seed.

As of dev the transformer takes the guidance scale, of schnell it takes none. The autoencoder spans 2 pixels a latent,
so that a token spans 4.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import models
from support.tiny_pipeline import byte_tokenizer

TEXT: dict[str, Any] = {
    "vocab_size": 514,
    "hidden_size": 20,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_act": "quick_gelu",
    "bos_token_id": 512,
    "eos_token_id": 513,
    "pad_token_id": 513,
}
TEXT_2: dict[str, Any] = {
    "vocab_size": 300,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 2,
    "feed_forward_proj": "gated-gelu",
}
TRANSFORMER: dict[str, Any] = {
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": TEXT_2["d_model"],
    "pooled_projection_dim": TEXT["hidden_size"],
    "axes_dims_rope": (4, 6, 6),
}
VAE: dict[str, Any] = {
    "block_out_channels": (16, 16),
    "norm_num_groups": 4,
    "layers_per_block": 1,
    "latent_channels": 16,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
DEV = {"shift": 3.0, "use_dynamic_shifting": True}
SCHNELL = {"shift": 1.0, "use_dynamic_shifting": False}
PIECES = [*"abcdefghijklmnopqrstuvwxyz", "\u2581a", "\u2581red", "\u2581cat", "\u2581"]


def t5_tokenizer() -> Any:
    """A tokenizer like T5's, of single letters and a few words."""
    from transformers import T5TokenizerFast

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((piece, -2.0) for piece in PIECES)]
    return T5TokenizerFast(vocab=pieces, extra_ids=4, model_max_length=512)


def build_diffusers(folder: Path, kind: str, **transformer: Any) -> Any:
    """Build diffusers' pipeline and save it to ``folder``.

    Args:
        kind: ``dev`` or ``schnell``.
        transformer: changes of its config.
    """
    import torch
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    torch.manual_seed(models.SEED)
    parts = {
        "vae": AutoencoderKL(**VAE),
        "text_encoder": CLIPTextModel(CLIPTextConfig(**TEXT)),
        "text_encoder_2": T5EncoderModel(T5Config(**TEXT_2)),
        "transformer": FluxTransformer2DModel(**{**TRANSFORMER, **transformer}, guidance_embeds=kind == "dev"),
    }
    for part in parts.values():
        models.randomize(part.eval())
    pipeline = FluxPipeline(
        **parts,
        tokenizer=byte_tokenizer(folder / "tokenizer"),
        tokenizer_2=t5_tokenizer(),
        scheduler=FlowMatchEulerDiscreteScheduler(**(DEV if kind == "dev" else SCHNELL)),
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(str(folder))
    return pipeline
