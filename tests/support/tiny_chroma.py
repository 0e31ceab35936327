"""A tiny Chroma pipeline of the true architecture, with random weights of a fixed seed: its parts are Flux.1's but for
the transformer, whose modulations one network makes of the timestep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import models
from support.tiny_flux import TEXT_2, VAE, t5_tokenizer
from support.tiny_flux import TRANSFORMER as FLUX

from sdort.console import quiet_libraries

TRANSFORMER: dict[str, Any] = {
    **{name: value for name, value in FLUX.items() if name != "pooled_projection_dim"},
    "approximator_num_channels": 16,
    "approximator_hidden_dim": 40,
    "approximator_layers": 2,
}


def build_diffusers(folder: Path) -> Any:
    """Build diffusers' pipeline and save it to ``folder``."""
    import torch
    from diffusers import AutoencoderKL, ChromaPipeline, ChromaTransformer2DModel, FlowMatchEulerDiscreteScheduler
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(models.SEED)
    with quiet_libraries():  # diffusers' own module has a deprecated one
        parts = {
            "vae": AutoencoderKL(**VAE),
            "text_encoder": T5EncoderModel(T5Config(**TEXT_2)),
            "transformer": ChromaTransformer2DModel(**TRANSFORMER),
        }
    for part in parts.values():
        models.randomize(part.eval())
    pipeline = ChromaPipeline(**parts, tokenizer=t5_tokenizer(), scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0))
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(str(folder))
    return pipeline
