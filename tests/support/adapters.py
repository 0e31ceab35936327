"""Adapters for tiny models: made and merged by peft, and written under the names that trainers give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model_state_dict, inject_adapter_in_model
from safetensors.torch import save_file
from support.ldm_files import ldm_unet

from sdort.graph.signature import Array

UNET: dict[str, Any] = {
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "attention_head_dim": 8,
    "cross_attention_dim": 48,
}
TARGETS = r".*(to_q|to_k|to_v|to_out\.0|ff\.net\.0\.proj|ff\.net\.2|proj_in|proj_out|conv1|conv2|conv_shortcut|conv_in)"
"""Linear layers and convolutions of 1x1 and 3x3 (a regular expression for peft)."""
_PARTS = {
    ".lora_A.weight": ".lora_down.weight",
    ".lora_B.weight": ".lora_up.weight",
    ".lora_magnitude_vector": ".dora_scale",
    ".lora_magnitude_vector.weight": ".dora_scale",
}
"""peft's ends of names -> those of sd-scripts and LyCORIS, where they differ."""

Tensors = dict[str, torch.Tensor]


def build_unet() -> Any:
    """The tiny UNet with seeded weights."""
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    return UNet2DConditionModel(**UNET)


def arrays(module: Any) -> dict[str, Array]:
    """A module's parameters as arrays, copied."""
    return {name: parameter.detach().numpy().copy() for name, parameter in module.named_parameters()}


def merged_by_peft(module: Any, config: Any) -> tuple[Tensors, dict[str, Array]]:
    """A seeded adapter of a peft config: its tensors as peft names them, and the module's weights with it merged."""
    adapted = inject_adapter_in_model(config, module)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "magnitude" in name:
            parameter.data *= 1 + 0.3 * torch.rand(parameter.shape, generator=generator)
        elif any(kind in name for kind in ("lora_", "hada_", "lokr_")):
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    tensors = {name: tensor.clone().contiguous() for name, tensor in get_peft_model_state_dict(adapted).items()}
    for layer in adapted.modules():
        if hasattr(layer, "merge"):
            layer.merge()
    weights = {name.replace(".base_layer", ""): array for name, array in arrays(adapted).items()}
    return tensors, {name: array for name, array in weights.items() if not any(part in name for part in _ADAPTERS)}


_ADAPTERS = ("lora_", "hada_", "lokr_")


def as_kohya(
    tensors: Tensors, weights: Mapping[str, Array], alpha: float, prefix: str = "lora_unet_", *, original: bool = False
) -> Tensors:
    """peft's tensors under the names of sd-scripts and LyCORIS, with an alpha.

    Args:
        weights: of the module.
        original: name modules as the original code does it.
    """
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in weights))
    names = {module: module for module in modules}
    if original:
        renamed = ldm_unet({f"{module}.weight": module for module in modules}, UNET["layers_per_block"])
        names = {module: name.removesuffix(".weight") for name, module in renamed.items()}
    out = {}
    for name, tensor in tensors.items():
        module = max((each for each in modules if name.startswith(f"{each}.")), key=len)
        end = name[len(module) :]
        stem = prefix + names[module].replace(".", "_")
        if "magnitude" in end:
            tensor = tensor.reshape(-1, *[1] * (weights[f"{module}.weight"].ndim - 1))
        out[stem + _PARTS.get(end, end)] = tensor
        out[f"{stem}.alpha"] = torch.tensor(float(alpha))
    return out


def save(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> Path:
    """Write a safetensors file."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(path), metadata)
    return path


def low_rank(
    weights: Mapping[str, Array],
    stem: Callable[[str], str],
    *,
    rank: int = 2,
    alpha: float | None = None,
    seed: int = 0,
) -> tuple[Tensors, dict[str, Array]]:
    """A LoRA in the form of sd-scripts over all matrices and convolutions but tables, in fp16; and its differences.

    Args:
        stem: module -> what its tensors' names begin with.
    """
    generator = torch.Generator().manual_seed(0)
    tensors: Tensors = {}
    deltas: dict[str, Array] = {}
    for name, weight in weights.items():
        module, _, leaf = name.rpartition(".")
        if leaf != "weight" or weight.ndim < 2 or "embedding" in module:
            continue
        down = (torch.randn(rank, *weight.shape[1:], generator=generator) * 0.3).half()
        up = (torch.randn(weight.shape[0], rank, *[1] * (weight.ndim - 2), generator=generator) * 0.3).half()
        tensors |= {f"{stem(module)}.lora_down.weight": down, f"{stem(module)}.lora_up.weight": up}
        if alpha is not None:
            tensors[f"{stem(module)}.alpha"] = torch.tensor(alpha).half()
        product = up.double().reshape(len(up), -1) @ down.double().reshape(rank, -1)
        deltas[name] = (product.reshape(weight.shape) * ((rank if alpha is None else alpha) / rank)).numpy()
    return tensors, deltas
