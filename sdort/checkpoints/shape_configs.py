"""Configs of components by the names and shapes of their tensors, as ``config.json`` of the published models has them.

Shapes tell everything but the number of heads and a few habits of the families; so distilled and widened models of a
family are recognised as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sdort.errors import BadModelError
from sdort.families.family import Shapes
from sdort.families.tensor_shapes import TIME_WIDTH, context_width, count_of, head_size, shape_of
from sdort.families.text_models import QWEN3, T5

Config = dict[str, Any]

HEAD = 64
"""Width of a head of attention in SD 2.x, SDXL and CLIP; SD 1.x has 8 heads of any width instead."""
SD1_HEADS = 8

XL_CONTEXT = 2048
"""Width of the text embeddings of SDXL."""


def unet_config(shapes: Shapes) -> Config:
    """The config of a ``UNet2DConditionModel``, without ``sample_size``.

    Raises:
        BadModelError: the tensors are not those of such a UNet.
    """
    down = _down_levels(shapes)
    up = [_level(shapes, f"up_blocks.{level}") for level in range(len(down))]
    config = {
        "_class_name": "UNet2DConditionModel",
        "out_channels": shape_of(shapes, "conv_out.weight")[0],
        "up_block_types": ["CrossAttnUpBlock2D" if any(depths) else "UpBlock2D" for depths in up],
        "cross_attention_dim": context_width(shapes),
    }
    return config | _encoder_half(shapes, down) | _depths(down, up) | _mid_block(shapes) | _conditioning(shapes)


def controlnet_config(shapes: Shapes) -> Config:
    """The config of a ``ControlNetModel``, without ``global_pool_conditions``.

    Raises:
        BadModelError: the tensors are not those of such a model.
    """
    down = _down_levels(shapes)
    blocks = count_of(shapes, r"controlnet_cond_embedding\.blocks\.(\d+)\.") // 2
    image = "controlnet_cond_embedding"
    steps = [shape_of(shapes, f"{image}.blocks.{2 * block + 1}.weight")[0] for block in range(blocks)]
    attends = any(".attn2." in name for name in shapes)
    config = {
        "_class_name": "ControlNetModel",
        # The small ones of SDXL take text embeddings and do not use them.
        "cross_attention_dim": context_width(shapes) if attends else XL_CONTEXT,
        "conditioning_channels": shape_of(shapes, f"{image}.conv_in.weight")[1],
        "conditioning_embedding_out_channels": [shape_of(shapes, f"{image}.conv_in.weight")[0], *steps],
    }
    return config | _encoder_half(shapes, down) | _depths(down, []) | _mid_block(shapes) | _conditioning(shapes)


def _down_levels(shapes: Shapes) -> list[list[int]]:
    """The depths of the transformers of each level of the encoder half."""
    levels = count_of(shapes, r"down_blocks\.(\d+)\.resnets\.")
    return [_level(shapes, f"down_blocks.{level}") for level in range(levels)]


def _encoder_half(shapes: Shapes, down: list[list[int]]) -> Config:
    """Config keys that a UNet and its ControlNet share."""
    widths = [shape_of(shapes, f"down_blocks.{level}.resnets.0.conv1.weight")[0] for level in range(len(down))]
    linear = any(len(shape) == 2 for name, shape in shapes.items() if name.endswith(".proj_in.weight"))
    return {
        "in_channels": shape_of(shapes, "conv_in.weight")[1],
        "block_out_channels": widths,
        "down_block_types": ["CrossAttnDownBlock2D" if any(depths) else "DownBlock2D" for depths in down],
        "layers_per_block": _collapsed([len(depths) for depths in down]),
        "attention_head_dim": [max(width // HEAD, 1) for width in widths] if linear else SD1_HEADS,
        "use_linear_projection": linear,
    }


def _level(shapes: Shapes, block: str) -> list[int]:
    """The depth of the transformer behind each residual block of a level; 0 where there is none."""
    layers = count_of(shapes, rf"{re.escape(block)}\.resnets\.(\d+)\.")
    if not layers:
        raise BadModelError(f"its {block} is missing", hint="The file is incomplete: download it again.")
    attention = rf"{re.escape(block)}\.attentions\.{{}}\.transformer_blocks\.(\d+)\."
    return [count_of(shapes, attention.format(layer)) for layer in range(layers)]


def _depths(down: list[list[int]], up: list[list[int]]) -> Config:
    """Transformers' depths: a number if all are alike, as in SD 1.x and the refiner; else one or more a level.

    Args:
        up: of the decoder half; empty for a model without one.
    """
    alike = {depth for depths in (*down, *up) for depth in depths if depth}
    if len(alike) == 1 and all(min(depths) or not max(depths) for depths in (*down, *up)):
        return {"transformer_layers_per_block": alike.pop()}
    # Published configs have a 1 where there is no transformer.
    per_level = [_collapsed(depths) or 1 for depths in down]
    reverse = [_collapsed(depths) or 1 for depths in up]
    return {"transformer_layers_per_block": per_level} | (
        {} if not up or reverse == per_level[::-1] else {"reverse_transformer_layers_per_block": reverse}
    )


def _mid_block(shapes: Shapes) -> Config:
    if any(name.startswith("mid_block.attentions.") for name in shapes):
        return {}
    return {"mid_block_type": "UNetMidBlock2D" if "mid_block.resnets.0.conv1.weight" in shapes else None}


def _conditioning(shapes: Shapes) -> Config:
    config: Config = {}
    if "add_embedding.linear_1.weight" in shapes:
        total = shape_of(shapes, "add_embedding.linear_1.weight")[1]
        config |= {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": TIME_WIDTH,
            "projection_class_embeddings_input_dim": total,
        }
    if "time_embedding.cond_proj.weight" in shapes:  # distilled with guidance, as LCM's
        config["time_cond_proj_dim"] = shapes["time_embedding.cond_proj.weight"][1]
    return config


def vae_config(shapes: Shapes) -> Config:
    """The config of an ``AutoencoderKL``, without what scales its latents.

    Raises:
        BadModelError: the tensors are not those of such a VAE.
    """
    levels = count_of(shapes, r"encoder\.down_blocks\.(\d+)\.")
    return {
        "_class_name": "AutoencoderKL",
        "in_channels": shape_of(shapes, "encoder.conv_in.weight")[1],
        "out_channels": shape_of(shapes, "decoder.conv_out.weight")[0],
        "latent_channels": shape_of(shapes, "decoder.conv_in.weight")[1],
        "block_out_channels": [
            shape_of(shapes, f"encoder.down_blocks.{level}.resnets.0.conv1.weight")[0] for level in range(levels)
        ],
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "layers_per_block": count_of(shapes, r"encoder\.down_blocks\.0\.resnets\.(\d+)\."),
        "norm_num_groups": 32,
        "act_fn": "silu",
        **{f"use_{name}": f"{name}.weight" in shapes for name in ("quant_conv", "post_quant_conv")},
    }


def tiny_vae_config(shapes: Shapes) -> Config:
    """The config of an ``AutoencoderTiny`` with the levels of madebyollin/taesd.

    Raises:
        BadModelError: the tensors are not those of such a VAE.
    """
    width = shape_of(shapes, "encoder.layers.0.weight")[0]
    return {
        "_class_name": "AutoencoderTiny",
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": shape_of(shapes, "decoder.layers.0.weight")[1],
        "encoder_block_out_channels": [width] * 4,
        "decoder_block_out_channels": [width] * 4,
        "block_out_channels": [width] * 4,
        "num_encoder_blocks": [1, 3, 3, 3],
        "num_decoder_blocks": [3, 3, 3, 1],
        "scaling_factor": 1.0,
        "force_upcast": False,
    }


def text_config(shapes: Shapes, activation: str, layers: int) -> Config:
    """The config of a CLIP text encoder.

    Args:
        activation: ``quick_gelu`` of OpenAI's weights, ``gelu`` of OpenCLIP's.
        layers: how many of its layers are used.

    Raises:
        BadModelError: the tensors are not those of such an encoder.
    """
    prefix = "text_model." if any(name.startswith("text_model.") for name in shapes) else ""
    vocabulary, width, *_ = shape_of(shapes, f"{prefix}embeddings.token_embedding.weight")
    projection = shape_of(shapes, "text_projection.weight") if "text_projection.weight" in shapes else None
    return {
        "architectures": ["CLIPTextModelWithProjection" if projection else "CLIPTextModel"],
        "model_type": "clip_text_model",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shape_of(shapes, f"{prefix}encoder.layers.0.mlp.fc1.weight")[0],
        "num_hidden_layers": layers,
        "num_attention_heads": max(width // HEAD, 1),
        "max_position_embeddings": shape_of(shapes, f"{prefix}embeddings.position_embedding.weight")[0],
        "hidden_act": activation,
        "layer_norm_eps": 1e-05,
        # An end of 2 in a config is an old mistake that all published models rely on: the token of the highest number
        # is the end (transformers, CLIPTextTransformer).
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 1,
        **({"projection_dim": projection[0]} if projection else {}),
    }


def _t5_config(shapes: Shapes) -> Config:
    """The config of T5's encoder, of version 1.1, whose feed-forward layers are gated."""
    table = "shared.weight" if "shared.weight" in shapes else "encoder.embed_tokens.weight"
    vocabulary, width = shape_of(shapes, table)[:2]
    block = "encoder.block.0.layer"
    buckets, heads = shape_of(shapes, f"{block}.0.SelfAttention.relative_attention_bias.weight")[:2]
    layers = count_of(shapes, r"encoder\.block\.(\d+)\.")
    return {
        "architectures": [T5],
        "model_type": "t5",
        "vocab_size": vocabulary,
        "d_model": width,
        "d_kv": shape_of(shapes, f"{block}.0.SelfAttention.q.weight")[0] // heads,
        "d_ff": shape_of(shapes, f"{block}.1.DenseReluDense.wi_0.weight")[0],
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
        "feed_forward_proj": "gated-gelu",
        "dense_act_fn": "gelu_new",
        "is_gated_act": True,
        "layer_norm_epsilon": 1e-06,
    }


def _qwen3_config(shapes: Shapes) -> Config:
    """The config of a ``Qwen3Model``: Qwen3-4B's, and shapes."""
    prefix = "model." if any(name.startswith("model.") for name in shapes) else ""
    vocabulary, width = shape_of(shapes, f"{prefix}embed_tokens.weight")[:2]
    layer = f"{prefix}layers.0."
    queries, keys = (shape_of(shapes, f"{layer}self_attn.{each}_proj.weight")[0] for each in "qk")
    head = head_size(shapes, f"{layer}self_attn.q_norm.weight", queries, usual=128)
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shape_of(shapes, f"{layer}mlp.gate_proj.weight")[0],
        "num_hidden_layers": count_of(shapes, rf"{re.escape(prefix)}layers\.(\d+)\."),
        "num_attention_heads": queries // head,
        "num_key_value_heads": keys // head,
        "head_dim": head,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
    }


PLAIN_CONFIGS: Mapping[str, Callable[[Shapes], Config]] = {T5: _t5_config, QWEN3: _qwen3_config}
"""Class of a text encoder that is none of CLIP's -> its config by the shapes of its tensors, which raises
:class:`BadModelError` where they are not those of such an encoder."""


def count_text_layers(shapes: Shapes) -> int:
    """The layers of a text encoder that are in the file."""
    return count_of(shapes, r"(?:text_model\.)?encoder\.layers\.(\d+)\.")


def _collapsed(values: list[int]) -> Any:
    """One value if all are equal, else the list."""
    return values[0] if len(set(values)) == 1 else values
