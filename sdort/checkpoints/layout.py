"""The tensors of a component in diffusers' or transformers' names, whatever layout their file has.

Nothing is read: what the layouts store packed, turned or in another shape is described as an expression, and a packed
matrix is three ranges of the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from itertools import pairwise

from sdort.checkpoints.ldm_names import (
    control_name,
    count_hint_layers,
    count_layers,
    open_clip_name,
    tiny_vae_name,
    unet_name,
    vae_name,
)
from sdort.errors import BadModelError
from sdort.errors.plain_text import cut, one_line
from sdort.families.layer_names import Layer, LayerNames
from sdort.graph.weights import Cast, Concatenated, Dequantized, Reshaped, Stored, Transposed, Weight

Tensors = Mapping[str, Weight]
"""Tensors of one component by the names that its file gives them, without the component's prefix."""


def unet_tensors(tensors: Tensors) -> Mapping[str, Weight]:
    """The tensors of a UNet; one that no rule knows keeps its name."""
    if any(name.startswith("down_blocks.") for name in tensors):
        return dict(tensors)
    layers = count_layers(tensors)
    return _renamed(tensors, lambda name: unet_name(name, layers) or name)


def control_tensors(tensors: Tensors) -> Mapping[str, Weight]:
    """The tensors of a ControlNet; one that no rule knows keeps its name."""
    if any(name.startswith("controlnet_cond_embedding.") for name in tensors):
        return dict(tensors)
    layers, last = count_layers(tensors), count_hint_layers(tensors)
    return _renamed(tensors, lambda name: control_name(name, layers, last) or name)


def vae_tensors(tensors: Tensors) -> dict[str, Weight]:
    """The tensors of an ``AutoencoderKL``."""
    if any(name.startswith("decoder.up_blocks.") for name in tensors):
        return dict(tensors)
    levels = len({match[1] for name in tensors if (match := re.match(r"decoder\.up\.(\d+)\.", name))})
    renamed = _renamed(tensors, lambda name: vae_name(name, levels))
    return {name: _as_matrix(tensor) if ".attentions." in name else tensor for name, tensor in renamed.items()}


def tiny_vae_tensors(tensors: Tensors) -> Mapping[str, Weight]:
    """The tensors of an ``AutoencoderTiny``."""
    return _renamed(tensors, tiny_vae_name)


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
        elif name == "text_projection" and len(tensor.shape) == 2:
            found["text_projection.weight"] = Transposed(tensor, (1, 0))  # x @ P there, a Linear here
        else:
            found[renamed] = tensor
    return found


def denoiser_tensors(tensors: Tensors, names: LayerNames) -> dict[str, Weight]:
    """The tensors of a denoiser in its authors' names or diffusers'; one that the table has not keeps its name.

    Raises:
        BadModelError: two names become one; or a tensor's rows are not those of the layers that it is of.
    """
    found: dict[str, Weight] = {}
    for name, tensor in tensors.items():
        if name in names.unused:
            continue
        own = list(names.own_names(name))
        layer = names.find(name.rpartition(".")[0])
        for new, part in zip(own, _parts(name, tensor, layer, tensors) if layer else [tensor], strict=True):
            if new in found:
                raise _twice(new, name)
            found[new] = part
    return found


def _parts(name: str, tensor: Weight, layer: Layer, tensors: Tensors) -> list[Weight]:
    """The tensors of the layers that a layer of a file is in diffusers."""
    if len(layer.own) == 1 and not layer.swapped:
        return [tensor]
    key = f"{layer.authors}.weight"
    weight = tensors.get(key, tensor)
    high, wide = weight.shape if len(weight.shape) == 2 else (0, 0)
    fits = 0 < wide * max(len(layer.own) - 1, 1) < high
    if not fits or tensor.shape[:1] != (high,):
        named, shape = (name, tensor.shape) if fits else (key, weight.shape)
        raise BadModelError(
            f"its tensor {named!r} has the shape {list(shape)}, which is none of {len(layer.own)} layers in one"
            if len(layer.own) > 1
            else f"its tensor {named!r} has the shape {list(shape)}, which is none of a modulation",
            hint="It is damaged, or of another kind: get another version of it.",
        )
    if layer.swapped:
        return [
            Concatenated([_rows(tensor, wide, high), _rows(tensor, 0, wide)], 0)
            if layer.swaps(weight.shape)
            else tensor
        ]
    ends = [*(wide * number for number in range(len(layer.own))), high]
    return [_rows(tensor, start, end) for start, end in pairwise(ends)]


def _rows(tensor: Weight, start: int, end: int) -> Weight:
    """Some rows of a tensor of a file."""
    if isinstance(tensor, Reshaped):  # a scale for each row
        return Reshaped(_rows(tensor.operand, start, end), (end - start,))
    if isinstance(tensor, Cast):
        return Cast(_rows(tensor.operand, start, end), tensor.dtype)
    if isinstance(tensor, Dequantized):
        scale = tensor.scale if tensor.scale.shape == (1,) else _rows(tensor.scale, start, end)
        return Dequantized(_rows(tensor.operand, start, end), scale, None, 0)
    assert isinstance(tensor, Stored)
    size = tensor.nbytes // tensor.shape[0]
    return Stored(tensor.path, tensor.offset + start * size, (end - start, *tensor.shape[1:]), tensor.dtype)


def _as_matrix(tensor: Weight) -> Weight:
    """A convolution of one pixel as the matrix that a Linear has."""
    kernel = tensor.shape[2:]
    return Reshaped(tensor, tensor.shape[:2]) if kernel and math.prod(kernel) == 1 else tensor


def _thirds(tensor: Weight) -> list[Weight]:
    """Three tensors of a third of the rows each."""
    return equal_parts(tensor, 3, "queries, keys and values")


def equal_parts(tensor: Weight, count: int, what: str) -> list[Weight]:
    """Tensors of an equal share of the rows each.

    Raises:
        BadModelError: it has not so many rows, or no axes.
    """
    rows = tensor.shape[0] if tensor.shape else 0
    if not rows or rows % count:
        raise BadModelError(
            f"a tensor of {what} in one has the shape {list(tensor.shape)}, whose rows are not {count} equal parts",
            hint="It is damaged, or of another kind: get another version of it.",
        )
    share = rows // count
    return [_rows(tensor, index * share, (index + 1) * share) for index in range(count)]


def _renamed(tensors: Tensors, rename: Callable[[str], str]) -> dict[str, Weight]:
    """The tensors by other names.

    Raises:
        BadModelError: two names become one, such as ``blocks.1`` and ``blocks.01``: one would be lost.
    """
    found: dict[str, Weight] = {}
    for name, tensor in tensors.items():
        other = rename(name)
        if other in found:
            raise _twice(other, name)
        found[other] = tensor
    return found


def _twice(name: str, other: str) -> BadModelError:
    return BadModelError(
        f"it has the tensor {name!r} twice, also as {cut(one_line(other), 100)!r}",
        hint="It is damaged, or a mixture of two files: get another version of it.",
    )
