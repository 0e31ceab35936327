"""Names of modules in the original code of Stable Diffusion and OpenCLIP, for those of diffusers and transformers.

Facts of CompVis/stable-diffusion (``openaimodel.py``) and of mlfoundations/open_clip (``transformer.py``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import count, takewhile

_UNET = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "time_embedding.cond_proj": "time_embed.cond_proj",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_CLIP = {
    "self_attn.out_proj": "attn.out_proj",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
_MIDDLE = {
    "mid_block.resnets.0": "middle_block.0",
    "mid_block.attentions.0": "middle_block.1",
    "mid_block.resnets.1": "middle_block.2",
}
_BLOCK_PART = re.compile(r"((?:down_blocks\.\d+|up_blocks\.\d+|mid_block)\.(?:\w+)\.\d+)\.(.+)")
_LAYER_PART = re.compile(r"encoder\.layers\.(\d+)\.(.+)")


def original_unet_names(modules: Collection[str]) -> dict[str, str]:
    """Module of diffusers' UNet -> its name in the original code; what the original has not is left out.

    ``down_blocks.0.resnets.0.conv1`` is ``input_blocks.1.0.in_layers.2``.
    """
    split = {module: match for module in modules if (match := _BLOCK_PART.fullmatch(module))}
    places = dict(_places({match[1] for match in split.values()}))
    names = {module: _UNET[module] for module in modules if module in _UNET}
    for module, match in split.items():
        part, inner = match.groups()
        if ".resnets." in part:
            inner = _RESNET.get(inner, "")
        elif ".downsamplers." in part:
            inner = {"conv": "op"}.get(inner, "")
        if part in places and inner:
            names[module] = f"{places[part]}.{inner}"
    return names


def _places(parts: set[str]) -> Iterator[tuple[str, str]]:
    """Part of a block, such as ``up_blocks.0.resnets.1`` -> its place in the original, which counts through blocks."""
    yield from _MIDDLE.items()
    number = 1  # input_blocks.0 is the first convolution
    for block, resnets in _blocks("down", parts):
        yield from _resnets(f"down_blocks.{block}", "input_blocks", number, resnets)
        number += resnets
        if f"down_blocks.{block}.downsamplers.0" in parts:
            yield f"down_blocks.{block}.downsamplers.0", f"input_blocks.{number}.0"
            number += 1
    number = 0
    for block, resnets in _blocks("up", parts):
        yield from _resnets(f"up_blocks.{block}", "output_blocks", number, resnets)
        number += resnets
        # Behind the block's last resnet, and that one's attention if it has any.
        behind = 2 if f"up_blocks.{block}.attentions.{resnets - 1}" in parts else 1
        yield f"up_blocks.{block}.upsamplers.0", f"output_blocks.{number - 1}.{behind}"


def _blocks(way: str, parts: set[str]) -> Iterator[tuple[int, int]]:
    """Number of each block, and how many resnets it has."""
    for block in takewhile(lambda block: f"{way}_blocks.{block}.resnets.0" in parts, count()):
        yield block, sum(part.startswith(f"{way}_blocks.{block}.resnets.") for part in parts)


def _resnets(block: str, blocks: str, first: int, resnets: int) -> Iterator[tuple[str, str]]:
    for resnet in range(resnets):
        yield f"{block}.resnets.{resnet}", f"{blocks}.{first + resnet}.0"
        yield f"{block}.attentions.{resnet}", f"{blocks}.{first + resnet}.1"


def original_clip_names(modules: Iterable[str]) -> dict[str, str]:
    """Module of transformers' CLIP text encoder, without ``text_model.`` -> its name in OpenCLIP.

    Queries, keys and values are one matrix there, ``attn.in_proj``, and left out.
    """
    names = {"embeddings.token_embedding": "token_embedding", "final_layer_norm": "ln_final"}
    for module in modules:
        part = _LAYER_PART.fullmatch(module)
        if part and part[2] in _CLIP:
            names[module] = f"transformer.resblocks.{part[1]}.{_CLIP[part[2]]}"
    return names
