"""Parts of single files in names of trainers: a VAE's attention, CLIP with its image encoder, latents of two kinds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.full_size import VAE
from support.ldm_files import ldm_vae, open_clip, with_prefix

from sdort.checkpoints.layout import vae_tensors
from sdort.checkpoints.prediction import Prediction
from sdort.checkpoints.single_file import SingleFile, _add_text_encoder, _check_latents
from sdort.checkpoints.weight_names import SD1, SD2
from sdort.errors import BadModelError
from sdort.exporter.bind import bind
from sdort.families.known_families import FAMILIES
from sdort.graph.weights import Stored

ATTENTION = ("norm", "q", "k", "v", "proj_out")
SPELLINGS = {
    "original": ATTENTION,
    "diffusers": ("group_norm", "to_q", "to_k", "to_v", "to_out.0"),
    "EveryDream2": ("norm", "to_q", "to_k", "to_v", "to_out.0"),
    "without a number": ("norm", "to_q", "to_k", "to_v", "to_out"),
    "old diffusers": ("group_norm", "query", "key", "value", "proj_attn"),
}


def described(shapes: dict[str, tuple[int, ...]]) -> dict[str, Stored]:
    return {name: Stored(Path("nowhere"), 0, shape, np.dtype(np.float32)) for name, shape in shapes.items()}


@pytest.mark.parametrize(("spelling", "flat"), list(itertools.product(SPELLINGS, (True, False))))
def test_a_vaes_attention_in_the_names_of_trainers(spelling: str, flat: bool) -> None:
    from diffusers import AutoencoderKL

    with torch.device("meta"):
        state = AutoencoderKL(**{**VAE, "block_out_channels": (32,) * 4}).state_dict()
    names = dict(zip(ATTENTION, SPELLINGS[spelling], strict=True))
    shapes = {}
    for name, tensor in ldm_vae(state).items():
        shape = tuple(tensor.shape)
        if ".attn_1." in name:
            head, _, rest = name.partition(".attn_1.")
            part, _, leaf = rest.rpartition(".")
            name = f"{head}.attn_1.{names[part]}.{leaf}"
            shape = shape[:2] if flat else shape
        shapes[name] = shape
    expected = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert {
        name: weight.shape for name, weight in bind(vae_tensors(described(shapes)), expected, "vae").items()
    } == expected


@pytest.mark.parametrize("family", [SD1, SD2])
def test_clips_image_encoder_is_left_out_and_told(family: str) -> None:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1)
    state: dict[str, Any] = CLIPTextModel(config).state_dict()
    part = FAMILIES[family].encoders[0]
    names = open_clip(state) if family == SD2 else state
    vision = {"visual.proj": (8, 8), "vision_model.post_layernorm.weight": (8,), "visual_projection.weight": (8, 8)}
    inner = {name: tuple(tensor.shape) for name, tensor in names.items()} | vision
    tensors = described({part.prefixes[0] + name: shape for name, shape in inner.items()})
    file = SingleFile(Path("a"), FAMILIES[family], None, Prediction("epsilon"))
    used = _add_text_encoder(file, part, tensors)
    assert tensors.keys() - used == {part.prefixes[0] + name for name in vision}
    parameters = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert bind(file.tensors["text_encoder"], parameters, "text_encoder").keys() == parameters.keys()
    assert with_prefix("", names).keys() <= inner.keys()


def test_a_folders_text_encoder_may_be_a_whole_clip() -> None:
    whole = described({"embeddings.weight": (4, 4), "vision_model.a": (1,), "visual_projection.weight": (1, 1)})
    assert bind(whole, {"embeddings.weight": (4, 4)}, "text_encoder").keys() == {"embeddings.weight"}
    with pytest.raises(BadModelError, match="no place for"):
        bind(
            described({"embeddings.weight": (4, 4), "audio_model.a": (1,)}),
            {"embeddings.weight": (4, 4)},
            "text_encoder",
        )


def test_a_unet_of_other_latents_than_its_vaes_is_refused() -> None:
    file = SingleFile(Path("a"), FAMILIES[SD1], None, Prediction("epsilon"))
    file.configs = {"unet": {"out_channels": 8}}
    _check_latents(file)  # nothing to compare with
    file.configs["vae"] = {"latent_channels": 4}
    with pytest.raises(BadModelError, match="makes 8 channels, and its VAE decodes latents of 4"):
        _check_latents(file)
