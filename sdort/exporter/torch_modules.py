"""The torch modules to be traced, built from a config without weights. Imports torch, diffusers, transformers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
import transformers

from sdort.console import quiet_libraries
from sdort.errors import BadModelError
from sdort.errors.plain_text import library_reason
from sdort.exporter.signatures import CONCEPTS, LIBRARIES, ComponentSpec
from sdort.families.component_names import (
    CLIP_SKIP,
    CONCEPT_SCORES,
    CONTROLNET,
    DECODER,
    ENCODER,
    IMAGE_ENCODER,
    IMAGE_SCALE,
    IMAGE_TOKENS,
    PLAIN,
    RESAMPLER_HEAD,
    SAFETY_CHECKER,
    SPECIAL_CARE_SCORES,
    T2I_ADAPTER,
)
from sdort.families.denoiser_arguments import module_arguments
from sdort.families.family import Denoiser
from sdort.families.known_families import find_denoiser
from sdort.families.text_models import QWEN3, T5, TEXT_MODELS
from sdort.families.unet import UNET

_HIDDEN = -1e4
"""Added to what a token gives another of attention: none is left, in fp16 too."""
PREFIX = "model."
"""Stands before every parameter's name in the modules that :func:`build_module` returns."""


class _TextEncoder(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, model: Any, outputs: list[str]) -> None:
        super().__init__()
        self.model = model
        self.outputs = outputs

    def forward(self, input_ids: Any) -> tuple[Any, ...]:
        result = self.model(input_ids, output_hidden_states=True, return_dict=True)
        states = result.hidden_states
        known = {**result, **{f"hidden_states.{index}": state for index, state in enumerate(states)}}
        for name in self.outputs:
            if name.startswith(f"{CLIP_SKIP}."):
                # transformers 4 has a module in between, transformers 5 has not.
                norm = getattr(self.model, "text_model", self.model).final_layer_norm
                known[name] = norm(states[-int(name.removeprefix(f"{CLIP_SKIP}."))])
        return tuple(known[name] for name in self.outputs)


class _T5(torch.nn.Module):  # type: ignore[misc]
    """T5's encoder, as diffusers' pipelines run it: most attend to padding as to any other token."""

    def __init__(self, model: Any, *, masked: bool) -> None:
        super().__init__()
        self.model = model
        self.masked = masked

    def forward(self, input_ids: Any) -> Any:
        # While it is traced transformers makes a mask that hides nothing, and takes a ready one as it is.
        mask = torch.zeros(1, 1, 1, 1)
        if self.masked:
            mask = _HIDDEN * (input_ids == self.model.config.pad_token_id)[:, None, None].float()
        return self.model(input_ids, attention_mask=mask, return_dict=False)[0]


class _Qwen3(torch.nn.Module):  # type: ignore[misc]
    """Qwen3 up to the states before its last layer; each token attends to those before it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any) -> Any:
        # Without a mask the attention is causal by itself, and is exported as that.
        return self.model(input_ids, attention_mask={"full_attention": None}, output_hidden_states=True).hidden_states[
            -2
        ]


class _Denoiser(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, model: Any, inputs: list[str], denoiser: Denoiser) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.model = model
        self.inputs = inputs

    def forward(self, *tensors: Any) -> Any:
        if call := self.denoiser.traced or self.denoiser.call:
            return call(self.model, dict(zip(self.inputs, tensors, strict=True)))
        inputs = module_arguments(self.inputs, tensors, self.denoiser.arguments)
        if IMAGE_TOKENS in inputs:
            pairs = zip(inputs.pop(IMAGE_TOKENS), inputs.pop(IMAGE_SCALE), strict=True)
            # Values have no bias: those of scaled tokens are scaled values, so that one product is enough for all
            # attentions.
            images = [(tokens, tokens * scale.unsqueeze(-1)) for tokens, scale in pairs]
            inputs.setdefault("added_cond_kwargs", {})["image_embeds"] = images
        return self.model(**inputs, return_dict=False)[0]


class _ImageAttention(torch.nn.Module):  # type: ignore[misc]
    """Cross-attention to text plus that to the tokens of each IP-Adapter's image, as an attention processor.

    https://arxiv.org/abs/2308.06721, equation 5; diffusers' ``IPAdapterAttnProcessor2_0``.
    """

    def __init__(self, attention: Any, count: int) -> None:
        super().__init__()
        sizes = attention.to_k.in_features, attention.to_k.out_features
        for name in ("to_k_ip", "to_v_ip"):
            linears = [torch.nn.Linear(*sizes, bias=False) for _ in range(count)]
            setattr(self, name, torch.nn.ModuleList(linears))

    def __call__(
        self, attention: Any, hidden_states: Any, encoder_hidden_states: Any, attention_mask: Any = None
    ) -> Any:
        text, images = encoder_hidden_states
        query = attention.to_q(hidden_states)
        total = _attend(attention.heads, query, attention.to_k(text), attention.to_v(text), attention_mask)
        for (tokens, scaled), to_k, to_v in zip(images, self.to_k_ip, self.to_v_ip, strict=True):
            total = total + _attend(attention.heads, query, to_k(tokens), to_v(scaled))
        return attention.to_out[0](total)


def _attend(heads: int, *states: Any) -> Any:
    """Attention of queries, keys and values [batch, sequence, heads * size], and perhaps a mask."""
    mask = states[3] if len(states) > 3 else None
    parts = [each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in states[:3]]
    attended = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask)
    return attended.transpose(1, 2).flatten(2)


class _ImageEncoder(torch.nn.Module):  # type: ignore[misc]
    """CLIP's vision model and the projections of IP-Adapters to the tokens that a UNet takes.

    As in diffusers: plain adapters take the image's embedding, and without an image zeros in its place; the others the
    states before the last layer.
    """

    def __init__(self, model: Any, kinds: list[str]) -> None:
        super().__init__()
        self.model = model
        self.kinds = kinds

    def forward(self, pixel_values: Any) -> tuple[Any, ...]:
        result = self.model["encoder"](pixel_values, output_hidden_states=True)
        outputs = []
        for kind, projection in zip(self.kinds, self.model["projections"], strict=True):
            taken = result.image_embeds if kind == PLAIN else result.hidden_states[-2]
            outputs.append(projection(taken))
            if kind == PLAIN:
                outputs.append(projection(torch.zeros_like(taken)))
        return tuple(outputs)


class SafetyScores(torch.nn.Module):  # type: ignore[misc]
    """The scores of images by diffusers' ``StableDiffusionSafetyChecker``, without what it decides by them.

    Cosines of the angles between an image's embedding and those of concepts, less the concepts' thresholds.

    Args:
        model: diffusers' model, or another one with parts of its names.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, clip_input: Any) -> tuple[Any, ...]:
        normalize = torch.nn.functional.normalize
        image = normalize(self.model.visual_projection(self.model.vision_model(clip_input)[1]))
        concepts = [(getattr(self.model, name), getattr(self.model, f"{name}_weights")) for name in _EMBEDS.values()]
        return tuple(image @ normalize(embeds).T - thresholds for embeds, thresholds in concepts)


_EMBEDS = {CONCEPT_SCORES: "concept_embeds", SPECIAL_CARE_SCORES: "special_care_embeds"}
"""Outputs of a safety checker -> its concepts' parameters in diffusers."""


class _ControlNet(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, model: Any, inputs: list[str], pooled: bool) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.pooled = pooled

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        inputs = module_arguments(self.inputs, tensors, UNET.arguments)
        scales = inputs.pop("conditioning_scale")
        down, mid = self.model(**inputs, return_dict=False)
        outputs = [output * scales[index] for index, output in enumerate([*down, mid])]
        # diffusers leaves it to the UNet's addition to repeat the means; its inputs are of the whole size here.
        return tuple(self._mean(output) if self.pooled else output for output in outputs)

    def _mean(self, output: Any) -> Any:
        return output.mean(dim=(2, 3), keepdim=True).expand_as(output)


class _T2IAdapter(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, sample: Any) -> tuple[Any, ...]:
        return tuple(self.model(sample))


class _VaeEncoder(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, sample: Any) -> Any:
        encoded = self.model.encode(sample, return_dict=False)[0]
        # A distribution of latents; of a tiny VAE the latents themselves.
        return getattr(encoded, "parameters", encoded)


class _VaeDecoder(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, latent_sample: Any) -> Any:
        return self.model.decode(latent_sample, return_dict=False)[0]


def build_module(component: ComponentSpec) -> Any:
    """The component as a module of positional tensors, with parameters on the meta device.

    Raises:
        BadModelError: the config describes no module.
    """
    with quiet_libraries():
        try:
            with torch.device("meta"):
                model = _construct(component)
        except Exception as error:  # whatever an odd config makes diffusers or transformers stumble over
            reason = f"{type(error).__name__}: {library_reason(error)}"
            raise BadModelError(
                f"its config.json does not make a {component.class_name} ({reason})",
                component=component.name,
                hint=f"The config is damaged, or newer than the installed {component.class_name}.",
            ) from error
    model.eval().requires_grad_(False)
    denoiser = find_denoiser(component.name, component.class_name)
    if denoiser and denoiser.restore:
        denoiser.restore(model)
    _restore_buffers(component, model)
    if denoiser:
        return _Denoiser(model, [spec.name for spec in component.inputs], denoiser)
    if component.name == CONTROLNET:
        pooled = bool(component.config["global_pool_conditions"])
        return _ControlNet(model, [spec.name for spec in component.inputs], pooled)
    if component.name == T2I_ADAPTER:
        return _T2IAdapter(model)
    if component.name == IMAGE_ENCODER:
        return _ImageEncoder(model, [projection["kind"] for projection in component.config["projections"]])
    if component.name == SAFETY_CHECKER:
        return SafetyScores(model)
    if component.name in (ENCODER, DECODER):
        return (_VaeEncoder if component.name == ENCODER else _VaeDecoder)(model)
    if component.class_name == T5:
        return _T5(model, masked=component.masked)
    if component.class_name == QWEN3:
        return _Qwen3(model)
    return _TextEncoder(model, [spec.name for spec in component.outputs])


def parameters(module: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of a built module's parameters, under the names that a checkpoint uses."""
    return {name.removeprefix(PREFIX): tuple(value.shape) for name, value in module.named_parameters()}


def allocate(module: Any) -> None:
    """Give the parameters memory that is never touched: torch traces them on the CPU, nobody reads them.

    The system hands out such memory page by page at the first access, so it costs address space only.
    """
    for child in module.modules():
        for name, parameter in list(child.named_parameters(recurse=False)):
            empty = torch.empty(parameter.shape, dtype=torch.float32)
            setattr(child, name, torch.nn.Parameter(empty, requires_grad=False))


def _construct(component: ComponentSpec) -> Any:
    if text := TEXT_MODELS.get(component.class_name):
        config = getattr(transformers, text.config_class)(**{**component.config, **text.settings})
        model = getattr(transformers, component.class_name)(config)
        if component.class_name == T5:
            del model.shared  # the table of tokens, which its encoder has too
        if component.class_name == QWEN3:
            with torch.device("cpu"):  # its frequencies are numbers of the config, and no parameters
                model.rotary_emb = type(model.rotary_emb)(config)
        return model
    if component.name == IMAGE_ENCODER:
        return _image_encoder(component.config)
    if component.name == SAFETY_CHECKER:
        return _safety_checker(component.config)
    # The wrapper takes the means, after the scales.
    unpooled = {"global_pool_conditions": False} if component.name == CONTROLNET else {}
    library = import_module(LIBRARIES[component.class_name])
    model = getattr(library, component.class_name)(**{**component.config, **unpooled})
    images = sum(spec.name.startswith(f"{IMAGE_TOKENS}.") for spec in component.inputs)
    if images:
        _attend_to_images(model, images)
    return model


def _attend_to_images(unet: Any, count: int) -> None:
    """Let a UNet's cross-attentions take the tokens of ``count`` images."""
    processors = {
        name: _ImageAttention(unet.get_submodule(name.removesuffix(".processor")), count)
        if name.endswith(".attn2.processor")
        else processor
        for name, processor in unet.attn_processors.items()
    }
    unet.set_attn_processor(processors)
    # Where diffusers projects images; here the image encoder has done it.
    unet.encoder_hid_proj = torch.nn.Identity()
    unet.register_to_config(encoder_hid_dim_type="ip_image_proj")


def _image_encoder(config: Mapping[str, Any]) -> Any:
    encoder = _vision_model({key: value for key, value in config.items() if key != "projections"})
    projections = torch.nn.ModuleList([_projection(projection) for projection in config["projections"]])
    return torch.nn.ModuleDict({"encoder": encoder, "projections": projections})


def _safety_checker(config: Mapping[str, Any]) -> Any:
    """CLIP's vision model with the concepts of diffusers' class, under its names for them."""
    model, width = _vision_model(config), config["projection_dim"]
    for output, name in _EMBEDS.items():
        model.register_parameter(name, torch.nn.Parameter(torch.empty(CONCEPTS[output], width)))
        model.register_parameter(f"{name}_weights", torch.nn.Parameter(torch.empty(CONCEPTS[output])))
    return model


def _vision_model(config: Mapping[str, Any]) -> Any:
    vision = transformers.CLIPVisionConfig(**config, attn_implementation="sdpa")
    return transformers.CLIPVisionModelWithProjection(vision)


def _projection(config: Mapping[str, Any]) -> Any:
    from diffusers.models.embeddings import ImageProjection, IPAdapterPlusImageProjection

    if config["kind"] == PLAIN:
        return ImageProjection(config["embeds"], config["width"], config["tokens"])
    return IPAdapterPlusImageProjection(
        config["embeds"],
        config["width"],
        config["hidden"],
        depth=config["depth"],
        dim_head=RESAMPLER_HEAD,
        heads=config["heads"],
        num_queries=config["tokens"],
        ffn_ratio=config["inner"] / config["hidden"],
    )


def _restore_buffers(component: ComponentSpec, model: Any) -> None:
    """Buffers are constants that code computed; on the meta device their values are lost. Those that checkpoints have
    become parameters."""
    stored = model.state_dict().keys()
    for path, buffer in list(model.named_buffers()):
        owner, _, name = path.rpartition(".")
        if not buffer.is_meta and path not in stored:
            continue
        if path in stored:
            module = model.get_submodule(owner)
            delattr(module, name)
            module.register_parameter(name, torch.nn.Parameter(buffer, requires_grad=False))
            continue
        if name != "position_ids":
            raise BadModelError(f"buffer {path!r} of {component.class_name} is unknown", component=component.name)
        # CLIP: 0, 1, 2, ... in a row (transformers, CLIPTextEmbeddings).
        values = torch.arange(buffer.shape[-1], dtype=buffer.dtype).expand(buffer.shape)
        model.get_submodule(owner).register_buffer(name, values.clone(), persistent=False)
