"""The tensors of a component in diffusers' or transformers' names, whatever layout their file has.

Nothing is read: what the layouts store packed, turned or in another shape is described as an expression, and a packed
matrix is three ranges of the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from sdort.model.weights import Reshaped, Stored, Transposed, Weight
from sdort.pipelines.checkpoints.ldm_names import (
    control_name,
    count_hint_layers,
    count_layers,
    open_clip_name,
    tiny_vae_name,
    unet_name,
    vae_name,
)

Tensors = Mapping[str, Stored]
"""Tensors of one component by the names that its file gives them, without the component's prefix."""


def unet_tensors(tensors: Tensors) -> dict[str, Weight]:
    """The tensors of a UNet; one that no rule knows keeps its name."""
    if any(name.startswith("down_blocks.") for name in tensors):
        return dict(tensors)
    layers = count_layers(tensors)
    return {unet_name(name, layers) or name: tensor for name, tensor in tensors.items()}


def control_tensors(tensors: Tensors) -> dict[str, Weight]:
    """The tensors of a ControlNet; one that no rule knows keeps its name."""
    if any(name.startswith("controlnet_cond_embedding.") for name in tensors):
        return dict(tensors)
    layers, last = count_layers(tensors), count_hint_layers(tensors)
    return {control_name(name, layers, last) or name: tensor for name, tensor in tensors.items()}


def vae_tensors(tensors: Tensors) -> dict[str, Weight]:
    """The tensors of an ``AutoencoderKL``."""
    if any(name.startswith("decoder.up_blocks.") for name in tensors):
        return dict(tensors)
    levels = len({match[1] for name in tensors if (match := re.match(r"decoder\.up\.(\d+)\.", name))})
    renamed = {vae_name(name, levels): tensor for name, tensor in tensors.items()}
    return {name: _as_matrix(tensor) if ".attentions." in name else tensor for name, tensor in renamed.items()}


def tiny_vae_tensors(tensors: Tensors) -> dict[str, Weight]:
    """The tensors of an ``AutoencoderTiny``."""
    return {tiny_vae_name(name): tensor for name, tensor in tensors.items()}


def clip_tensors(tensors: Tensors) -> dict[str, Weight]:
    """The tensors of a text encoder in OpenCLIP's or transformers' names."""
    if not any(name.startswith("transformer.resblocks.") for name in tensors):
        return dict(tensors)
    found: dict[str, Weight] = {}
    for name, tensor in tensors.items():
        renamed = open_clip_name(name) or name
        head, packed, kind = renamed.partition("in_proj_")
        if packed:
            found |= {f"{head}{part}_proj.{kind}": third for part, third in zip("qkv", _thirds(tensor), strict=True)}
        elif name == "text_projection":
            found["text_projection.weight"] = Transposed(tensor, (1, 0))  # x @ P there, a Linear here
        else:
            found[renamed] = tensor
    return found


def _as_matrix(tensor: Stored) -> Weight:
    """A convolution of one pixel as the matrix that a Linear has."""
    kernel = tensor.shape[2:]
    return Reshaped(tensor, tensor.shape[:2]) if kernel and math.prod(kernel) == 1 else tensor


def _thirds(tensor: Stored) -> list[Stored]:
    """Three tensors of a third of the rows each."""
    rows, size = tensor.shape[0] // 3, tensor.nbytes // 3
    shape = (rows, *tensor.shape[1:])
    return [Stored(tensor.path, tensor.offset + index * size, shape, tensor.dtype) for index in range(3)]
