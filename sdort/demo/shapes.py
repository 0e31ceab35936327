"""Shapes of the released models, from the ``config.json`` of each, and those of a tiny Stable Diffusion 1.x.

Where a config says nothing, diffusers' or transformers' own default is what was released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sdort.demo.tokenizer import MERGES
from sdort.families.data import chroma, flux, sd1, sd2, sd3, sdxl, sdxl_refiner, z_image
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

VAE_16: Config = {**VAE, "latent_channels": 16}
"""The VAE of transformers."""
T5_XXL: Config = {
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "vocab_size": 32128,
}
_PROJECTED_L: Config = {**CLIP_L, "projection_dim": 768}
_SD3: Config = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "attention_head_dim": 64,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "qk_norm": "rms_norm",
}
SD35_MEDIUM: Config = {
    **_SD3,
    "num_layers": 24,
    "num_attention_heads": 24,
    "caption_projection_dim": 1536,
    "dual_attention_layers": tuple(range(13)),
    "pos_embed_max_size": 384,
}
SD35_LARGE: Config = {
    **_SD3,
    "num_layers": 38,
    "num_attention_heads": 38,
    "caption_projection_dim": 2432,
    "pos_embed_max_size": 192,
}
Z_IMAGE: Config = {"n_layers": 30}
"""Else as diffusers' class begins."""
QWEN3_4B: Config = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_theta": 1_000_000.0,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
FLUX_DEV: Config = {"guidance_embeds": True}
"""Else as diffusers' class begins, as is the whole of FLUX.1-schnell's."""
FLUX_SCHNELL: Config = {"guidance_embeds": False}
CHROMA: Config = {}
"""As diffusers' class begins."""

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
# Stable Diffusion 3.5's, narrowed in the same way: two blocks, of which one attends to the image twice.
_TINY_SD35: Config = {
    **_SD3,
    "sample_size": 32,
    "num_layers": 2,
    "num_attention_heads": 4,
    "attention_head_dim": 16,
    "caption_projection_dim": _TINY,
    "joint_attention_dim": 2 * _TINY,
    "pooled_projection_dim": 2 * _TINY,
    "dual_attention_layers": (0,),
    "pos_embed_max_size": 96,
}
_TINY_VAE_16: Config = {**_TINY_VAE, "latent_channels": 16}
_TINY_T5: Config = {
    **T5_XXL,
    "d_model": 2 * _TINY,
    "d_kv": 16,
    "d_ff": 4 * _TINY,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 384,
}
# Z-Image's, too: two blocks behind one for the image and one for the text.
_TINY_Z_IMAGE: Config = {
    "dim": _TINY,
    "n_layers": 2,
    "n_refiner_layers": 1,
    "n_heads": 2,
    "n_kv_heads": 2,
    "cap_feat_dim": _TINY,
    "axes_dims": [8, 12, 12],
    "axes_lens": [1024, 64, 64],
}
_TINY_QWEN3: Config = {
    **QWEN3_4B,
    "hidden_size": _TINY,
    "intermediate_size": 4 * _TINY,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 384,
}
# Flux.1's, too: one block with two streams and two with one.
_TINY_FLUX: Config = {
    "num_layers": 1,
    "num_single_layers": 2,
    "attention_head_dim": 32,
    "num_attention_heads": 2,
    "joint_attention_dim": 2 * _TINY,
    "pooled_projection_dim": _TINY,
    "guidance_embeds": True,
    "axes_dims_rope": (8, 12, 12),
}
# Chroma's, too: the same blocks, and two layers in the network that makes their modulations.
_TINY_CHROMA: Config = {
    **{name: value for name, value in _TINY_FLUX.items() if name not in ("pooled_projection_dim", "guidance_embeds")},
    "approximator_hidden_dim": _TINY,
    "approximator_layers": 2,
}


@dataclass(frozen=True)
class Shape:
    """The shape of a pipeline: configs of its components on top of what its family shares."""

    family: Family
    denoiser: Config
    texts: tuple[Config, ...]
    """Of each text encoder of the family, in its order."""
    variant: str | None = None
    vae: Config = field(default_factory=lambda: VAE)
    scheduler: Config | None = None
    """None for the family's."""
    dtype: str = "float16"
    """Of the stored weights: as model sites have them."""
    merges: Sequence[str] = ()
    """Of its tokenizers; CLIP's by default. Tokenizers of plain text know single letters alone."""


SHAPES: dict[str, Shape] = {
    "sd15": Shape(sd1.FAMILY, SD1_UNET, (CLIP_L,)),
    "sd15-inpainting": Shape(sd1.FAMILY, {**SD1_UNET, "in_channels": 9}, (CLIP_L,), INPAINTING),
    "sd21": Shape(sd2.FAMILY, {**SD2_UNET, "sample_size": 96}, (OPENCLIP_H,), scheduler=DDIM_V),
    "sdxl": Shape(sdxl.FAMILY, SDXL_UNET, (CLIP_L, OPENCLIP_G)),
    "sdxl-refiner": Shape(sdxl_refiner.FAMILY, REFINER_UNET, (OPENCLIP_G,)),
    "sd35-medium": Shape(sd3.FAMILY, SD35_MEDIUM, (_PROJECTED_L, OPENCLIP_G, T5_XXL), vae=VAE_16),
    "sd35-large": Shape(sd3.FAMILY, SD35_LARGE, (_PROJECTED_L, OPENCLIP_G, T5_XXL), vae=VAE_16),
    "z-image": Shape(z_image.FAMILY, Z_IMAGE, (QWEN3_4B,), vae=VAE_16),
    "flux-dev": Shape(flux.FAMILY, FLUX_DEV, (CLIP_L, T5_XXL), vae=VAE_16),
    "flux-schnell": Shape(flux.FAMILY, FLUX_SCHNELL, (CLIP_L, T5_XXL), vae=VAE_16),
    "chroma": Shape(chroma.FAMILY, CHROMA, (T5_XXL,), vae=VAE_16),
    "tiny": Shape(
        sd1.FAMILY, _TINY_UNET, (_TINY_TEXT,), vae=_TINY_VAE, dtype="float32", merges=MERGES
    ),
    "tiny-sd35": Shape(
        sd3.FAMILY, _TINY_SD35, (_TINY_TEXT, _TINY_TEXT, _TINY_T5), vae=_TINY_VAE_16, dtype="float32", merges=MERGES
    ),
    "tiny-flux": Shape(
        flux.FAMILY, _TINY_FLUX, (_TINY_TEXT, _TINY_T5), vae=_TINY_VAE_16, dtype="float32", merges=MERGES
    ),
    "tiny-chroma": Shape(chroma.FAMILY, _TINY_CHROMA, (_TINY_T5,), vae=_TINY_VAE_16, dtype="float32"),
    "tiny-z-image": Shape(z_image.FAMILY, _TINY_Z_IMAGE, (_TINY_QWEN3,), vae=_TINY_VAE_16, dtype="float32"),
}  # fmt: skip
