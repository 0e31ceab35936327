"""A UNet's parameters as ComfyUI looks for them: by their original (LDM) names, with shapes and without values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sdort.checkpoints.ldm_names import original_unet_names
from sdort.console import quiet_libraries


def empty_unet(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """A UNet's parameters by diffusers' names, on the ``meta`` device, which holds no values.

    Args:
        config: the UNet's.
    """
    from diffusers import UNet2DConditionModel

    with quiet_libraries(), torch.device("meta"):
        parameters: dict[str, torch.Tensor] = dict(UNet2DConditionModel.from_config(dict(config)).state_dict())
    return parameters


def original_names(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    """Original names of a UNet's parameters -> diffusers'.

    Args:
        parameters: by diffusers' names.
        config: the UNet's.
    """
    layers = int(config["layers_per_block"])
    return {_original(name, parameters, layers): name for name in parameters}


def _original(name: str, parameters: Mapping[str, Any], layers: int) -> str:
    # An upsampler's place depends on whether its level has attentions: the first name is that behind one.
    behind, *beside = original_unet_names(name, layers)
    level = name.partition(".upsamplers.")[0]
    return beside[0] if beside and f"{level}.attentions.0.proj_in.weight" not in parameters else behind
