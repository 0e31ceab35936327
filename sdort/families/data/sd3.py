"""Stable Diffusion 3 and 3.5, medium and large. Facts of stable-diffusion-3.5-medium and -large."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sdort.families.family import (
    LAST,
    PENULTIMATE,
    Config,
    Denoiser,
    Encoder,
    Family,
    GraphOptions,
    Latents,
    PlainText,
    Roles,
    Shapes,
)
from sdort.families.graph_tensor import GraphSignature, GraphTensor, size_of
from sdort.families.layer_names import TRANSFORMER_PREFIXES, Layer, LayerNames, alike, fused, swapped
from sdort.families.scheduler_configs import FLOW
from sdort.families.tensor_shapes import count_of, head_size, shape_of
from sdort.families.text_models import PROJECTED_CLIP, T5

ROLES = Roles(sample="hidden_states", context="encoder_hidden_states", pooled="pooled_projections")

_SIDE = 2
"""Latents along each side of a token."""


def signature(config: Config, options: GraphOptions) -> GraphSignature:
    """The inputs and outputs of an ``SD3Transformer2DModel``."""
    if config["patch_size"] != _SIDE:
        raise ValueError(f"patch_size = {config['patch_size']!r}, not {_SIDE}")
    latent = ("batch_size", size_of(config, "in_channels"), "height", "width")
    text = ("batch_size", "sequence_length", size_of(config, "joint_attention_dim"))
    return (
        GraphTensor("hidden_states", "float32", latent),
        GraphTensor("encoder_hidden_states", "float32", text),
        GraphTensor("pooled_projections", "float32", ("batch_size", size_of(config, "pooled_projection_dim"))),
        GraphTensor("timestep", "float32", ("batch_size",)),
    ), (GraphTensor("out_hidden_states", "float32", (latent[0], size_of(config, "out_channels"), *latent[2:])),)


_CLIP = {"encoder_hidden_states": PENULTIMATE, "pooled_projections": "text_embeds"}


def counts(config: Config) -> Counter[str]:
    """Joint blocks, the first of which may attend to the image twice; the text's half of the last one ends with its
    attention."""
    blocks, dual = size_of(config, "num_layers"), len(config.get("dual_attention_layers") or ())
    normed = 4 * blocks + 2 * dual if config.get("qk_norm") == "rms_norm" else 0
    return Counter(
        conv=1,
        attention_self=blocks + dual,
        rms_norm=normed,
        layer_norm=4 * blocks,
        gelu=2 * blocks - 1,
        modulation=4 * blocks + dual,
        gated_sum=4 * blocks - 2 + dual,
    )


def traced(transformer: Any, inputs: Mapping[str, Any]) -> Any:
    """The output of diffusers' transformer, whose positions are looked up instead of cut out of their table.

    A graph does not tell how long a piece is that is cut at computed places, so that nothing that is added to the
    image's tokens would be known to be as long as they are.
    """
    import torch

    table = transformer.pos_embed
    most, side = table.pos_embed_max_size, table.patch_size

    def positions(height: Any, width: Any) -> Any:
        """[1, tokens, width], of the middle of the table."""
        row, column = (
            (most - size // side) // 2 + torch.arange(size // side, device=table.pos_embed.device)
            for size in (height, width)
        )
        return table.pos_embed[:, (row[:, None] * most + column).flatten()]

    table.cropped_pos_embed = positions
    try:
        return transformer(**inputs, return_dict=False)[0]
    finally:
        del table.cropped_pos_embed


_OURS, _THEIRS = "transformer_blocks.{}.", "joint_blocks.{}."


def _attention(authors: str, own: str, query: str, out: str, norm: str) -> tuple[Layer, ...]:
    """An attention of a block; those of the image and of the text are one in diffusers."""
    theirs, ours = f"{_THEIRS}{authors}.", f"{_OURS}{own}."
    return (
        fused(f"{theirs}qkv", *(ours + query.format(each) for each in "qkv")),
        *alike(
            (f"{theirs}proj", ours + out),
            (f"{theirs}ln_q", f"{ours}{norm}_q"),
            (f"{theirs}ln_k", f"{ours}{norm}_k"),
        ),
    )


LAYERS = LayerNames(
    (
        *alike(
            ("x_embedder.proj", "pos_embed.proj"),
            ("t_embedder.mlp.0", "time_text_embed.timestep_embedder.linear_1"),
            ("t_embedder.mlp.2", "time_text_embed.timestep_embedder.linear_2"),
            ("y_embedder.mlp.0", "time_text_embed.text_embedder.linear_1"),
            ("y_embedder.mlp.2", "time_text_embed.text_embedder.linear_2"),
            (f"{_THEIRS}x_block.mlp.fc1", f"{_OURS}ff.net.0.proj"),
            (f"{_THEIRS}x_block.mlp.fc2", f"{_OURS}ff.net.2"),
            (f"{_THEIRS}context_block.mlp.fc1", f"{_OURS}ff_context.net.0.proj"),
            (f"{_THEIRS}context_block.mlp.fc2", f"{_OURS}ff_context.net.2"),
            (f"{_THEIRS}x_block.adaLN_modulation.1", f"{_OURS}norm1.linear"),
            ("final_layer.linear", "proj_out"),
        ),
        # The text's half of the last block ends with its attention, and has a modulation of two.
        swapped(f"{_THEIRS}context_block.adaLN_modulation.1", f"{_OURS}norm1_context.linear"),
        swapped("final_layer.adaLN_modulation.1", "norm_out.linear"),
        *_attention("x_block.attn", "attn", "to_{}", "to_out.0", "norm"),
        *_attention("x_block.attn2", "attn2", "to_{}", "to_out.0", "norm"),
        *_attention("context_block.attn", "attn", "add_{}_proj", "to_add_out", "norm_added"),
    ),
    tensors={"pos_embed": "pos_embed.pos_embed"},
)
"""https://github.com/Stability-AI/sd3.5/blob/main/mmditx.py"""


def config_of(shapes: Shapes) -> Config:
    """The config of an ``SD3Transformer2DModel``, without ``sample_size``."""
    width, channels = shape_of(shapes, "pos_embed.proj.weight")[:2]
    blocks = count_of(shapes, r"transformer_blocks\.(\d+)\.")
    norm = "transformer_blocks.0.attn.norm_q.weight"
    head = head_size(shapes, norm, width, usual=64)
    dual = [block for block in range(blocks) if f"transformer_blocks.{block}.attn2.to_q.weight" in shapes]
    caption, joint = shape_of(shapes, "context_embedder.weight")[:2]
    return {
        "_class_name": "SD3Transformer2DModel",
        "patch_size": _SIDE,
        "in_channels": channels,
        "out_channels": shape_of(shapes, "proj_out.weight")[0] // _SIDE**2,
        "num_layers": blocks,
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "joint_attention_dim": joint,
        "caption_projection_dim": caption,
        "pooled_projection_dim": shape_of(shapes, "time_text_embed.text_embedder.linear_1.weight")[1],
        "pos_embed_max_size": math.isqrt(shape_of(shapes, "pos_embed.pos_embed")[1]),
        "dual_attention_layers": dual,
        "qk_norm": "rms_norm" if norm in shapes else None,
    }


_MARKS = {
    "pos_embed.pos_embed",
    "context_embedder.weight",
    "transformer_blocks.0.attn.add_q_proj.weight",
    # ControlNets lack it.
    "norm_out.linear.weight",
}

FAMILY = Family(
    name="SD 3",
    title="Stable Diffusion 3",
    side=1024,
    denoiser=Denoiser(
        component="transformer",
        title="transformer",
        class_name="SD3Transformer2DModel",
        roles=ROLES,
        signature=signature,
        counts=counts,
        traced=traced,
        output="out_hidden_states",
        required=(
            "in_channels",
            "num_layers",
            "num_attention_heads",
            "attention_head_dim",
            "joint_attention_dim",
            "caption_projection_dim",
            "pooled_projection_dim",
            "pos_embed_max_size",
        ),
        # The positions that it decides are among the weights.
        without_effect=frozenset({"sample_size"}),
        patch=_SIDE,
        largest=lambda config: config.get("pos_embed_max_size"),
        adapter_prefixes=TRANSFORMER_PREFIXES,
        layers=LAYERS,
        config_of=config_of,
    ),
    encoders=(
        Encoder(
            "text_encoder",
            _CLIP,
            prefixes=("text_encoders.clip_l.transformer.",),
            class_name=PROJECTED_CLIP,
            config={"projection_dim": 768},
            projected=False,
        ),
        Encoder(
            "text_encoder_2",
            _CLIP,
            prefixes=("text_encoders.clip_g.transformer.",),
            class_name=PROJECTED_CLIP,
            activation="gelu",
            pad="!",
        ),
        Encoder(
            "text_encoder_3",
            {ROLES.context: LAST},
            behind=True,
            optional=True,
            prefixes=("text_encoders.t5xxl.transformer.",),
            class_name=T5,
            plain=PlainText(
                "T5TokenizerFast",
                limit=256,
                padded=True,
                published="the folder tokenizer_3 of stabilityai/stable-diffusion-3.5-medium",
            ),
        ),
    ),
    latents=Latents(
        scaling_factor=1.5305,
        shift=0.0609,
        channels=16,
        preview_factors=(
            (-0.0922, -0.0175, 0.0749),
            (0.0311, 0.0633, 0.0954),
            (0.1994, 0.0927, 0.0458),
            (0.0856, 0.0339, 0.0902),
            (0.0587, 0.0272, -0.0496),
            (-0.0006, 0.1104, 0.0309),
            (0.0978, 0.0306, 0.0427),
            (-0.0042, 0.1038, 0.1358),
            (-0.0194, 0.0020, 0.0669),
            (-0.0488, 0.0130, -0.0268),
            (0.0922, 0.0988, 0.0951),
            (-0.0278, 0.0524, -0.0542),
            (0.0332, 0.0456, 0.0895),
            (-0.0069, -0.0030, -0.0810),
            (-0.0596, -0.0465, -0.0293),
            (-0.1448, -0.1463, -0.1189),
        ),
        preview_bias=(0.2394, 0.2135, 0.1925),
    ),
    context_width=4096,
    pipelines={None: "StableDiffusion3Pipeline"},
    # diffusers' own.
    usual=lambda config: (28, 7.0),
    scheduler=FLOW,
    vae={"scaling_factor": 1.5305, "shift_factor": 0.0609, "use_quant_conv": False, "use_post_quant_conv": False},
    holds=lambda shapes: shapes.keys() >= _MARKS,
)
