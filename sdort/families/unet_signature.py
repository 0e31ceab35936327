"""The signature of the graph of a ``UNet2DConditionModel``, and what its ControlNets share with it.

Names are those of optimum's ONNX exports: :mod:`sdort.exporter.signatures`.
"""

from __future__ import annotations

from sdort.errors import BadModelError
from sdort.families.component_names import IMAGE_SCALE, IMAGE_TOKENS
from sdort.families.family import Config, GraphOptions
from sdort.families.graph_tensor import GraphSignature, GraphTensor, positive, size_of

UNET_COMPONENT = "unet"
POOLED, SIZES, GUIDANCE = "text_embeds", "time_ids", "timestep_cond"
"""Inputs: SDXL's pooled embedding of the text, its numbers of sizes, and the embedding of the guidance scale."""


def unet_signature(config: Config, options: GraphOptions) -> GraphSignature:
    """The inputs and outputs of a ``UNet2DConditionModel``."""
    inputs = denoiser_inputs(config, options.text_embeds, UNET_COMPONENT)
    if config.get("time_cond_proj_dim") is not None:
        inputs.append(GraphTensor(GUIDANCE, "float32", ("batch_size", size_of(config, "time_cond_proj_dim"))))
    if options.control:
        inputs += [*residuals(config, *CONTROL_INPUTS), *_intrablock_residuals(config)]
    for number, tokens in enumerate(options.image_tokens):
        inputs.append(GraphTensor(f"{IMAGE_TOKENS}.{number}", "float32", ("batch_size", tokens, _context(config))))
        inputs.append(GraphTensor(f"{IMAGE_SCALE}.{number}", "float32", ("batch_size", 1)))
    return tuple(inputs), (
        GraphTensor("out_sample", "float32", ("batch_size", size_of(config, "out_channels"), "height", "width")),
    )


def denoiser_inputs(config: Config, text_embeds: int | None, component: str) -> list[GraphTensor]:
    """The inputs that a UNet and its ControlNet share."""
    _refuse_foreign_unet(config, component)
    latent = ("batch_size", size_of(config, "in_channels"), "height", "width")
    inputs = [
        GraphTensor("sample", "float32", latent),
        GraphTensor("timestep", "float32", ()),
        GraphTensor("encoder_hidden_states", "float32", ("batch_size", "sequence_length", _context(config))),
    ]
    if config.get("addition_embed_type") == "text_time":
        inputs += _added_conditions(config, text_embeds)
    return inputs


CONTROL_INPUTS = ("down_block_additional_residuals", "mid_block_additional_residual")
"""A UNet's inputs that take a ControlNet's outputs: diffusers' names; the first ones are numbered."""
INTRABLOCK_INPUTS = "down_intrablock_additional_residuals"
"""A UNet's inputs that take a T2I-Adapter's features: diffusers' name; they are numbered."""


def residuals(config: Config, down: str, mid: str) -> list[GraphTensor]:
    """Skip connections from a UNet's way down to its way up, in order, and the output of its mid block."""
    channels, layers = config["block_out_channels"], config["layers_per_block"]
    places = [(channels[0], 0)]
    for level, width in enumerate(channels):
        places += [(width, level)] * (layers[level] if isinstance(layers, list) else layers)
        if level < len(channels) - 1:
            places.append((width, level + 1))
    last = len(channels) - 1
    numbered = [_residual(f"{down}.{index}", *place) for index, place in enumerate(places)]
    return [*numbered, _residual(mid, channels[-1], last)]


def _intrablock_residuals(config: Config) -> list[GraphTensor]:
    """Where diffusers' UNet adds the features of a T2I-Adapter, in order.

    A block with attention takes one at its end, before it halves the image, any other one behind that. Adapters have
    four features: a UNet of three levels, as SDXL's, takes the last one in its mid block.
    """
    channels, last = config["block_out_channels"], len(config["block_out_channels"]) - 1
    places = [
        (width, level if kind.startswith("CrossAttn") else min(level + 1, last))
        for level, (width, kind) in enumerate(zip(channels, config["down_block_types"], strict=True))
    ]
    if len(places) < _FEATURES:
        places.append((channels[-1], last))
    return [_residual(f"{INTRABLOCK_INPUTS}.{index}", *place) for index, place in enumerate(places)]


_FEATURES = 4


def _residual(name: str, channels: int, level: int) -> GraphTensor:
    """Each level but the first has half the height and width, rounded up."""
    scale = 2**level
    sides = [f"({side} + {scale - 1})//{scale}" if level else side for side in ("height", "width")]
    return GraphTensor(name, "float32", ("batch_size", positive(channels, "block_out_channels"), *sides))


def _refuse_foreign_unet(config: Config, component: str) -> None:
    allowed = {
        "class_embed_type": (None,),
        "num_class_embeds": (None,),
        "encoder_hid_dim_type": (None,),
        "addition_embed_type": (None, "text_time"),
        "attention_type": (None, "default"),
    }
    for key, values in allowed.items():
        if config.get(key) not in values:
            raise BadModelError(
                f"a UNet with {key} = {config[key]!r} takes inputs that Stable Diffusion pipelines do not feed",
                component=component,
                hint="sdort exports the UNets and ControlNets of SD 1.x, SD 2.x (inpainting too) and SDXL.",
            )


def _context(config: Config) -> int:
    """The width of the text embeddings."""
    width = config["cross_attention_dim"]
    return positive(width[0] if isinstance(width, list) and len(set(width)) == 1 else width, "cross_attention_dim")


def _added_conditions(config: Config, text_embeds: int | None) -> list[GraphTensor]:
    """SDXL: the pooled text embedding and the size and crop numbers, which one linear layer takes side by side."""
    width, total = size_of(config, "addition_time_embed_dim"), size_of(config, "projection_class_embeddings_input_dim")
    # The base model takes six numbers, the refiner five.
    count = 6 if text_embeds is None else (total - text_embeds) // width
    return [
        GraphTensor(POOLED, "float32", ("batch_size", total - count * width)),
        GraphTensor(SIZES, "float32", ("batch_size", count)),
    ]
