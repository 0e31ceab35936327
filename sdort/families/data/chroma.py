"""Chroma, which was made from FLUX.1-schnell. Facts of lodestones/Chroma1-HD.

Its transformer is Flux.1's with one small network in the place of all layers that make modulations, of the timestep
alone. It takes no padding of prompts but one token, which its authors' code and diffusers' have as a mask of the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sdort.families.data import flux
from sdort.families.family import LAST, Config, Encoder, GraphOptions, PlainText, Roles, Shapes
from sdort.families.graph_tensor import GraphSignature, GraphTensor, size_of
from sdort.families.layer_names import LayerNames, alike
from sdort.families.scheduler_configs import FLOW
from sdort.families.tensor_shapes import count_of, shape_of
from sdort.families.text_models import T5

ROLES = Roles(sample="hidden_states")


def signature(config: Config, options: GraphOptions) -> GraphSignature:
    """The transformer's inputs and outputs: latents as images, and tokens of the prompt alone."""
    latent = ("batch_size", flux.FAMILY.denoiser.channels_of(config), "height", "width")
    text = ("batch_size", "sequence_length", size_of(config, "joint_attention_dim"))
    return (
        GraphTensor("hidden_states", "float32", latent),
        GraphTensor("timestep", "float32", ()),
        GraphTensor("encoder_hidden_states", "float32", text),
    ), (GraphTensor("out_hidden_states", "float32", latent),)


def counts(config: Config) -> Counter[str]:
    """The operators of Flux' blocks, and the norms of what makes their modulations."""
    return flux.counts(config) + Counter(rms_norm=int(config["approximator_layers"]))


def call(transformer: Any, inputs: Mapping[str, Any]) -> Any:
    """The output [batch, channels, height, width] of diffusers' transformer, which takes tokens of 2x2 latents."""
    batch = inputs["hidden_states"].shape[0]
    return flux.call_by_tokens(transformer, inputs, timestep=inputs["timestep"].expand(batch) / 1000)


def traced(transformer: Any, inputs: Mapping[str, Any]) -> Any:
    """:func:`call`, in whose graph the rows of what is computed of timesteps are those of the timesteps.

    diffusers makes a list as long as the batch, and joins repeated embeddings of timesteps with constants.
    """
    import torch

    places = transformer.time_text_embed

    def embedded(timestep: Any) -> Any:
        """[batch, modulations, channels]: the embedding of the timestep, that of no guidance, and of each place."""
        time, none = places.time_proj(timestep), places.guidance_proj(torch.zeros(1))
        constant = torch.cat([torch.zeros_like(none), none], -1).expand(len(places.mod_proj), -1)
        constant = torch.cat([constant, places.mod_proj], -1)
        return (time @ torch.eye(time.shape[-1], constant.shape[-1]))[:, None] + constant

    places.forward = embedded
    try:
        return call(transformer, inputs)
    finally:
        del places.forward


def restore(transformer: Any) -> None:
    """Give a module the places of its modulations, which it computes where it is built."""
    import torch

    made = transformer.time_text_embed
    with torch.device("cpu"):
        transformer.time_text_embed = type(made)(made.time_proj.num_channels, len(made.mod_proj))


def corrected(pipeline: Any) -> None:
    """Let diffusers' pipeline leave tokens out of attention: it adds its mask of ones and zeros to the scores.

    https://github.com/huggingface/diffusers/issues/13619
    """
    mask = pipeline._prepare_attention_mask

    def of_booleans(**given: Any) -> Any:
        made = mask(**given)
        return None if made is None else made.bool()

    pipeline._prepare_attention_mask = of_booleans


_NETWORK = "distilled_guidance_layer."
_LAYER = f"{_NETWORK}layers.{{}}."
LAYERS = LayerNames(
    (
        *flux.LAYERS.layers,
        *alike((f"{_LAYER}in_layer", f"{_LAYER}linear_1"), (f"{_LAYER}out_layer", f"{_LAYER}linear_2")),
    )
)
"""https://github.com/lodestone-rock/flow/blob/master/src/models/chroma/module/layers.py"""


def config_of(shapes: Shapes) -> Config:
    """The config of a ``ChromaTransformer2DModel``."""
    width, channels = shape_of(shapes, f"{_NETWORK}in_proj.weight")
    return {
        **flux.block_config(shapes),
        "_class_name": "ChromaTransformer2DModel",
        "approximator_num_channels": channels,
        "approximator_hidden_dim": width,
        "approximator_layers": count_of(shapes, r"distilled_guidance_layer\.layers\.(\d+)\."),
    }


_MARKS = {
    "x_embedder.weight",
    "context_embedder.weight",
    f"{_NETWORK}out_proj.weight",
    "transformer_blocks.0.attn.add_q_proj.weight",
    "proj_out.weight",
}

FAMILY = replace(
    flux.FAMILY,
    name="Chroma",
    title="Chroma",
    denoiser=replace(
        flux.FAMILY.denoiser,
        class_name="ChromaTransformer2DModel",
        roles=ROLES,
        signature=signature,
        counts=counts,
        required=(
            *flux.BLOCK_KEYS,
            "approximator_num_channels",
            "approximator_hidden_dim",
            "approximator_layers",
        ),
        call=call,
        traced=traced,
        restore=restore,
        distilled=False,
        layers=LAYERS,
        config_of=config_of,
    ),
    encoders=(
        Encoder(
            "text_encoder",
            {ROLES.context: LAST},
            prefixes=("text_encoders.t5xxl.transformer.",),
            class_name=T5,
            plain=PlainText(
                "T5TokenizerFast",
                512,
                padded=False,
                masked=True,
                published="the folder tokenizer of lodestones/Chroma1-HD",
            ),
        ),
    ),
    pipelines={None: "ChromaPipeline"},
    # diffusers' own.
    usual=lambda config: (35, 5.0),
    # FLUX.1-schnell's.
    scheduler={**FLOW, "shift": 1.0},
    scheduler_of=None,
    corrected=corrected,
    holds=lambda shapes: shapes.keys() >= _MARKS,
)
