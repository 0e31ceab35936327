"""Adapters of random values for a checkpoint, and the checkpoint with one in its weights, by the formula of the paper.

https://arxiv.org/abs/2106.09685: ``W + scale * alpha / rank * up @ down``.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from sdort.graph.signature import Array

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


def adaptable(checkpoint: Path) -> Iterator[tuple[str, str, Array]]:
    """Each matrix and convolution of a checkpoint but embeddings: its name, kohya's key, and its values."""
    for prefix, file in weight_files(checkpoint):
        for name, values in load_file(file).items():
            if values.ndim > 1 and "embeddings" not in name:
                yield name, key_of(prefix, name), values


def make_lora(checkpoint: Path, path: Path, seed: int, pattern: str = "", strength: float = 0.3) -> Path:
    """Write a LoRA for the weights whose names ``pattern`` is found in."""
    random = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for name, key, values in adaptable(checkpoint):
        if re.search(pattern, name):
            tensors |= {f"{key}{end}": part for end, part in _low_rank(random, values, strength).items()}
    save_file(tensors, path)
    return path


def make_mixed(checkpoint: Path, path: Path, seed: int) -> Path:
    """Write an adapter that has LoRA, LoHa, LoKr and DoRA in turns."""
    random = np.random.default_rng(seed)
    kinds = itertools.cycle((_low_rank, _hadamard, _kronecker, _decomposed))
    tensors: dict[str, Any] = {}
    for _, key, values in adaptable(checkpoint):
        tensors |= {f"{key}{end}": part for end, part in next(kinds)(random, values).items()}
    save_file(tensors, path)
    return path


def _low_rank(random: np.random.Generator, values: Array, strength: float = 0.3) -> dict[str, Array]:
    up = random.standard_normal((len(values), RANK, *[1] * (values.ndim - 2))) * strength / np.sqrt(values[0].size)
    down = random.standard_normal((RANK, *values.shape[1:]), np.float32)
    return {
        ".lora_down.weight": down,
        ".lora_up.weight": up.astype(np.float32),
        ".alpha": np.array(ALPHA, np.float32),
    }


def _hadamard(random: np.random.Generator, values: Array) -> dict[str, Array]:
    outputs, inputs = len(values), values[0].size
    shapes = {"w1_a": (outputs, RANK), "w1_b": (RANK, inputs), "w2_a": (outputs, RANK), "w2_b": (RANK, inputs)}
    halves = {f".hada_{end}": random.standard_normal(shape, np.float32) * 0.2 for end, shape in shapes.items()}
    return {**halves, ".alpha": np.array(ALPHA, np.float32)}


def _kronecker(random: np.random.Generator, values: Array) -> dict[str, Array]:
    outer = [2 if size % 2 == 0 else 1 for size in values.shape[:2]]
    inner = [size // part for size, part in zip(values.shape[:2], outer, strict=True)]
    return {
        ".lokr_w1": random.standard_normal(outer, np.float32) * 0.2,
        ".lokr_w2": random.standard_normal((*inner, *values.shape[2:]), np.float32) * 0.2,
    }


def _decomposed(random: np.random.Generator, values: Array) -> dict[str, Array]:
    norms = np.linalg.norm(values.reshape(len(values), -1), axis=1) * random.uniform(0.8, 1, len(values))
    scale = norms.reshape(-1, *[1] * (values.ndim - 1)).astype(np.float32)
    return {**_low_rank(random, values), ".dora_scale": scale}


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
