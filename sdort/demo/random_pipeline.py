"""Pipelines of the released shapes with random weights, made locally. Imports torch, diffusers, transformers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import diffusers
import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors.numpy import save_file

from sdort.checkpoints.clip_merges import CLIP_TOKENS
from sdort.checkpoints.clip_tokenizer import vocabulary_size
from sdort.checkpoints.pipeline_files import write_pipeline_files
from sdort.console import quiet_libraries
from sdort.demo.shapes import SHAPES, Shape
from sdort.demo.tokenizer import write_letters
from sdort.families.text_models import TEXT_MODELS

T = TypeVar("T")

WEIGHT_SEED = 15
_NOISE = 1_048_573
"""A prime: no width divides it, so that no two rows or channels of a tensor are alike where the noise repeats."""
_PREFIXES = ("text_model.", "text_projection.")


def make_random(name: str, folder: Path) -> None:
    """Write the pipeline of a shape as a diffusers directory into ``folder``; always the same bytes.

    Weights are uniform within 1 / sqrt(inputs of a value), as torch begins a layer, and cost as much as writing them:
    2 s where torch's own random numbers of SDXL take 4 minutes.

    Args:
        name: one of :data:`sdort.demo.shapes.SHAPES`.
    """
    shape = SHAPES[name]
    folder.mkdir(parents=True, exist_ok=True)
    with quiet_libraries(), torch.device("meta"):
        models = _models(shape)
    configs = {part: stored_config(model) for part, model in models.items()}
    scheduler = shape.scheduler or shape.family.scheduler
    write_pipeline_files(shape.family, shape.variant, configs, scheduler, folder, shape.merges)
    for each in shape.family.encoders:
        if each.plain:
            write_letters(folder / each.tokenizer, each.plain)
    noise = np.random.default_rng(WEIGHT_SEED).uniform(-1, 1, _NOISE).astype(np.float32)
    for part, model in models.items():
        text = part.startswith("text_encoder")
        tensors = dict(_weights(model, noise, np.dtype(shape.dtype)))
        path = folder / part / ("model.safetensors" if text else "diffusion_pytorch_model.safetensors")
        is_clip = isinstance(model, transformers.CLIPPreTrainedModel)
        save_file(published_names(tensors) if is_clip else tensors, path, metadata={"format": "pt"})


def published_names(tensors: Mapping[str, T]) -> dict[str, T]:
    """The parameters of a text encoder as all published checkpoints name them.

    transformers 5 reads both, but names those of a new model without the inner module, and transformers 4 then starts
    from random values with no more than a warning.
    """
    return {name if name.startswith(_PREFIXES) else f"text_model.{name}": each for name, each in tensors.items()}


def _models(shape: Shape) -> dict[str, torch.nn.Module]:
    """The components without storage."""
    models: dict[str, torch.nn.Module] = {}
    vocabulary = vocabulary_size(shape.merges) if shape.merges else CLIP_TOKENS
    net = shape.family.denoiser
    for part, config in zip(shape.family.encoders, shape.texts, strict=True):
        words = {**part.config, **config}
        if part.plain is None:
            end = {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1, "pad_token_id": vocabulary - 1}
            words = {"hidden_act": part.activation, **words, "vocab_size": vocabulary, **end}
        made = getattr(transformers, TEXT_MODELS[part.class_name].config_class)(**words)
        models[part.component] = getattr(transformers, part.class_name)(made)
    models[net.component] = getattr(diffusers, net.class_name)(**shape.denoiser)
    models["vae"] = diffusers.AutoencoderKL(**{**shape.family.vae, **shape.vae})
    return models


def stored_config(model: Any) -> dict[str, Any]:
    """The ``config.json`` of a model of diffusers or transformers."""
    if isinstance(model, transformers.PreTrainedModel):
        return {**model.config.to_diff_dict(), "architectures": [type(model).__name__]}
    return {"_class_name": type(model).__name__, **model.config}


def _weights(
    model: torch.nn.Module, noise: npt.NDArray[np.float32], dtype: np.dtype[Any]
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    begin = 0
    stored = model.state_dict().keys()
    for place, module in model.named_modules():
        # Tables of positions are buffers: noise as large as their sines are does as well.
        buffers = {name: each for name, each in module.named_buffers(recurse=False) if f"{place}.{name}" in stored}
        for name, parameter in {**dict(module.named_parameters(recurse=False)), **buffers}.items():
            values = np.empty(tuple(parameter.shape), dtype)
            bound = np.float32(1) if name in buffers else _bound(module, name)
            if bound is None:
                values.fill(name == "weight")
            else:
                _repeat(noise, bound, values.reshape(-1), begin)
                begin = (begin + values.size) % _NOISE
            yield f"{place}.{name}" if place else name, values


def _bound(module: torch.nn.Module, name: str) -> np.float32 | None:
    """The largest value of a parameter; None for those of a norm, which begin with 1 and 0."""
    weight: Any = module.weight if hasattr(module, "weight") else getattr(module, name)
    if weight.dim() < 2:
        return None
    inputs = weight.shape[1] if isinstance(module, torch.nn.Embedding) else math.prod(weight.shape[1:])
    return np.float32(inputs**-0.5)


def _repeat(noise: npt.NDArray[np.float32], factor: np.float32, values: npt.NDArray[Any], begin: int) -> None:
    """Fill ``values`` with ``factor`` times the noise from ``begin`` on, again and again."""
    done = 0
    while done < values.size:
        part = noise[begin : begin + values.size - done]
        values[done : done + part.size] = part * factor
        done, begin = done + part.size, 0
