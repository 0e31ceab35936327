"""Tiny models of the true architectures; :mod:`exports` writes them as ONNX.

Models are built from diffusers' and transformers' own classes with a fixed seed. All parameters are random and
distinct: a fresh norm (gamma 1, beta 0) would hide a swapped or forgotten parameter, and exporters merge
initializers that happen to be equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

SEED = 20240


@dataclass
class Built:
    """A torch module ready to be traced, with the names an ONNX pipeline uses."""

    component: str
    config: dict[str, Any]
    """The diffusers or transformers config that :mod:`sdort.optimizer.expected` reads."""
    module: Any
    inputs: dict[str, Any]
    """Example tensors by input name, in the order of ``module.forward``."""
    outputs: list[str]
    dynamic: dict[str, dict[int, str]]
    model: Any
    """The diffusers or transformers model inside ``module``."""


def build(family: str, *, legacy: bool = False, odd: bool = False) -> Built:
    """Build the tiny model of a family; see ``FAMILIES`` for the names."""
    torch.manual_seed(SEED)
    built = FAMILIES[family](legacy, odd)
    randomize(built.model)
    built.module.eval()
    return built


def randomize(model: Any) -> None:
    """Give every parameter values of its own: norms around 1, biases around 0, matrices of unit gain.

    transformers' own initialization is so small that attention would be uniform whatever its scale or mask.
    """
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                values = (1.0 if name.endswith("weight") else 0.0) + 0.2 * values
            else:
                values /= math.prod(parameter.shape[1:]) ** 0.5
            parameter.copy_(values)


UNET_SD1: dict[str, Any] = {
    "sample_size": 16,
    "in_channels": 4,
    "out_channels": 4,
    "layers_per_block": 1,
    "block_out_channels": (32, 48, 64),
    "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 40,
    "attention_head_dim": 4,
    "norm_num_groups": 8,
}
TWO_LEVELS: dict[str, Any] = {
    **UNET_SD1,
    "block_out_channels": (32, 48),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
"""Every kind of block, in fewer of them: one level less halves a trace by torch.export."""
UNET_CONFIGS: dict[str, dict[str, Any]] = {
    "sd1": TWO_LEVELS,
    # The real number of groups and of layers; three levels. SD 1.5's four: tests/optimizer/test_true_depth.py.
    "sd1_wide": {**UNET_SD1, "block_out_channels": (64, 128, 192), "layers_per_block": 2, "norm_num_groups": 32},
    # GPU kernels of GroupNorm take an even number of channels a group; here 48 / 16 are three.
    "sd1_odd_groups": {**TWO_LEVELS, "norm_num_groups": 16},
    # GPU kernels of BiasSplitGelu take the real widths only: 4 x 320.
    "sd1_geglu": {
        **UNET_SD1,
        "block_out_channels": (64, 320),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": 5,
        "norm_num_groups": 32,
    },
    "sd2": {**TWO_LEVELS, "use_linear_projection": True, "attention_head_dim": [2, 4]},
    "inpaint": {**TWO_LEVELS, "in_channels": 9},
    "sdxl": {
        **TWO_LEVELS,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": [1, 2],
        "attention_head_dim": [2, 4],
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 24 + 6 * 8,
    },
}
VAE_CONFIG: dict[str, Any] = {
    "block_out_channels": (16, 32, 32),
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "latent_channels": 4,
    "sample_size": 32,
}
TEXT_CONFIG: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 32,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "bos_token_id": 998,
    "eos_token_id": 2,  # Stable Diffusion 1's config; transformers then pools at the largest id
}
TEXT_CONFIGS: dict[str, dict[str, Any]] = {
    "clip": TEXT_CONFIG,
    "openclip": {**TEXT_CONFIG, "hidden_act": "gelu", "hidden_size": 48, "eos_token_id": 999},
    "text2": {**TEXT_CONFIG, "hidden_act": "gelu", "projection_dim": 24, "eos_token_id": 999},
}


class UNet(torch.nn.Module):  # type: ignore[misc]
    """A UNet whose inputs are positional; the last two are SDXL's."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.unet = model

    def forward(
        self, sample: Any, timestep: Any, encoder_hidden_states: Any, text_embeds: Any = None, time_ids: Any = None
    ) -> Any:
        added = None if text_embeds is None else {"text_embeds": text_embeds, "time_ids": time_ids}
        return self.unet(sample, timestep, encoder_hidden_states, added_cond_kwargs=added, return_dict=False)[0]


class VaeEncoder(torch.nn.Module):  # type: ignore[misc]
    """Image to the latent distribution's mean and log-variance."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vae = model

    def forward(self, sample: Any) -> Any:
        return self.vae.encode(sample, return_dict=False)[0].parameters


class VaeDecoder(torch.nn.Module):  # type: ignore[misc]
    """Latent to image."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vae = model

    def forward(self, latent_sample: Any) -> Any:
        return self.vae.decode(latent_sample, return_dict=False)[0]


class TextEncoder(torch.nn.Module):  # type: ignore[misc]
    """Token ids to hidden states; with ``projection`` to what SDXL reads of its second text encoder."""

    def __init__(self, model: Any, projection: bool) -> None:
        super().__init__()
        self.text = model
        self.projection = projection

    def forward(self, input_ids: Any) -> Any:
        out = self.text(input_ids, output_hidden_states=self.projection, return_dict=True)
        if self.projection:
            return (out.text_embeds, out.last_hidden_state, *out.hidden_states)
        return out.last_hidden_state, out.pooler_output


def _unet(name: str, legacy: bool, odd: bool) -> Built:
    model = UNet2DConditionModel(**UNET_CONFIGS[name])
    if legacy:
        model.set_attn_processor(AttnProcessor())
    config = dict(model.config)
    height, width = (9, 13) if odd else (16, 24)
    inputs = {
        "sample": torch.randn(2, config["in_channels"], height, width),
        "timestep": torch.tensor([3]),
        "encoder_hidden_states": torch.randn(2, 7, config["cross_attention_dim"]),
    }
    dynamic = {
        "sample": {0: "batch", 2: "height", 3: "width"},
        "timestep": {},
        "encoder_hidden_states": {0: "batch", 1: "sequence"},
    }
    if name == "sdxl":
        inputs |= {"text_embeds": torch.randn(2, 24), "time_ids": torch.randint(0, 1024, (2, 6)).float()}
        dynamic |= {"text_embeds": {0: "batch"}, "time_ids": {0: "batch"}}
    return Built("unet", config, UNet(model), inputs, ["out_sample"], dynamic, model)


def _vae(component: str, legacy: bool, odd: bool) -> Built:
    model = AutoencoderKL(**VAE_CONFIG)
    if legacy:
        model.set_attn_processor(AttnProcessor())
    encoder = component == "vae_encoder"
    height, width = (9, 13) if odd else (16, 24)
    name = "sample" if encoder else "latent_sample"
    inputs = {name: torch.randn(2, 3 if encoder else 4, height, width)}
    outputs = ["latent_parameters" if encoder else "sample"]
    dynamic = {name: {0: "batch", 2: "height", 3: "width"}}
    return Built(
        component, dict(model.config), (VaeEncoder if encoder else VaeDecoder)(model), inputs, outputs, dynamic, model
    )


def _text(name: str, legacy: bool, odd: bool) -> Built:
    projection = name == "text2"
    config = CLIPTextConfig(**TEXT_CONFIGS[name], attn_implementation="eager" if legacy else "sdpa")
    model = (CLIPTextModelWithProjection if projection else CLIPTextModel)(config)
    outputs = ["last_hidden_state", "pooler_output"]
    if projection:
        hidden = [f"hidden_states.{i}" for i in range(config.num_hidden_layers + 1)]
        outputs = ["text_embeds", "last_hidden_state", *hidden]
    return Built(
        "text_encoder_2" if projection else "text_encoder",
        config.to_dict(),
        TextEncoder(model, projection),
        {"input_ids": torch.randint(0, 1000, (2, 77))},
        outputs,
        {"input_ids": {0: "batch", 1: "sequence"}},
        model,
    )


def _bind(builder: Callable[[str, bool, bool], Built], name: str) -> Callable[[bool, bool], Built]:
    return lambda legacy, odd: builder(name, legacy, odd)


FAMILIES: dict[str, Callable[[bool, bool], Built]] = {
    **{name: _bind(_unet, name) for name in UNET_CONFIGS},
    **{name: _bind(_vae, name) for name in ("vae_encoder", "vae_decoder")},
    **{name: _bind(_text, name) for name in TEXT_CONFIGS},
}
