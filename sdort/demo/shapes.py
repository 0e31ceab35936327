"""Shapes of the released models, from the ``config.json`` of each, and those of a tiny Stable Diffusion 1.x.

Where a config says nothing, diffusers' or transformers' own default is what was released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sdort.demo.tokenizer import MERGES
from sdort.families.data import sd1, sd2, sdxl, sdxl_refiner
from sdort.families.family import Config, Family
from sdort.families.scheduler_configs import DDIM_V
from sdort.families.unet import INPAINTING

SD1_UNET: Config = {"sample_size": 64, "cross_attention_dim": 768}
SD2_UNET: Config = {
    "sample_size": 64,
    "cross_attention_dim": 1024,
    "attention_head_dim": [5, 10, 20, 20],
    "use_linear_projection": True,
}
_XL: Config = {
    "sample_size": 128,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
}
SDXL_UNET: Config = {
    **_XL,
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "cross_attention_dim": 2048,
    "projection_class_embeddings_input_dim": 2816,
}
REFINER_UNET: Config = {
    **_XL,
    "block_out_channels": (384, 768, 1536, 1536),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": 4,
    "attention_head_dim": [6, 12, 24, 24],
    "cross_attention_dim": 1280,
    "projection_class_embeddings_input_dim": 2560,
}
VAE: Config = {
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
}
"""The VAE of all these families."""
CLIP_L: Config = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
OPENCLIP_H: Config = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 23,
    "num_attention_heads": 16,
    "hidden_act": "gelu",
}
OPENCLIP_G: Config = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "hidden_act": "gelu",
    "projection_dim": 1280,
}

# Stable Diffusion 1.5's shape, narrowed: the same levels and blocks, one layer a block instead of two, and head sizes
# of 16 and 32 instead of 40 to 160. GPU kernels of GroupNorm want an even number of channels in each of the 32 groups,
# so no level is narrower than 64.
_TINY = 64
_TINY_UNET: Config = {
    "sample_size": 32,
    "block_out_channels": (_TINY, _TINY, _TINY, 2 * _TINY),
    "layers_per_block": 1,
    "cross_attention_dim": _TINY,
    "attention_head_dim": 4,
}
_TINY_VAE: Config = {**VAE, "sample_size": 256, "block_out_channels": (_TINY,) * 4, "layers_per_block": 1}
_TINY_TEXT: Config = {
    "hidden_size": _TINY,
    "intermediate_size": 4 * _TINY,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "projection_dim": _TINY,
}


@dataclass(frozen=True)
class Shape:
    """The shape of a pipeline: configs of its components on top of what its family shares."""

    family: Family
    unet: Config
    texts: tuple[Config, ...]
    """Of each text encoder of the family, in its order."""
    variant: str | None = None
    vae: Config = field(default_factory=lambda: VAE)
    scheduler: Config | None = None
    """None for the family's."""
    dtype: str = "float16"
    """Of the stored weights: as model sites have them."""
    merges: Sequence[str] = ()
    """Of its tokenizers; CLIP's by default."""


SHAPES: dict[str, Shape] = {
    "sd15": Shape(sd1.FAMILY, SD1_UNET, (CLIP_L,)),
    "sd15-inpainting": Shape(sd1.FAMILY, {**SD1_UNET, "in_channels": 9}, (CLIP_L,), INPAINTING),
    "sd21": Shape(sd2.FAMILY, {**SD2_UNET, "sample_size": 96}, (OPENCLIP_H,), scheduler=DDIM_V),
    "sdxl": Shape(sdxl.FAMILY, SDXL_UNET, (CLIP_L, OPENCLIP_G)),
    "sdxl-refiner": Shape(sdxl_refiner.FAMILY, REFINER_UNET, (OPENCLIP_G,)),
    "tiny": Shape(
        sd1.FAMILY, _TINY_UNET, (_TINY_TEXT,), vae=_TINY_VAE, dtype="float32", merges=MERGES
    ),
}  # fmt: skip
