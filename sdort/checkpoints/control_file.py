"""A single-file ControlNet: its config and its tensors in diffusers' names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sdort.checkpoints.layout import control_tensors
from sdort.checkpoints.safetensors import read_tensors
from sdort.checkpoints.shape_configs import Config, controlnet_config
from sdort.errors import BadModelError
from sdort.graph.weights import Weight

PREFIX = "control_model."
"""Stands before the names of a ControlNet's tensors where the file is one of lllyasviel/ControlNet; the rest of such a
file is the model that it was trained with."""
_OTHERS = {
    "difference": "the difference of a ControlNet and its UNet",
    "lora_controlnet": "a Control-LoRA, made of changes of a UNet's weights",
    "task_embedding": "a ControlNet of several kinds of images (union)",
}
"""Tensors that only another kind of ControlNet has -> what it is."""
_SHUFFLE = "shuffle"
"""In the name of the one release whose ControlNet gives means over the image (``global_average_pooling`` of its yaml);
AUTOMATIC1111 and ComfyUI go by the file's name as well."""


def read_control_file(path: Path) -> tuple[Config, Mapping[str, Weight]]:
    """The config and the tensors of a file that holds a ControlNet, in the layout of LDM or diffusers.

    Raises:
        BadModelError: it is broken, incomplete, or of a kind that sdort does not export.
    """
    found = read_tensors(path)
    if other := next((what for name, what in _OTHERS.items() if name in found), None):
        raise BadModelError(
            f"{path} is {other}; sdort does not export this kind",
            hint="Get the ControlNet itself, as diffusers has it.",
        )
    inner = {name.removeprefix(PREFIX): tensor for name, tensor in found.items() if name.startswith(PREFIX)}
    tensors = control_tensors(inner or found)
    try:
        config = controlnet_config({name: tensor.shape for name, tensor in tensors.items()})
    except BadModelError as error:
        error.message = f"{path}: {error.message}"
        raise
    return {**config, "global_pool_conditions": _SHUFFLE in path.stem.lower()}, tensors
