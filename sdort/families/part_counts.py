"""The parts of a component, counted from its diffusers or transformers config alone, one function a kind.

Keys: those of :func:`sdort.optimizer.expected.architecture`.

Source of the rules: ``UNet2DConditionModel``, ``ControlNetModel``, ``T2IAdapter``, ``AutoencoderKL``,
``AutoencoderTiny``, ``ImageProjection``, ``IPAdapterPlusImageProjection`` (diffusers), ``CLIPTextModel`` and
``CLIPVisionModelWithProjection`` (transformers).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sdort.errors import BadModelError
from sdort.families.component_names import DECODER, ENCODER, IMAGE_ENCODER, PLAIN, SAFETY_CHECKER
from sdort.families.family import Config

SILU = ("silu", "swish")
DOWN_BLOCKS = {"DownBlock2D": False, "CrossAttnDownBlock2D": True}
UP_BLOCKS = {"UpBlock2D": False, "CrossAttnUpBlock2D": True}
MID_BLOCKS = {None: None, "UNetMidBlock2D": False, "UNetMidBlock2DCrossAttn": True}
"""Block types and whether they hold transformers; a UNet may have no mid block at all."""
TEXT_ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu"}

# Settings that change what a block computes, with the values whose structure is known here.
KNOWN_SETTINGS: dict[str, tuple[Any, ...]] = {
    "dual_cross_attention": (False, None),
    "attention_type": ("default", None),
    "addition_embed_type": (None, "text_time"),
    "encoder_hid_dim_type": (None, "text_proj"),
    "resnet_time_scale_shift": ("default", "scale_shift", None),
    "cross_attention_norm": (None,),
}


def unet(config: Config) -> Counter[str]:
    # conv_norm_out and conv_out
    total = Counter(conv=1, group_norm=1, group_norm_silu=_has_silu(config), gelu=_has_gelu(config))
    return total + _unet_down(config) + _unet_up(config)


def controlnet(config: Config) -> Counter[str]:
    """A UNet's way down and its mid block, a convolution at each of its ends, and the embedding of an image."""
    layers = _per_level(config.get("layers_per_block", 2), len(config["block_out_channels"]))
    ends = 1 + sum(layers) + len(layers) - 1 + 1  # conv_in, each layer, each downsampler, the mid block
    # conv_in, conv_out, and two from each width to the next one
    embedding = 2 + 2 * (len(config["conditioning_embedding_out_channels"]) - 1)
    return Counter(conv=ends + embedding) + _unet_down(config)


def t2i_adapter(config: Config) -> Counter[str]:
    channels, blocks = config["channels"], int(config["num_res_blocks"])
    if config["adapter_type"] == "light_adapter":
        # Two in each residual block, and one on each side of these.
        return Counter(conv=(len(channels) + 1) * (2 * blocks + 2))
    widened = [after != before for before, after in pairwise(channels)]
    if config["adapter_type"] == "full_adapter_xl":
        widened = widened[:2]
    return Counter(conv=1 + len(channels) * 2 * blocks + sum(widened))


def _unet_down(config: Config) -> Counter[str]:
    """From conv_in to the mid block."""
    for setting, known in KNOWN_SETTINGS.items():
        if config.get(setting) not in known:
            raise _unknown("unet", setting, config[setting])
    channels = [int(width) for width in config["block_out_channels"]]
    levels = len(channels)
    layers, depths, only_cross = _levels(config)
    # conv_in; the time embedding has one activation inside, and one that all resnets share
    total = Counter(conv=1, gelu=2 * _has_gelu(config))
    for level, kind in enumerate(config["down_block_types"]):
        for layer in range(layers[level]):
            before = channels[max(level - 1, 0)] if layer == 0 else channels[level]
            total += _resnet(config, shortcut=before != channels[level])
            if _holds_transformers(kind, DOWN_BLOCKS):
                total += _transformer(config, _depth(depths[level], layer), only_cross[level])
        total["conv"] += level < levels - 1  # downsampler
    return total + _unet_mid(config, depths[-1])


def _levels(config: Config) -> tuple[list[Any], list[Any], list[Any]]:
    """The layers, depths of transformers, and whether they have cross attention only, of each level."""
    levels = len(config["block_out_channels"])
    return (
        _per_level(config.get("layers_per_block", 2), levels),
        _per_level(config.get("transformer_layers_per_block", 1), levels),
        _per_level(config.get("only_cross_attention") or False, levels),
    )


def _unet_mid(config: Config, depth: int | Sequence[int]) -> Counter[str]:
    kind = config.get("mid_block_type", "UNetMidBlock2DCrossAttn")
    if kind is None:
        return Counter()
    total = _resnet(config, shortcut=False)
    if _holds_transformers(kind, MID_BLOCKS):
        # UNet2DConditionModel does not hand only_cross_attention to this block.
        total += _transformer(config, _depth(depth, 0), only_cross=False)
        total += _resnet(config, shortcut=False)
    return total


def _unet_up(config: Config) -> Counter[str]:
    total: Counter[str] = Counter()
    layers, depths, only_cross = _levels(config)
    depths = config.get("reverse_transformer_layers_per_block") or depths[::-1]
    for level, kind in enumerate(config["up_block_types"]):
        for layer in range(layers[::-1][level] + 1):
            # Its input is a concatenation with a skip, hence always wider than its output.
            total += _resnet(config, shortcut=True)
            if _holds_transformers(kind, UP_BLOCKS):
                total += _transformer(config, _depth(depths[level], layer), only_cross[::-1][level])
        total["conv"] += level < len(layers) - 1  # upsampler
    return total


def vae_encoder(config: Config) -> Counter[str]:
    if blocks := config.get("num_encoder_blocks"):  # AutoencoderTiny: three convolutions a block, no norms
        return Counter(conv=1 + sum(3 * count + 1 for count in blocks))
    channels = [int(width) for width in config["block_out_channels"]]
    total = _vae_shared(config, channels[-1], bool(config.get("use_quant_conv", True)))
    for level, kind in enumerate(config["down_block_types"]):
        if kind != "DownEncoderBlock2D":
            raise _unknown(ENCODER, "down_block_types", kind)
        total += _resnets(config, channels[max(level - 1, 0)], channels[level], int(config["layers_per_block"]))
        total["conv"] += level < len(channels) - 1
    return total


def vae_decoder(config: Config) -> Counter[str]:
    if blocks := config.get("num_decoder_blocks"):
        return Counter(conv=1 + sum(3 * count + 1 for count in blocks))
    channels = [int(width) for width in config["block_out_channels"]][::-1]
    total = _vae_shared(config, channels[0], bool(config.get("use_post_quant_conv", True)))
    for level, kind in enumerate(config["up_block_types"]):
        if kind != "UpDecoderBlock2D":
            raise _unknown(DECODER, "up_block_types", kind)
        total += _resnets(config, channels[max(level - 1, 0)], channels[level], int(config["layers_per_block"]) + 1)
        total["conv"] += level < len(channels) - 1
    return total


def _vae_shared(config: Config, channels: int, quantized: bool) -> Counter[str]:
    """conv_in, the mid block, conv_norm_out, conv_out, and the 1x1 convolution at the latent."""
    # conv_norm_out is followed by SiLU whatever act_fn says.
    total = Counter(conv=2 + quantized, group_norm=1, group_norm_silu=1)
    total += _resnets(config, channels, channels, 2)
    if config.get("mid_block_add_attention", True):
        total += Counter(attention_self=1, group_norm=1)
    return total


def text_encoder(config: Config) -> Counter[str]:
    config = config.get("text_config") or config
    layers = int(config["num_hidden_layers"])
    activation = config.get("hidden_act", "quick_gelu")
    if activation not in TEXT_ACTIVATIONS:
        raise _unknown("text_encoder", "hidden_act", activation)
    total = Counter(attention_self=layers, attention_causal=layers, layer_norm=2 * layers + 1)
    # Each block's two residual sums feed a norm; the last one final_layer_norm.
    return total + Counter({"skip_layer_norm": 2 * layers, TEXT_ACTIVATIONS[activation]: layers})


def t5_encoder(config: Config) -> Counter[str]:
    """Two norms and an attention a layer, one norm behind all, and a Gelu, gated or not."""
    layers, activation = int(config["num_layers"]), str(config["feed_forward_proj"]).removeprefix("gated-")
    if activation not in ("relu", *TEXT_ACTIVATIONS):
        raise _unknown("text_encoder", "feed_forward_proj", config["feed_forward_proj"])
    gelu = layers * (activation != "relu")
    gated = gelu * (config["feed_forward_proj"] == "gated-gelu")  # transformers' name for that of a tangent
    return Counter(attention_self=layers, rms_norm=2 * layers + 1, gelu=gelu, gated_gelu=gated)


def qwen3(config: Config) -> Counter[str]:
    """Each layer but the last, which is not read: an attention, rotary embeddings of its queries and keys, and norms of
    these and before both halves."""
    layers = int(config["num_hidden_layers"]) - 1
    return Counter(attention_self=layers, rms_norm=4 * layers, rotary=2 * layers, swiglu=layers)


def image_encoder(config: Config) -> Counter[str]:
    """CLIP's vision model, as far as the projections of IP-Adapters take it, and these projections."""
    projections, layers = config["projections"], int(config["num_hidden_layers"])
    whole = [projection for projection in projections if projection["kind"] == PLAIN]
    layers -= not whole  # the others take the states before the last layer
    total = _vision_layers(config, IMAGE_ENCODER, layers, pooled=bool(whole))
    for projection in projections:
        total += _resampler(int(projection["depth"])) if projection not in whole else Counter(layer_norm=2)
    return total


def safety_checker(config: Config) -> Counter[str]:
    """CLIP's whole vision model; what compares its embedding with concepts is a product and a norm of vectors."""
    return _vision_layers(config, SAFETY_CHECKER, int(config["num_hidden_layers"]), pooled=True)


def _vision_layers(config: Config, component: str, layers: int, *, pooled: bool) -> Counter[str]:
    """The embeddings and so many layers of CLIP's vision model, and perhaps the norm of the pooled state."""
    activation = config.get("hidden_act", "quick_gelu")
    if activation not in TEXT_ACTIVATIONS:
        raise _unknown(component, "hidden_act", activation)
    total = Counter({"conv": 1, "attention_self": layers, TEXT_ACTIVATIONS[activation]: layers})
    # One before the layers, and behind them that of the pooled state; a sum feeds each norm of a layer but the first.
    return total + Counter(layer_norm=2 * layers + 1 + pooled, skip_layer_norm=2 * layers - 1)


def _resampler(depth: int) -> Counter[str]:
    """Each layer has norms of the image's states, of its own, and before its feed-forward network."""
    return Counter(attention_cross=depth, gelu=depth, layer_norm=3 * depth + 1, skip_layer_norm=2 * depth - 1)


def _resnets(config: Config, before: int, channels: int, count: int) -> Counter[str]:
    total = _resnet(config, shortcut=before != channels)
    for _ in range(count - 1):
        total += _resnet(config, shortcut=False)
    return total


def _resnet(config: Config, shortcut: bool) -> Counter[str]:
    """norm, SiLU, conv, time embedding, norm, SiLU, conv, and a 1x1 convolution where the width changes."""
    # scale_shift puts a multiplication by the time embedding between the second norm and its SiLU.
    activated = 1 if config.get("resnet_time_scale_shift") == "scale_shift" else 2
    silu, gelu = activated * _has_silu(config), 2 * _has_gelu(config)
    return Counter(conv=2 + shortcut, group_norm=2, group_norm_silu=silu, gelu=gelu)


def _transformer(config: Config, depth: int, only_cross: bool) -> Counter[str]:
    """Transformer2DModel: norm, projection in, ``depth`` blocks of two attentions and a GEGLU, projection out."""
    total = Counter(transformer=1, group_norm=1, attention_cross=depth, layer_norm=3 * depth, geglu=depth)
    total["attention_cross" if only_cross else "attention_self"] += depth
    total["conv"] += 0 if config.get("use_linear_projection") else 2
    # Norms 2 and 3 of a block follow a residual sum, and so does norm 1 of every block but the first.
    total["skip_layer_norm"] += 3 * depth - 1
    return total


def _has_silu(config: Config) -> int:
    return int(config.get("act_fn", "silu") in SILU)


def _has_gelu(config: Config) -> int:
    return int(config.get("act_fn") == "gelu")


def _holds_transformers(kind: str, blocks: Mapping[Any, bool | None]) -> bool:
    if kind not in blocks:
        raise _unknown("unet", "block type", kind)
    return bool(blocks[kind])


def _per_level(value: Any, levels: int) -> list[Any]:
    """diffusers allows one value for all levels or a list of one a level."""
    return list(value) if isinstance(value, Sequence) else [value] * levels


def _depth(depth: int | Sequence[int], layer: int) -> int:
    """A level's transformer depth, which may differ from layer to layer."""
    return depth if isinstance(depth, int) else depth[layer]


def _unknown(component: str, setting: str, value: Any) -> BadModelError:
    return BadModelError(
        f"its config has an unknown {setting}: {value!r}",
        component=component,
        hint="sdort knows the architectures of Stable Diffusion 1.x, 2.x and XL; "
        "pass --allow-misses to go on without counts.",
    )
