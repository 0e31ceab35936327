"""Flux.1. Facts of FLUX.1-dev and FLUX.1-schnell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sdort.errors import BadModelError
from sdort.families.family import LAST, Config, Denoiser, Encoder, Family, GraphOptions, PlainText, Roles, Shapes
from sdort.families.flux_latents import FLUX_LATENTS, FLUX_VAE
from sdort.families.graph_tensor import GraphSignature, GraphTensor, size_of
from sdort.families.layer_names import TRANSFORMER_PREFIXES, Layer, LayerNames, alike, fused, swapped
from sdort.families.scheduler_configs import FLOW_BY_TOKENS
from sdort.families.tensor_shapes import count_of, head_size, shape_of
from sdort.families.text_models import T5

ROLES = Roles(
    sample="hidden_states",
    timestep="timestep",
    context="encoder_hidden_states",
    pooled="pooled_projections",
    guidance="guidance",
)
_SIDE = 2
"""Latents along each side of a token."""
_SCHNELL: Config = {**FLOW_BY_TOKENS, "shift": 1.0, "use_dynamic_shifting": False}


def signature(config: Config, options: GraphOptions) -> GraphSignature:
    """The transformer's inputs and outputs: latents as images, in the place of diffusers' tokens and their ids."""
    latent = ("batch_size", size_of(config, "in_channels") // _SIDE**2, "height", "width")
    text = ("batch_size", "sequence_length", size_of(config, "joint_attention_dim"))
    inputs = [
        GraphTensor("hidden_states", "float32", latent),
        GraphTensor("timestep", "float32", ()),
        GraphTensor("encoder_hidden_states", "float32", text),
        GraphTensor("pooled_projections", "float32", ("batch_size", size_of(config, "pooled_projection_dim"))),
    ]
    if _is_dev(config):
        inputs.append(GraphTensor("guidance", "float32", ("batch_size",)))
    return tuple(inputs), (GraphTensor("out_hidden_states", "float32", latent),)


def _is_dev(config: Config) -> bool:
    """Whether it takes the guidance scale: FLUX.1-dev does, FLUX.1-schnell was distilled to few steps."""
    return bool(config.get("guidance_embeds"))


def counts(config: Config) -> Counter[str]:
    """The transformer's operators: of blocks with a stream of the text of its own, and of those with one stream."""
    double, single = int(config["num_layers"]), int(config["num_single_layers"])
    blocks = double + single
    return Counter(
        attention_self=blocks,
        layer_norm=4 * double + single + 1,
        gelu=2 * double + single,
        rms_norm=4 * double + 2 * single,
        rotary=2 * blocks,
        modulation=4 * double + single + 1,
        gated_sum=4 * double + single,
    )


def call(transformer: Any, inputs: Mapping[str, Any]) -> Any:
    """The output [batch, channels, height, width] of diffusers' transformer, which takes tokens of 2x2 latents."""
    return call_by_tokens(
        transformer,
        inputs,
        timestep=inputs["timestep"].expand(inputs["hidden_states"].shape[0]) / 1000,
        pooled_projections=inputs["pooled_projections"],
        guidance=inputs.get("guidance"),
    )


def call_by_tokens(transformer: Any, inputs: Mapping[str, Any], **conditioning: Any) -> Any:
    """The output of a transformer of Flux' tokens and ids, with further arguments of its module."""
    import torch

    sample, text = inputs["hidden_states"], inputs["encoder_hidden_states"]
    batch, channels, height, width = sample.shape
    rows, columns = height // _SIDE, width // _SIDE
    tokens = sample.view(batch, channels, rows, _SIDE, columns, _SIDE).permute(0, 2, 4, 1, 3, 5)
    grid = {"device": sample.device, "dtype": torch.float32}
    row, column = torch.arange(rows, **grid), torch.arange(columns, **grid)
    places = torch.stack([row[:, None].expand(rows, columns), column[None].expand(rows, columns)], -1).flatten(0, 1)
    made = transformer(
        hidden_states=tokens.reshape(batch, rows * columns, channels * _SIDE**2),
        encoder_hidden_states=text,
        img_ids=torch.nn.functional.pad(places, (1, 0)),
        txt_ids=torch.zeros(text.shape[1], 3, **grid),
        return_dict=False,
        **conditioning,
    )[0]
    tiles = made.view(batch, rows, columns, channels, _SIDE, _SIDE).permute(0, 3, 1, 4, 2, 5)
    return tiles.reshape(batch, channels, height, width)


_OURS, _THEIRS = "transformer_blocks.{}.", "double_blocks.{}."
_OURS_1, _THEIRS_1 = "single_transformer_blocks.{}.", "single_blocks.{}."


def _stream(authors: str, query: str, out: str, norm: str, modulation: str, feed_forward: str) -> tuple[Layer, ...]:
    """The image's or the text's half of a block."""
    theirs = f"{_THEIRS}{authors}_"
    return (
        fused(f"{theirs}attn.qkv", *(f"{_OURS}attn.{query.format(each)}" for each in "qkv")),
        *alike(
            (f"{theirs}attn.proj", f"{_OURS}attn.{out}"),
            (f"{theirs}attn.norm.query_norm", f"{_OURS}attn.{norm}_q"),
            (f"{theirs}attn.norm.key_norm", f"{_OURS}attn.{norm}_k"),
            (f"{theirs}mod.lin", f"{_OURS}{modulation}.linear"),
            (f"{theirs}mlp.0", f"{_OURS}{feed_forward}.net.0.proj"),
            (f"{theirs}mlp.2", f"{_OURS}{feed_forward}.net.2"),
        ),
    )


def _embedder(authors: str, own: str) -> tuple[Layer, ...]:
    ours = f"time_text_embed.{own}_embedder.linear_"
    return alike((f"{authors}.in_layer", f"{ours}1"), (f"{authors}.out_layer", f"{ours}2"))


LAYERS = LayerNames(
    (
        *_embedder("time_in", "timestep"),
        *_embedder("vector_in", "text"),
        *_embedder("guidance_in", "guidance"),
        *alike(("img_in", "x_embedder"), ("txt_in", "context_embedder"), ("final_layer.linear", "proj_out")),
        swapped("final_layer.adaLN_modulation.1", "norm_out.linear"),
        *_stream("img", "to_{}", "to_out.0", "norm", "norm1", "ff"),
        *_stream("txt", "add_{}_proj", "to_add_out", "norm_added", "norm1_context", "ff_context"),
        fused(f"{_THEIRS_1}linear1", *(f"{_OURS_1}attn.to_{each}" for each in "qkv"), f"{_OURS_1}proj_mlp"),
        *alike(
            (f"{_THEIRS_1}linear2", f"{_OURS_1}proj_out"),
            (f"{_THEIRS_1}norm.query_norm", f"{_OURS_1}attn.norm_q"),
            (f"{_THEIRS_1}norm.key_norm", f"{_OURS_1}attn.norm_k"),
            (f"{_THEIRS_1}modulation.lin", f"{_OURS_1}norm.linear"),
        ),
    )
)
"""https://github.com/black-forest-labs/flux/blob/main/src/flux/modules/layers.py"""


def config_of(shapes: Shapes) -> Config:
    """The config of a ``FluxTransformer2DModel``."""
    return {
        **block_config(shapes),
        "_class_name": "FluxTransformer2DModel",
        "pooled_projection_dim": shape_of(shapes, "time_text_embed.text_embedder.linear_1.weight")[1],
        "guidance_embeds": "time_text_embed.guidance_embedder.linear_1.weight" in shapes,
    }


BLOCK_KEYS = (
    "in_channels",
    "num_layers",
    "num_single_layers",
    "num_attention_heads",
    "attention_head_dim",
    "joint_attention_dim",
)
"""Keys of blocks and embeddings that a config cannot do without."""


def block_config(shapes: Shapes) -> Config:
    """The config as far as blocks and embeddings tell it; axes of places have the parts of the published one's head."""
    width, taken = shape_of(shapes, "x_embedder.weight")[:2]
    made = shape_of(shapes, "proj_out.weight")[0]
    if taken != made:
        raise BadModelError(
            f"it takes {taken} numbers a token (tensor img_in.weight) and makes {made}: a variant that fills in images "
            "or follows drawings, which sdort does not export",
            hint="Get FLUX.1-dev or FLUX.1-schnell, or a model that was made from them.",
        )
    head = head_size(shapes, "transformer_blocks.0.attn.norm_q.weight", width, usual=128)
    first = head // 8
    return {
        "patch_size": 1,
        "in_channels": taken,
        "num_layers": count_of(shapes, r"transformer_blocks\.(\d+)\."),
        "num_single_layers": count_of(shapes, r"single_transformer_blocks\.(\d+)\."),
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "joint_attention_dim": shape_of(shapes, "context_embedder.weight")[1],
        "axes_dims_rope": [first, (head - first) // 2, (head - first) // 2],
    }


_MARKS = {
    # HunyuanVideo has more layers there.
    "x_embedder.weight",
    "context_embedder.weight",
    # Chroma lacks it.
    "time_text_embed.text_embedder.linear_1.weight",
    # Flux.2 has one modulation for all blocks.
    "transformer_blocks.0.norm1.linear.weight",
    "single_transformer_blocks.0.norm.linear.weight",
    # ControlNets lack it.
    "norm_out.linear.weight",
}

FAMILY = Family(
    name="Flux.1",
    title="Flux.1",
    side=1024,
    denoiser=Denoiser(
        component="transformer",
        title="transformer",
        class_name="FluxTransformer2DModel",
        roles=ROLES,
        signature=signature,
        counts=counts,
        output="out_hidden_states",
        required=(
            *BLOCK_KEYS,
            "pooled_projection_dim",
            "guidance_embeds",
        ),
        channels=("in_channels", "in_channels"),
        call=call,
        distilled=True,
        patch=_SIDE,
        packed=True,
        adapter_prefixes=TRANSFORMER_PREFIXES,
        layers=LAYERS,
        config_of=config_of,
    ),
    encoders=(
        Encoder(
            "text_encoder",
            {ROLES.pooled or "": "pooler_output"},
            prefixes=("text_encoders.clip_l.transformer.",),
            config={"projection_dim": 768},
        ),
        Encoder(
            "text_encoder_2",
            {ROLES.context: LAST},
            prefixes=("text_encoders.t5xxl.transformer.",),
            class_name=T5,
            plain=PlainText(
                "T5TokenizerFast",
                512,
                padded=True,
                limit_of=lambda config: 512 if _is_dev(config) else 256,
                published="the folder tokenizer_2 of black-forest-labs/FLUX.1-schnell",
            ),
        ),
    ),
    latents=FLUX_LATENTS,
    context_width=4096,
    pipelines={None: "FluxPipeline"},
    usual=lambda config: (28, 3.5) if _is_dev(config) else (4, 1.0),
    scheduler=FLOW_BY_TOKENS,
    scheduler_of=lambda config: FLOW_BY_TOKENS if _is_dev(config) else _SCHNELL,
    schedule={"timestep_spacing": "trailing"},
    vae=FLUX_VAE,
    holds=lambda shapes: shapes.keys() >= _MARKS,
)
