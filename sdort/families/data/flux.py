"""Flux.1. Facts of FLUX.1-dev and FLUX.1-schnell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sdort.families.family import LAST, Config, Denoiser, Encoder, Family, GraphOptions, PlainText, Roles
from sdort.families.flux_latents import FLUX_LATENTS
from sdort.families.graph_tensor import GraphSignature, GraphTensor, size_of
from sdort.families.scheduler_configs import FLOW_BY_TOKENS
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
        pooled_projections=inputs["pooled_projections"],
        timestep=inputs["timestep"].expand(batch) / 1000,
        img_ids=torch.nn.functional.pad(places, (1, 0)),
        txt_ids=torch.zeros(text.shape[1], 3, **grid),
        guidance=inputs.get("guidance"),
        return_dict=False,
    )[0]
    tiles = made.view(batch, rows, columns, channels, _SIDE, _SIDE).permute(0, 3, 1, 4, 2, 5)
    return tiles.reshape(batch, channels, height, width)


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
            "in_channels",
            "num_layers",
            "num_single_layers",
            "num_attention_heads",
            "attention_head_dim",
            "joint_attention_dim",
            "pooled_projection_dim",
            "guidance_embeds",
        ),
        channels=("in_channels", "in_channels"),
        call=call,
        distilled=True,
        patch=_SIDE,
        packed=True,
        adapter_prefixes=("lora_transformer_", "lora_unet_", "transformer_", "diffusion_model_"),
    ),
    encoders=(
        Encoder("text_encoder", {ROLES.pooled or "": "pooler_output"}),
        Encoder(
            "text_encoder_2",
            {ROLES.context: LAST},
            class_name=T5,
            plain=PlainText(
                "T5TokenizerFast", 512, padded=True, limit_of=lambda config: 512 if _is_dev(config) else 256
            ),
        ),
    ),
    latents=FLUX_LATENTS,
    context_width=4096,
    pipelines={None: "FluxPipeline"},
    usual=lambda config: (28, 3.5) if _is_dev(config) else (4, 1.0),
    scheduler=FLOW_BY_TOKENS,
    schedule={"timestep_spacing": "trailing"},
    vae={"scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": False, "use_post_quant_conv": False},
    holds=lambda shapes: any(name.startswith("single_transformer_blocks.") for name in shapes),
)
