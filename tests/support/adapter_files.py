"""Adapters of random values for a checkpoint, and the checkpoint with one in its weights, by the formula of the paper.

https://arxiv.org/abs/2106.09685: ``W + scale * alpha / rank * up @ down``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

FOLDERS = {"unet": "lora_unet_", "text_encoder": "lora_te1_", "text_encoder_2": "lora_te2_"}
RANK, ALPHA = 3, 2.0


def weight_files(checkpoint: Path) -> Iterator[tuple[str, Path]]:
    """The beginning of kohya's keys, and the weights, of each component that adapters change."""
    for folder, prefix in FOLDERS.items():
        for path in (checkpoint / folder).glob("*.safetensors"):
            yield prefix, path


def key_of(prefix: str, parameter: str) -> str:
    """kohya's name of a parameter's module."""
    module = parameter.removesuffix(".weight").removeprefix("text_model.")
    return prefix + ("" if prefix == "lora_unet_" else "text_model_") + module.replace(".", "_")


def make_lora(checkpoint: Path, path: Path, seed: int, pattern: str = "", strength: float = 0.3) -> Path:
    """Write a LoRA for all matrices and convolutions, but for embeddings, whose names ``pattern`` is found in."""
    random = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for prefix, file in weight_files(checkpoint):
        for name, values in load_file(file).items():
            if values.ndim < 2 or "embeddings" in name or not re.search(pattern, name):
                continue
            key, inputs = key_of(prefix, name), values[0].size
            up = random.standard_normal((len(values), RANK, *[1] * (values.ndim - 2))) * strength / np.sqrt(inputs)
            tensors[f"{key}.lora_down.weight"] = random.standard_normal((RANK, *values.shape[1:]), np.float32)
            tensors[f"{key}.lora_up.weight"] = up.astype(np.float32)
            tensors[f"{key}.alpha"] = np.array(ALPHA, np.float32)
    save_file(tensors, path)
    return path


def bake(checkpoint: Path, lora: Path, scale: float, out: Path) -> Path:
    """A checkpoint in ``out`` with a LoRA of :func:`make_lora` in its weights."""
    shutil.copytree(checkpoint, out)
    tensors, left = load_file(lora), set(load_file(lora))
    for prefix, file in weight_files(out):
        weights = load_file(file)
        for name, values in weights.items():
            key = key_of(prefix, name)
            names = [f"{key}.lora_up.weight", f"{key}.lora_down.weight", f"{key}.alpha"]
            if names[0] in tensors:
                up, down, alpha = (tensors[name] for name in names)
                product = up.reshape(len(up), -1) @ down.reshape(RANK, -1) * np.float32(alpha / RANK)
                weights[name] = values + product.reshape(values.shape) * np.float32(scale)
                left -= set(names)
        save_file(weights, file, metadata={"format": "pt"})
    assert not left, f"{len(left)} tensors are for nothing, such as {min(left)}"
    return out
