"""A UNet's inputs for what steers it by images: IP-Adapters, and the outputs of ControlNets and T2I-Adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sdort.errors import BadModelError
from sdort.families.component_names import CONTROLNET, IMAGE_SCALE, IMAGE_TOKENS, T2I_ADAPTER
from sdort.families.known_families import roles_of
from sdort.families.unet import UNET
from sdort.graph.signature import Array, TensorSpec
from sdort.rewrite.size_names import size_at


def is_image_scale(name: str) -> bool:
    """Whether an input says how much an image counts."""
    return name.startswith(f"{IMAGE_SCALE}.")


def is_image_input(name: str) -> bool:
    """Whether an input is for an image."""
    return name.startswith((f"{IMAGE_TOKENS}.", f"{IMAGE_SCALE}."))


def image_inputs(names: Iterable[str]) -> list[str]:
    """The names that are those of inputs for images."""
    return [name for name in names if is_image_input(name)]


def count_images(names: Iterable[str]) -> int:
    """The number of images that a UNet with inputs of these names takes."""
    return sum(name.startswith(f"{IMAGE_TOKENS}.") for name in names)


DOWN, MID, INTRABLOCK = (
    "down_block_additional_residuals",
    "mid_block_additional_residual",
    "down_intrablock_additional_residuals",
)
"""A UNet's inputs that take a ControlNet's outputs, the last one of which is of the mid block, and those for a
T2I-Adapter's features; the first and the last kind are numbered."""
IMAGE, SCALES = "controlnet_cond", "conditioning_scale"
"""A ControlNet's inputs of its own: the image in [0, 1], and a factor for each output."""


def residual_inputs(inputs: Mapping[str, Any]) -> dict[str, list[str]]:
    """Component -> the UNet's inputs that take its outputs, in their order; empty lists without them.

    Args:
        inputs: the UNet's by name.
    """
    groups = {kind: [name for name in inputs if name.startswith(f"{kind}.")] for kind in (DOWN, INTRABLOCK)}
    mid = [name for name in inputs if name == MID]
    return {CONTROLNET: [*groups[DOWN], *mid], T2I_ADAPTER: groups[INTRABLOCK]}


def all_residuals(inputs: Mapping[str, Any]) -> list[str]:
    """The names of all of a UNet's inputs for controls."""
    return [name for names in residual_inputs(inputs).values() for name in names]


def steering_inputs(inputs: Iterable[str]) -> list[str]:
    """The names of all of a UNet's inputs that runs may lack: those for controls and for the images of IP-Adapters."""
    return [name for name in inputs if is_residual(name) or is_image_input(name)]


def shape_at(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int | None, ...]:
    """The dims of an input or output where named sizes are known; None where something else is named."""
    return tuple(dim if isinstance(dim, int) else size_at(dim, sizes) if dim else None for dim in spec.shape)


def named_sizes(spec: TensorSpec, shape: Sequence[int]) -> dict[str, int]:
    """Values of the names in a declared shape at ``shape``."""
    return {name: size for name, size in zip(spec.shape, shape, strict=True) if isinstance(name, str)}


def zero_residuals(inputs: Mapping[str, TensorSpec], sample: Sequence[int]) -> dict[str, Array]:
    """Zeros for all of a UNet's inputs for controls; parameters and errors are those of :func:`residual_shapes`."""
    return {name: np.zeros(shape, inputs[name].dtype) for name, shape in residual_shapes(inputs, sample).items()}


def residual_shapes(inputs: Mapping[str, TensorSpec], sample: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The shapes of all of a UNet's inputs for controls, for all samples also where the UNet is fixed to fewer at once.

    Args:
        inputs: the UNet's by name.
        sample: the shape of its input ``sample``, with all samples.

    Raises:
        BadModelError: nothing says how large one is.
    """
    name = roles_of(inputs).sample
    sizes = named_sizes(inputs[name], sample) if name in inputs else {}
    shapes = {}
    for name in all_residuals(inputs):
        shape = tuple(size for size in shape_at(inputs[name], sizes) if size is not None)
        if len(shape) != len(inputs[name].shape):
            raise BadModelError(f"nothing says how large its input {name!r} is", component=UNET.component)
        shapes[name] = (sample[0], *shape[1:])
    return shapes


def unsteered(inputs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """A component's inputs without those for controls, as it is run where nothing steers it."""
    return {name: spec for name, spec in inputs.items() if not is_residual(name)}


def is_residual(name: str) -> bool:
    """Whether a UNet's input is for controls."""
    return name == MID or name.startswith((f"{DOWN}.", f"{INTRABLOCK}."))
