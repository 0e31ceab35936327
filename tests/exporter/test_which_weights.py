"""Of several weight files of a component the one is read that its own library loads."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sdort.errors import BadModelError
from sdort.exporter.checkpoint import read_checkpoint


def tiny(component: str) -> Any:
    """A small model of the component's library."""
    if component == "vae_decoder":
        from diffusers import AutoencoderKL

        return AutoencoderKL(block_out_channels=(4,), norm_num_groups=2, latent_channels=4)
    from transformers import CLIPTextConfig, CLIPTextModel

    sizes = {"hidden_size": 4, "intermediate_size": 4, "num_attention_heads": 1, "num_hidden_layers": 1}
    return CLIPTextModel(CLIPTextConfig(vocab_size=8, max_position_embeddings=4, **sizes))


def save(folder: Path, name: str, tensors: dict[str, torch.Tensor], value: float) -> None:
    """Write ``tensors``, all of one value, to the file or the index of one shard ``name``."""
    filled = {key: torch.full_like(tensor, value).contiguous() for key, tensor in tensors.items()}
    if name.endswith(".bin"):
        torch.save(filled, folder / name)
        return
    file = name if name.endswith(".safetensors") else f"{name.replace('.', '-')}-00001-of-00001.safetensors"
    save_file(filled, folder / file, {"format": "pt"})
    if file != name:
        content = {"metadata": {}, "weight_map": dict.fromkeys(filled, file)}
        (folder / name).write_text(json.dumps(content))


FILES = {
    "vae_decoder": ("diffusion_pytorch_model", "diffusion_pytorch_model.bin", "model.safetensors"),
    "text_encoder": ("model", "pytorch_model.bin", "diffusion_pytorch_model.safetensors"),
}


@pytest.mark.parametrize("component", FILES)
@pytest.mark.parametrize("variant", [None, "fp16"])
def test_the_library_chooses(tmp_path: Path, component: str, variant: str | None) -> None:
    model = tiny(component)
    stem, pickle, foreign = FILES[component]
    mark = f".{variant}" if variant else ""
    names = [f"{stem}{mark}.safetensors", f"{stem}.safetensors.index{mark}.json", pickle.replace(".bin", f"{mark}.bin")]
    others = [foreign, *([f"{stem}.safetensors"] if variant else [])]
    for number, present in enumerate([pair for size in (1, 2, 3) for pair in combinations(names, size)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        model.config.to_json_file(folder / "config.json") if component == "text_encoder" else model.save_config(folder)
        for value, name in enumerate((*present, *others), 1):
            save(folder, name, model.state_dict(), float(value))
        loaded = type(model).from_pretrained(folder, variant=variant, low_cpu_mem_usage=False)
        expected = float(next(iter(loaded.parameters())).detach().flatten()[0])
        weight = next(iter(read_checkpoint(folder, component, variant, True).values()))
        assert np.unique(weight.load()).tolist() == [expected], present


def test_a_pipe_in_the_place_of_weights_is_no_reason_to_read_others(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    save(tmp_path, "pytorch_model.bin", {"w": torch.zeros(2)}, 1.0)
    with pytest.raises(BadModelError, match=r"model.safetensors is a folder"):
        read_checkpoint(tmp_path, "text_encoder", None, True)


def test_a_config_that_names_other_weights_is_refused(tmp_path: Path) -> None:
    save(tmp_path, "model.safetensors", {"w": torch.zeros(2)}, 1.0)
    (tmp_path / "config.json").write_text('{"transformers_weights": "other.safetensors"}')
    with pytest.raises(BadModelError, match="names other weights"):
        read_checkpoint(tmp_path, "text_encoder", None, False)
