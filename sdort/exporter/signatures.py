"""The components of a pipeline: the architecture and the signature of each one's ONNX graph.

Input and output names are those of optimum's ONNX exports, so that its ONNX Runtime pipelines load the result.
Text encoders of Stable Diffusion 1.x and 2.x have outputs beside those, for clip skip. The one difference is
``timestep``: float32 instead of int64, because several of diffusers' schedulers (Euler,
Heun, LMS) step through fractional timesteps. optimum and diffusers cast to whatever dtype the graph declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sdort.errors import BadModelError
from sdort.errors.number_ranges import CLIP_SKIP as CLIP_SKIPS
from sdort.model.component_names import (
    CLIP_PIXELS,
    CLIP_SKIP,
    CONCEPT_SCORES,
    CONTROLNET,
    DECODER,
    ENCODER,
    IMAGE_ENCODER,
    IMAGE_SCALE,
    IMAGE_TOKENS,
    NEGATIVE_IMAGE_TOKENS,
    PLAIN,
    SAFETY_CHECKER,
    SPECIAL_CARE_SCORES,
    T2I_ADAPTER,
)
from sdort.model.vae_levels import vae_factor
from sdort.rewrite.size_names import size_at

FOLDERS = {
    "text_encoder": "text_encoder",
    "text_encoder_2": "text_encoder_2",
    "unet": "unet",
    ENCODER: "vae",
    DECODER: "vae",
    CONTROLNET: "controlnet",
    T2I_ADAPTER: "adapter",
    IMAGE_ENCODER: IMAGE_ENCODER,
    SAFETY_CHECKER: SAFETY_CHECKER,
}
"""ComponentSpec -> the checkpoint's folder that holds its config and weights, in the order of export."""

LIBRARIES = {
    "CLIPTextModel": "transformers",
    "CLIPTextModelWithProjection": "transformers",
    "UNet2DConditionModel": "diffusers",
    "AutoencoderKL": "diffusers",
    "AutoencoderTiny": "diffusers",
    "ControlNetModel": "diffusers",
    "T2IAdapter": "diffusers",
    "CLIPVisionModelWithProjection": "transformers",
    "StableDiffusionSafetyChecker": "diffusers",
}
"""The architectures that can be exported, and where their code is."""

CONCEPTS = {CONCEPT_SCORES: 17, SPECIAL_CARE_SCORES: 3}
"""Outputs of a safety checker -> the number of concepts that diffusers' class has for each."""

VAES = ("AutoencoderKL", "AutoencoderTiny")
"""Those of them that are VAEs; the second is TAESD's."""

GraphDim = int | str


@dataclass(frozen=True)
class GraphTensor:
    """An input or output: its name, dtype (numpy's name) and dims (a number, or a name when dynamic)."""

    name: str
    """The tensor's name."""
    dtype: str
    """numpy's name of its dtype."""
    dims: tuple[GraphDim, ...]
    """Its sizes: a number, or a name where it is dynamic."""


@dataclass(frozen=True)
class ComponentSpec:
    """One graph to be exported: an architecture, its config, and the graph's signature."""

    name: str
    class_name: str
    config: Mapping[str, Any]
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]


GraphSignature = tuple[tuple[GraphTensor, ...], tuple[GraphTensor, ...]]


def describe_component(
    name: str,
    class_name: str,
    config: Mapping[str, Any],
    *,
    hidden_states: bool = False,
    text_embeds: int | None = None,
    control: bool = False,
    image_tokens: Sequence[int] = (),
) -> ComponentSpec:
    """The component ``name`` with the dynamic signature that follows from its config.

    Args:
        name: one of :data:`FOLDERS`.
        class_name: one of :data:`LIBRARIES`.
        config: the architecture's config, with defaults filled in.
        hidden_states: text encoders also return every layer's output, which SDXL conditions on.
        text_embeds: width of SDXL's pooled text embedding, if it is known.
        control: UNets also take the outputs of a ControlNet and of a T2I-Adapter.
        image_tokens: UNets also attend to so many tokens of each IP-Adapter's image.

    Raises:
        BadModelError: the config is incomplete, or asks for inputs that Stable Diffusion pipelines do not feed.
    """
    try:
        if name == "unet":
            inputs, outputs = _unet(config, text_embeds, control, image_tokens)
        elif name == CONTROLNET:
            inputs, outputs = _controlnet(config)
        elif name == T2I_ADAPTER:
            inputs, outputs = _t2i_adapter(config)
        elif name == IMAGE_ENCODER:
            inputs, outputs = _image_encoder(config)
        elif name == SAFETY_CHECKER:
            inputs, outputs = _safety_checker(config)
        elif FOLDERS[name] == "vae":
            inputs, outputs = _vae(name, class_name, config)
        else:
            inputs, outputs = _text_encoder(class_name, config, hidden_states)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadModelError(
            f"its config.json is not that of a {class_name} ({type(error).__name__}: {error})",
            component=name,
            hint="The config is incomplete or damaged; copy or download the checkpoint again.",
        ) from error
    return ComponentSpec(name, class_name, config, inputs, outputs)


def _vae(name: str, class_name: str, config: Mapping[str, Any]) -> GraphSignature:
    inputs, outputs = _VAE[name](config)
    if (name, class_name) == (ENCODER, "AutoencoderTiny"):
        # Latents, and no distribution of them; optimum's name for such an output.
        latent = outputs[0].dims
        outputs = (GraphTensor("latent_sample", "float32", (latent[0], _size(config, "latent_channels"), *latent[2:])),)
    return inputs, outputs


def at_size(component: ComponentSpec, sizes: Mapping[str, int]) -> ComponentSpec:
    """The component with every dynamic dim that ``sizes`` names made static."""
    return replace(
        component,
        inputs=tuple(_fixed(spec, sizes) for spec in component.inputs),
        outputs=tuple(_fixed(spec, sizes) for spec in component.outputs),
    )


def _fixed(spec: GraphTensor, sizes: Mapping[str, int]) -> GraphTensor:
    return replace(spec, dims=tuple(evaluate_dim(dim, sizes) for dim in spec.dims))


def evaluate_dim(dim: GraphDim, sizes: Mapping[str, int]) -> GraphDim:
    """``latent_height * 8`` at a known latent_height; a dim that is not in ``sizes`` stays."""
    size = size_at(dim, sizes) if isinstance(dim, str) else dim
    return dim if size is None else size


def _text_encoder(class_name: str, config: Mapping[str, Any], hidden_states: bool) -> GraphSignature:
    width, layers = _size(config, "hidden_size"), _size(config, "num_hidden_layers")
    sequence = ("batch_size", "sequence_length", width)
    inputs = (GraphTensor("input_ids", "int64", ("batch_size", "sequence_length")),)
    last = GraphTensor("last_hidden_state", "float32", sequence)
    # The pipelines take the pooled output of a projecting encoder by its position, the first.
    if class_name == "CLIPTextModelWithProjection":
        outputs = [GraphTensor("text_embeds", "float32", ("batch_size", _size(config, "projection_dim"))), last]
    else:
        outputs = [last, GraphTensor("pooler_output", "float32", ("batch_size", width))]
    if hidden_states:
        outputs += [GraphTensor(f"hidden_states.{index}", "float32", sequence) for index in range(layers + 1)]
    elif class_name == "CLIPTextModel":
        skips = range(2, min(layers, CLIP_SKIPS.high) + 1)
        outputs += [GraphTensor(f"{CLIP_SKIP}.{skip}", "float32", sequence) for skip in skips]
    return inputs, tuple(outputs)


def _image_encoder(config: Mapping[str, Any]) -> GraphSignature:
    outputs = []
    for number, projection in enumerate(config["projections"]):
        dims = ("batch_size", _size(projection, "tokens"), _size(projection, "width"))
        names = [IMAGE_TOKENS, *([NEGATIVE_IMAGE_TOKENS] if projection["kind"] == PLAIN else [])]
        outputs += [GraphTensor(f"{name}.{number}", "float32", dims) for name in names]
    return (_clip_pixels("pixel_values", config),), tuple(outputs)


def _safety_checker(config: Mapping[str, Any]) -> GraphSignature:
    outputs = [GraphTensor(name, "float32", ("batch_size", count)) for name, count in CONCEPTS.items()]
    return (_clip_pixels(CLIP_PIXELS, config),), tuple(outputs)


def _clip_pixels(name: str, config: Mapping[str, Any]) -> GraphTensor:
    side = _size(config, "image_size")
    return GraphTensor(name, "float32", ("batch_size", _size(config, "num_channels"), side, side))


def _unet(
    config: Mapping[str, Any], text_embeds: int | None, control: bool, image_tokens: Sequence[int]
) -> GraphSignature:
    inputs = _denoiser_inputs(config, text_embeds, "unet")
    if config.get("time_cond_proj_dim") is not None:
        inputs.append(GraphTensor("timestep_cond", "float32", ("batch_size", _size(config, "time_cond_proj_dim"))))
    if control:
        inputs += [*_residuals(config, *CONTROL_INPUTS), *_intrablock_residuals(config)]
    for number, tokens in enumerate(image_tokens):
        inputs.append(GraphTensor(f"{IMAGE_TOKENS}.{number}", "float32", ("batch_size", tokens, _context(config))))
        inputs.append(GraphTensor(f"{IMAGE_SCALE}.{number}", "float32", ("batch_size", 1)))
    return tuple(inputs), (
        GraphTensor("out_sample", "float32", ("batch_size", _size(config, "out_channels"), "height", "width")),
    )


def _denoiser_inputs(config: Mapping[str, Any], text_embeds: int | None, component: str) -> list[GraphTensor]:
    """The inputs that a UNet and its ControlNet share."""
    _refuse_foreign_unet(config, component)
    latent = ("batch_size", _size(config, "in_channels"), "height", "width")
    inputs = [
        GraphTensor("sample", "float32", latent),
        GraphTensor("timestep", "float32", ()),
        GraphTensor("encoder_hidden_states", "float32", ("batch_size", "sequence_length", _context(config))),
    ]
    if config.get("addition_embed_type") == "text_time":
        inputs += _added_conditions(config, text_embeds)
    return inputs


def _controlnet(config: Mapping[str, Any]) -> GraphSignature:
    outputs = _residuals(config, "down_block_res_samples", "mid_block_res_sample")
    # Each convolution of the image's embedding but the first and the last one halves it.
    factor = 2 ** (len(config["conditioning_embedding_out_channels"]) - 1)
    image = ("batch_size", _size(config, "conditioning_channels"), f"height * {factor}", f"width * {factor}")
    inputs = [
        *_denoiser_inputs(config, None, CONTROLNET),
        GraphTensor("controlnet_cond", "float32", image),
        # A factor for each output: diffusers' one number for all, or those of its guess mode.
        GraphTensor("conditioning_scale", "float32", (len(outputs),)),
    ]
    return tuple(inputs), tuple(outputs)


CONTROL_INPUTS = ("down_block_additional_residuals", "mid_block_additional_residual")
"""A UNet's inputs that take a ControlNet's outputs: diffusers' names; the first ones are numbered."""
INTRABLOCK_INPUTS = "down_intrablock_additional_residuals"
"""A UNet's inputs that take a T2I-Adapter's features: diffusers' name; they are numbered."""


def _residuals(config: Mapping[str, Any], down: str, mid: str) -> list[GraphTensor]:
    """What skips from a UNet's way down to its way up, in order, and what leaves its mid block."""
    channels, layers = config["block_out_channels"], config["layers_per_block"]
    places = [(channels[0], 0)]
    for level, width in enumerate(channels):
        places += [(width, level)] * (layers[level] if isinstance(layers, list) else layers)
        if level < len(channels) - 1:
            places.append((width, level + 1))
    last = len(channels) - 1
    numbered = [_residual(f"{down}.{index}", *place) for index, place in enumerate(places)]
    return [*numbered, _residual(mid, channels[-1], last)]


def _intrablock_residuals(config: Mapping[str, Any]) -> list[GraphTensor]:
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
    return GraphTensor(name, "float32", ("batch_size", _positive(channels, "block_out_channels"), *sides))


def _t2i_adapter(config: Mapping[str, Any]) -> GraphSignature:
    channels, kind, factor = config["channels"], config["adapter_type"], _size(config, "downscale_factor")
    if kind == "full_adapter_xl":  # only the third of its blocks halves the image
        halved = [int(index > 1) for index in range(len(channels))]
    elif kind == "light_adapter":  # one block more than widths
        channels = [*channels, channels[-1]]
        halved = list(range(len(channels)))
    else:
        halved = list(range(len(channels)))
    image = ("batch_size", _size(config, "in_channels"), "sample_height", "sample_width")
    outputs = []
    for index, (width, halvings) in enumerate(zip(channels, halved, strict=True)):
        scale = factor * 2**halvings
        rounded = f" + {scale - factor}" if halvings else ""
        sides = [f"(sample_{side}{rounded})//{scale}" for side in ("height", "width")]
        outputs.append(GraphTensor(f"features.{index}", "float32", ("batch_size", width, *sides)))
    return (GraphTensor("sample", "float32", image),), tuple(outputs)


def _refuse_foreign_unet(config: Mapping[str, Any], component: str) -> None:
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


def _context(config: Mapping[str, Any]) -> int:
    """The width of the text embeddings."""
    width = config["cross_attention_dim"]
    return _positive(width[0] if isinstance(width, list) and len(set(width)) == 1 else width, "cross_attention_dim")


def _added_conditions(config: Mapping[str, Any], text_embeds: int | None) -> list[GraphTensor]:
    """SDXL: the pooled text embedding and the size and crop numbers, which one linear layer takes side by side."""
    width, total = _size(config, "addition_time_embed_dim"), _size(config, "projection_class_embeddings_input_dim")
    # The base model takes six numbers, the refiner five.
    count = 6 if text_embeds is None else (total - text_embeds) // width
    return [
        GraphTensor("text_embeds", "float32", ("batch_size", total - count * width)),
        GraphTensor("time_ids", "float32", ("batch_size", count)),
    ]


def _vae_encoder(config: Mapping[str, Any]) -> GraphSignature:
    factor = vae_factor(config)
    latent = (f"sample_height / {factor}", f"sample_width / {factor}")
    sample = ("batch_size", _size(config, "in_channels"), "sample_height", "sample_width")
    # The mean and the log-variance of every latent, side by side.
    parameters = ("batch_size", 2 * _size(config, "latent_channels"), *latent)
    return (GraphTensor("sample", "float32", sample),), (GraphTensor("latent_parameters", "float32", parameters),)


def _vae_decoder(config: Mapping[str, Any]) -> GraphSignature:
    factor = vae_factor(config)
    latent = ("batch_size", _size(config, "latent_channels"), "latent_height", "latent_width")
    pixels = (f"latent_height * {factor}", f"latent_width * {factor}")
    sample = ("batch_size", _size(config, "out_channels"), *pixels)
    return (GraphTensor("latent_sample", "float32", latent),), (GraphTensor("sample", "float32", sample),)


_VAE: dict[str, Callable[[Mapping[str, Any]], GraphSignature]] = {
    ENCODER: _vae_encoder,
    DECODER: _vae_decoder,
}


def _size(config: Mapping[str, Any], key: str) -> int:
    return _positive(config[key], key)


def _positive(value: Any, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{key} = {value!r}")
    return value
