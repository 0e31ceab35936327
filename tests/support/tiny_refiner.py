"""A tiny refiner of SDXL's architecture for the base of :mod:`support.tiny_sdxl`, with random weights of a fixed seed.

As SDXL's own it has the second text encoder alone, takes five numbers beside the pooled embedding (the size, the crop
and an aesthetic score), and encodes an empty negative prompt. Its UNet has one level, which halves the time of its
trace; the base's has more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import models, tiny_sdxl

UNET: dict[str, Any] = {
    **tiny_sdxl.UNET,
    **tiny_sdxl.ONE_LEVEL,
    "sample_size": 8,
    "cross_attention_dim": tiny_sdxl.TEXT_2["hidden_size"],
    "projection_class_embeddings_input_dim": tiny_sdxl.TEXT_2["projection_dim"] + 5 * 8,
}


def build_diffusers(folder: Path, base: Any) -> Any:
    """Build diffusers' pipeline beside that of the base, whose VAE and second text encoder it has; save it."""
    import torch
    from diffusers import StableDiffusionXLImg2ImgPipeline, UNet2DConditionModel

    torch.manual_seed(models.SEED + 1)
    unet = UNet2DConditionModel(**UNET)
    models.randomize(unet.eval())
    pipeline = StableDiffusionXLImg2ImgPipeline(
        vae=base.vae,
        text_encoder=None,
        text_encoder_2=base.text_encoder_2,
        tokenizer=None,
        tokenizer_2=base.tokenizer_2,
        unet=unet,
        scheduler=base.scheduler,
        requires_aesthetics_score=True,
        force_zeros_for_empty_prompt=False,
        add_watermarker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(str(folder))
    return pipeline
