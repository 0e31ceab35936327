"""LoRAs of Stable Diffusion 3, Flux.1, Chroma and Z-Image in their authors' names: each row changes as its own does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import authors_layouts, tiny_chroma, tiny_flux, tiny_sd3, tiny_z_image

from sdort.adapters.adapter_file import read_adapter
from sdort.console import quiet_libraries
from sdort.errors import BadModelError

RANK = 2
FAMILIES: dict[str, tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]] = {
    "SD 3": (lambda: diffusers.SD3Transformer2DModel(**tiny_sd3.TRANSFORMER), authors_layouts.sd3),
    "Flux.1": (lambda: diffusers.FluxTransformer2DModel(**tiny_flux.TRANSFORMER), authors_layouts.flux),
    "Chroma": (lambda: diffusers.ChromaTransformer2DModel(**tiny_chroma.TRANSFORMER), authors_layouts.chroma),
    "Z-Image": (lambda: diffusers.ZImageTransformer2DModel(**tiny_z_image.TRANSFORMER), authors_layouts.z_image),
}
SPELLINGS: dict[str, tuple[str, str, str, str]] = {
    "ComfyUI": ("diffusion_model.", ".", ".lora_B.weight", ".lora_A.weight"),
    "trainers": ("lora_unet_", "_", ".lora_up.weight", ".lora_down.weight"),
}


def numbered(family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A transformer's matrices in diffusers' layout and in the authors', whose rows are numbers of rows."""
    build, layout = FAMILIES[family]
    with torch.device("meta"), quiet_libraries():
        shapes = {name: tuple(tensor.shape) for name, tensor in build().state_dict().items()}
    own, count = {}, 0
    for name, shape in shapes.items():
        rows = shape[0] if shape else 1
        own[name] = (count + torch.arange(rows).reshape(-1, *[1] * (len(shape) - 1))).expand(shape)
        count += rows
    return own, layout(own)


def parameters(own: dict[str, Any]) -> dict[str, dict[str, tuple[int, ...]]]:
    return {"transformer": {name: tuple(each.shape) for name, each in own.items()}}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_authors_layers_are_those_of_diffusers(family: str, spelling: str, tmp_path: Path) -> None:
    own, theirs = numbered(family)
    prefix, dot, up, down = SPELLINGS[spelling]
    generator = torch.Generator().manual_seed(2)
    tensors: dict[str, Any] = {}
    wanted: dict[int, Any] = {}
    for name, rows in theirs.items():
        if rows.dim() != 2 or not name.endswith(".weight"):
            continue
        module = prefix + name.removesuffix(".weight").replace(".", dot)
        pair = torch.randn(len(rows), RANK, generator=generator), torch.randn(RANK, rows.shape[1], generator=generator)
        tensors |= {module + up: pair[0], module + down: pair[1], f"{module}.alpha": torch.tensor(1.0)}
        wanted |= dict(zip(rows[:, 0].tolist(), (pair[0] @ pair[1] / RANK).numpy(), strict=True))
    save_file(tensors, tmp_path / "a.safetensors")
    adapter = read_adapter(
        tmp_path / "a.safetensors", {"transformer": {name: tuple(each.shape) for name, each in own.items()}}
    )
    assert adapter.unmatched == ()
    deltas = adapter.deltas["transformer"]
    assert deltas.keys() == {name for name, each in own.items() if each.dim() == 2 and name.endswith(".weight")}
    for name, delta in deltas.items():
        rows = np.stack([wanted[number] for number in own[name][:, 0].tolist()])
        np.testing.assert_allclose(delta.array(), rows, atol=1e-5, err_msg=name)
        some = delta.rows()(3, np.empty((len(rows) - 5, rows.shape[1]), np.float32))
        np.testing.assert_allclose(some, rows[3 : len(rows) - 2], atol=1e-5, err_msg=name)


def test_a_layer_that_a_transformer_has_not_is_told_as_such(tmp_path: Path) -> None:
    own, _ = numbered("SD 3")
    pair = {"lora_A.weight": torch.ones(2, 4), "lora_B.weight": torch.ones(4, 2)}
    save_file({f"diffusion_model.odd.{name}": each for name, each in pair.items()}, tmp_path / "a.safetensors")
    with pytest.raises(BadModelError, match="none of its 1 modules is one of transformer"):
        read_adapter(
            tmp_path / "a.safetensors", {"transformer": {name: tuple(each.shape) for name, each in own.items()}}
        )
