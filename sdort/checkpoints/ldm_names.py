"""Names of parameters in the original (LDM) layout, and diffusers' and transformers' names for them.

Each table is a list of rules, of which the first that matches a whole name renames it. Numbers of blocks are counted
through in the one layout and by level and layer in the other.
Sources: ``openaimodel.py``, ``model.py`` of CompVis/stable-diffusion; ``transformer.py`` of mlfoundations/open_clip;
``cldm.py`` of lllyasviel/ControlNet; ``UNet2DConditionModel``, ``ControlNetModel`` and ``AutoencoderKL`` of diffusers,
``CLIPTextModel`` of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

Rules = tuple[tuple[str, str], ...]
"""Patterns of whole names -> templates, which name the groups of the pattern and what the caller computed of them."""

_GROUPS = {"rest": ".*", "head": r".*\.resnets\.\d+"}
"""Groups of names that are not numbers."""
_NUMBER = r"\d+"

_UNET: Rules = (
    (r"time_embed\.0\.(?P<rest>.*)", "time_embedding.linear_1.{rest}"),
    (r"time_embed\.2\.(?P<rest>.*)", "time_embedding.linear_2.{rest}"),
    (r"time_embed\.cond_proj\.(?P<rest>.*)", "time_embedding.cond_proj.{rest}"),
    (r"label_emb\.0\.0\.(?P<rest>.*)", "add_embedding.linear_1.{rest}"),
    (r"label_emb\.0\.2\.(?P<rest>.*)", "add_embedding.linear_2.{rest}"),
    (r"input_blocks\.0\.0\.(?P<rest>.*)", "conv_in.{rest}"),
    (r"input_blocks\.(?P<after>\d+)\.0\.op\.(?P<rest>.*)", "down_blocks.{level}.downsamplers.0.conv.{rest}"),
    (r"input_blocks\.(?P<after>\d+)\.0\.(?P<rest>.*)", "down_blocks.{level}.resnets.{layer}.{rest}"),
    (r"input_blocks\.(?P<after>\d+)\.1\.(?P<rest>.*)", "down_blocks.{level}.attentions.{layer}.{rest}"),
    (r"middle_block\.0\.(?P<rest>.*)", "mid_block.resnets.0.{rest}"),
    (r"middle_block\.1\.(?P<rest>.*)", "mid_block.attentions.0.{rest}"),
    (r"middle_block\.2\.(?P<rest>.*)", "mid_block.resnets.1.{rest}"),
    (r"output_blocks\.(?P<number>\d+)\.0\.(?P<rest>.*)", "up_blocks.{level}.resnets.{layer}.{rest}"),
    # Behind the attention, or in its place where the level has none.
    (r"output_blocks\.(?P<number>\d+)\.2\.conv\.(?P<rest>.*)", "up_blocks.{level}.upsamplers.0.conv.{rest}"),
    (r"output_blocks\.(?P<number>\d+)\.1\.conv\.(?P<rest>.*)", "up_blocks.{level}.upsamplers.0.conv.{rest}"),
    (r"output_blocks\.(?P<number>\d+)\.1\.(?P<rest>.*)", "up_blocks.{level}.attentions.{layer}.{rest}"),
    (r"out\.0\.(?P<rest>.*)", "conv_norm_out.{rest}"),
    (r"out\.2\.(?P<rest>.*)", "conv_out.{rest}"),
)
_CONTROL: Rules = (
    (r"zero_convs\.(?P<number>\d+)\.0\.(?P<rest>.*)", "controlnet_down_blocks.{number}.{rest}"),
    (r"middle_block_out\.0\.(?P<rest>.*)", "controlnet_mid_block.{rest}"),
    # A convolution and an activation in turn.
    (r"input_hint_block\.0\.(?P<rest>.*)", "controlnet_cond_embedding.conv_in.{rest}"),
    (r"input_hint_block\.(?P<number>\d+)\.(?P<rest>.*)", "controlnet_cond_embedding.{hint}.{rest}"),
)
_UNET_RESNET: Rules = (
    (r"(?P<head>.*\.resnets\.\d+)\.in_layers\.0\.(?P<rest>.*)", "{head}.norm1.{rest}"),
    (r"(?P<head>.*\.resnets\.\d+)\.in_layers\.2\.(?P<rest>.*)", "{head}.conv1.{rest}"),
    (r"(?P<head>.*\.resnets\.\d+)\.emb_layers\.1\.(?P<rest>.*)", "{head}.time_emb_proj.{rest}"),
    (r"(?P<head>.*\.resnets\.\d+)\.out_layers\.0\.(?P<rest>.*)", "{head}.norm2.{rest}"),
    (r"(?P<head>.*\.resnets\.\d+)\.out_layers\.3\.(?P<rest>.*)", "{head}.conv2.{rest}"),
    (r"(?P<head>.*\.resnets\.\d+)\.skip_connection\.(?P<rest>.*)", "{head}.conv_shortcut.{rest}"),
)
_VAE: Rules = (
    (r"encoder\.down\.(?P<number>\d+)\.block\.(?P<rest>.*)", "encoder.down_blocks.{number}.resnets.{rest}"),
    (r"encoder\.down\.(?P<number>\d+)\.downsample\.(?P<rest>.*)", "encoder.down_blocks.{number}.downsamplers.0.{rest}"),
    # The decoder's levels are numbered as the encoder's, from the image's size on.
    (r"decoder\.up\.(?P<number>\d+)\.block\.(?P<rest>.*)", "decoder.up_blocks.{reverse}.resnets.{rest}"),
    (r"decoder\.up\.(?P<number>\d+)\.upsample\.(?P<rest>.*)", "decoder.up_blocks.{reverse}.upsamplers.0.{rest}"),
    (r"(?P<half>..coder)\.mid\.block_1\.(?P<rest>.*)", "{half}.mid_block.resnets.0.{rest}"),
    (r"(?P<half>..coder)\.mid\.block_2\.(?P<rest>.*)", "{half}.mid_block.resnets.1.{rest}"),
    (r"(?P<half>..coder)\.mid\.attn_1\.norm\.(?P<rest>.*)", "{half}.mid_block.attentions.0.group_norm.{rest}"),
    (r"(?P<half>..coder)\.mid\.attn_1\.proj_out\.(?P<rest>.*)", "{half}.mid_block.attentions.0.to_out.0.{rest}"),
    (r"(?P<half>..coder)\.mid\.attn_1\.(?P<rest>[qkv]\..*)", "{half}.mid_block.attentions.0.to_{rest}"),
    # Names of diffusers' attention in files of trainers (EveryDream2).
    (r"(?P<half>..coder)\.mid\.attn_1\.to_out\.(?P<rest>[a-z].*)", "{half}.mid_block.attentions.0.to_out.0.{rest}"),
    (r"(?P<half>..coder)\.mid\.attn_1\.(?P<rest>.*)", "{half}.mid_block.attentions.0.{rest}"),
    (r"(?P<half>..coder)\.norm_out\.(?P<rest>.*)", "{half}.conv_norm_out.{rest}"),
)
_VAE_RESNET: Rules = ((r"(?P<head>.*\.resnets\.\d+)\.nin_shortcut\.(?P<rest>.*)", "{head}.conv_shortcut.{rest}"),)
_TINY_VAE: Rules = (
    # The original's decoder begins with a clamp, which diffusers does not count as a layer.
    (r"encoder\.(?P<number>\d+)\.(?P<rest>.*)", "encoder.layers.{number}.{rest}"),
    (r"decoder\.(?P<after>\d+)\.(?P<rest>.*)", "decoder.layers.{number}.{rest}"),
)
_OPEN_CLIP: Rules = (
    (r"positional_embedding", "embeddings.position_embedding.weight"),
    (r"token_embedding\.weight", "embeddings.token_embedding.weight"),
    (r"ln_final\.(?P<rest>.*)", "final_layer_norm.{rest}"),
    (r"transformer\.resblocks\.(?P<number>\d+)\.ln_1\.(?P<rest>.*)", "encoder.layers.{number}.layer_norm1.{rest}"),
    (r"transformer\.resblocks\.(?P<number>\d+)\.ln_2\.(?P<rest>.*)", "encoder.layers.{number}.layer_norm2.{rest}"),
    (r"transformer\.resblocks\.(?P<number>\d+)\.mlp\.c_fc\.(?P<rest>.*)", "encoder.layers.{number}.mlp.fc1.{rest}"),
    (r"transformer\.resblocks\.(?P<number>\d+)\.mlp\.c_proj\.(?P<rest>.*)", "encoder.layers.{number}.mlp.fc2.{rest}"),
    (r"transformer\.resblocks\.(?P<number>\d+)\.attn\.(?P<rest>.*)", "encoder.layers.{number}.self_attn.{rest}"),
)


def unet_name(name: str, layers: int) -> str | None:
    """The name in diffusers of a UNet's parameter, whose LDM name stands behind ``model.diffusion_model.``.

    Args:
        layers: residual blocks of a level of the encoder half.
    """
    renamed = _rename(name, _UNET, layers=layers)
    return (_rename(renamed, _UNET_RESNET) or renamed) if renamed else None


def original_unet_names(name: str, layers: int) -> Iterator[str]:
    """The names that :func:`unet_name` takes for that of a UNet's parameter in diffusers.

    An upsampler has two: its place depends on whether its level has attentions.
    """
    for renamed in list(_restore(name, _UNET_RESNET)) or [name]:
        yield from _restore(renamed, _UNET, layers)


def control_name(name: str, layers: int, last: int) -> str | None:
    """The name in diffusers of a ControlNet's parameter, whose LDM name stands behind ``control_model.``.

    Args:
        layers: as for :func:`unet_name`.
        last: the number of the last convolution that the image goes through.
    """
    if match := re.fullmatch(r"input_hint_block\.(\d+)\..*", name):
        number = int(match[1])
        return _rename(name, _CONTROL, hint="conv_out" if number == last else f"blocks.{number // 2 - 1}")
    return _rename(name, _CONTROL) or unet_name(name, layers)


def count_hint_layers(names: Iterable[str]) -> int:
    """The number of the last convolution of a ControlNet that the image goes through."""
    return max((int(match[1]) for name in names if (match := re.match(r"input_hint_block\.(\d+)\.", name))), default=0)


def count_layers(names: Iterable[str]) -> int:
    """The residual blocks of a level of a UNet, by the numbers of its downsamplers."""
    numbers = [int(match[1]) for name in names if (match := re.match(r"input_blocks\.(\d+)\.0\.op\.", name))]
    return max(min(numbers, default=3) - 1, 1)


def vae_name(name: str, levels: int) -> str:
    """The name in diffusers of a VAE's parameter, whose LDM name stands behind ``first_stage_model.``."""
    renamed = _rename(name, _VAE, levels=levels) or name
    return _rename(renamed, _VAE_RESNET) or renamed


def tiny_vae_name(name: str) -> str:
    """The name in diffusers of a parameter of madebyollin/taesd, with ``encoder.`` or ``decoder.`` before it."""
    return _rename(name, _TINY_VAE) or name


def open_clip_name(name: str) -> str | None:
    """The name in ``CLIPTextModel`` of a parameter of OpenCLIP's text encoder; packed ones keep their ends."""
    return _rename(name, _OPEN_CLIP)


def original_clip_names(name: str) -> Iterator[str]:
    """The names that :func:`open_clip_name` takes for that of a parameter in ``CLIPTextModel``."""
    return _restore(name, _OPEN_CLIP)


def _rename(name: str, rules: Rules, layers: int = 1, levels: int = 0, hint: str = "") -> str | None:
    for pattern, template in rules:
        if match := re.fullmatch(pattern, name):
            groups = match.groupdict()
            number = int(groups["after"]) - 1 if "after" in groups else int(groups.get("number", 0))
            level, layer = divmod(number, layers + 1)
            numbers = {"number": number, "level": level, "layer": layer, "reverse": levels - 1 - number, "hint": hint}
            return template.format(**{**groups, **{key: str(value) for key, value in numbers.items()}})
    return None


def _restore(name: str, rules: Rules, layers: int = 1) -> Iterator[str]:
    """All names that ``rules`` rename to ``name``."""
    for pattern, template in rules:
        match = re.fullmatch(_group(template), name)
        if match is None:
            continue
        groups = match.groupdict()
        # Behind a level's layers stands what it ends with.
        level, layer = int(groups.get("level", 0)), int(groups.get("layer", layers))
        number = int(groups.get("number", level * (layers + 1) + layer))
        yield _template(pattern).format(**{**groups, "number": number, "after": number + 1})


@cache
def _group(template: str) -> str:
    """The pattern of the names that a template makes."""
    escaped = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    return re.sub(r"\{(\w+)\}", lambda match: f"(?P<{match[1]}>{_GROUPS.get(match[1], _NUMBER)})", escaped)


@cache
def _template(pattern: str) -> str:
    """The template of the names that a pattern of plain text and groups matches."""
    return re.sub(r"\(\?P<(\w+)>.*?\)", r"{\1}", pattern).replace("\\.", ".")
