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
from sdort.families.component_names import (
    CLIP_PIXELS,
    CONCEPT_SCORES,
    CONTROLNET,
    DECODER,
    ENCODER,
    IMAGE_ENCODER,
    IMAGE_TOKENS,
    NEGATIVE_IMAGE_TOKENS,
    PLAIN,
    SAFETY_CHECKER,
    SPECIAL_CARE_SCORES,
    T2I_ADAPTER,
)
from sdort.families.family import GraphOptions
from sdort.families.graph_tensor import GraphDim, GraphSignature, GraphTensor, size_of
from sdort.families.known_families import DENOISERS, FAMILIES, TEXT_ENCODERS, find_denoiser
from sdort.families.text_models import TEXT_MODELS
from sdort.families.unet_signature import denoiser_inputs, residuals
from sdort.families.vae_levels import vae_factor
from sdort.rewrite.size_names import size_at

FOLDERS = {
    **{name: name for name in (*TEXT_ENCODERS, *DENOISERS)},
    ENCODER: "vae",
    DECODER: "vae",
    CONTROLNET: "controlnet",
    T2I_ADAPTER: "adapter",
    IMAGE_ENCODER: IMAGE_ENCODER,
    SAFETY_CHECKER: SAFETY_CHECKER,
}
"""Name of a component -> the checkpoint's folder that holds its config and weights, in the order of export."""

LIBRARIES = {
    **dict.fromkeys(TEXT_MODELS, "transformers"),
    **{family.denoiser.class_name: family.denoiser.library for family in FAMILIES.values()},
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


@dataclass(frozen=True)
class ComponentSpec:
    """One graph to be exported: an architecture, its config, and the graph's signature."""

    name: str
    class_name: str
    config: Mapping[str, Any]
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    masked: bool = False
    """As :attr:`sdort.families.family.PlainText.masked`."""


def describe_component(
    name: str,
    class_name: str,
    config: Mapping[str, Any],
    *,
    hidden_states: bool = False,
    text_embeds: int | None = None,
    control: bool = False,
    image_tokens: Sequence[int] = (),
    masked: bool = False,
) -> ComponentSpec:
    """The component ``name`` with the dynamic signature that follows from its config.

    Args:
        name: one of :data:`FOLDERS`.
        class_name: one of :data:`LIBRARIES`.
        config: the architecture's config, with defaults filled in.
        hidden_states: text encoders also return every layer's output, which SDXL conditions on.
        text_embeds: width of SDXL's pooled text embedding, if it is known.
        control: denoisers also take the outputs of a ControlNet and of a T2I-Adapter.
        image_tokens: denoisers also attend to so many tokens of each IP-Adapter's image.
        masked: a text encoder attends to no padding.

    Raises:
        BadModelError: the config is incomplete, or asks for inputs that Stable Diffusion pipelines do not feed.
    """
    try:
        if denoiser := find_denoiser(name, class_name):
            inputs, outputs = denoiser.signature(config, GraphOptions(text_embeds, control, tuple(image_tokens)))
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
            inputs = (GraphTensor("input_ids", "int64", ("batch_size", "sequence_length")),)
            outputs = tuple(TEXT_MODELS[class_name].outputs(config, hidden_states))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadModelError(
            f"its config.json is not that of a {class_name} ({type(error).__name__}: {error})",
            component=name,
            hint="The config is incomplete or damaged; copy or download the checkpoint again.",
        ) from error
    return ComponentSpec(name, class_name, config, inputs, outputs, masked)


def _vae(name: str, class_name: str, config: Mapping[str, Any]) -> GraphSignature:
    inputs, outputs = _VAE[name](config)
    if (name, class_name) == (ENCODER, "AutoencoderTiny"):
        # Latents, and no distribution of them; optimum's name for such an output.
        latent = outputs[0].dims
        outputs = (
            GraphTensor("latent_sample", "float32", (latent[0], size_of(config, "latent_channels"), *latent[2:])),
        )
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


def _image_encoder(config: Mapping[str, Any]) -> GraphSignature:
    outputs = []
    for number, projection in enumerate(config["projections"]):
        dims = ("batch_size", size_of(projection, "tokens"), size_of(projection, "width"))
        names = [IMAGE_TOKENS, *([NEGATIVE_IMAGE_TOKENS] if projection["kind"] == PLAIN else [])]
        outputs += [GraphTensor(f"{name}.{number}", "float32", dims) for name in names]
    return (_clip_pixels("pixel_values", config),), tuple(outputs)


def _safety_checker(config: Mapping[str, Any]) -> GraphSignature:
    outputs = [GraphTensor(name, "float32", ("batch_size", count)) for name, count in CONCEPTS.items()]
    return (_clip_pixels(CLIP_PIXELS, config),), tuple(outputs)


def _clip_pixels(name: str, config: Mapping[str, Any]) -> GraphTensor:
    side = size_of(config, "image_size")
    return GraphTensor(name, "float32", ("batch_size", size_of(config, "num_channels"), side, side))


def _controlnet(config: Mapping[str, Any]) -> GraphSignature:
    outputs = residuals(config, "down_block_res_samples", "mid_block_res_sample")
    # Each convolution of the image's embedding but the first and the last one halves it.
    factor = 2 ** (len(config["conditioning_embedding_out_channels"]) - 1)
    image = ("batch_size", size_of(config, "conditioning_channels"), f"height * {factor}", f"width * {factor}")
    inputs = [
        *denoiser_inputs(config, None, CONTROLNET),
        GraphTensor("controlnet_cond", "float32", image),
        # A factor for each output: diffusers' one number for all, or those of its guess mode.
        GraphTensor("conditioning_scale", "float32", (len(outputs),)),
    ]
    return tuple(inputs), tuple(outputs)


def _t2i_adapter(config: Mapping[str, Any]) -> GraphSignature:
    channels, kind, factor = config["channels"], config["adapter_type"], size_of(config, "downscale_factor")
    if kind == "full_adapter_xl":  # only the third of its blocks halves the image
        halved = [int(index > 1) for index in range(len(channels))]
    elif kind == "light_adapter":  # one block more than widths
        channels = [*channels, channels[-1]]
        halved = list(range(len(channels)))
    else:
        halved = list(range(len(channels)))
    image = ("batch_size", size_of(config, "in_channels"), "sample_height", "sample_width")
    outputs = []
    for index, (width, halvings) in enumerate(zip(channels, halved, strict=True)):
        scale = factor * 2**halvings
        rounded = f" + {scale - factor}" if halvings else ""
        sides = [f"(sample_{side}{rounded})//{scale}" for side in ("height", "width")]
        outputs.append(GraphTensor(f"features.{index}", "float32", ("batch_size", width, *sides)))
    return (GraphTensor("sample", "float32", image),), tuple(outputs)


def _vae_encoder(config: Mapping[str, Any]) -> GraphSignature:
    factor = vae_factor(config)
    latent = (f"sample_height / {factor}", f"sample_width / {factor}")
    sample = ("batch_size", size_of(config, "in_channels"), "sample_height", "sample_width")
    # The mean and the log-variance of every latent, side by side.
    parameters = ("batch_size", 2 * size_of(config, "latent_channels"), *latent)
    return (GraphTensor("sample", "float32", sample),), (GraphTensor("latent_parameters", "float32", parameters),)


def _vae_decoder(config: Mapping[str, Any]) -> GraphSignature:
    factor = vae_factor(config)
    latent = ("batch_size", size_of(config, "latent_channels"), "latent_height", "latent_width")
    pixels = (f"latent_height * {factor}", f"latent_width * {factor}")
    sample = ("batch_size", size_of(config, "out_channels"), *pixels)
    return (GraphTensor("latent_sample", "float32", latent),), (GraphTensor("sample", "float32", sample),)


_VAE: dict[str, Callable[[Mapping[str, Any]], GraphSignature]] = {
    ENCODER: _vae_encoder,
    DECODER: _vae_decoder,
}
