"""The small files of a diffusers folder that a single-file checkpoint lacks: index, configs, scheduler, tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdort.pipelines.checkpoints.clip_merges import read_clip_merges
from sdort.pipelines.checkpoints.single_file import SingleFile
from sdort.pipelines.clip_tokenizer import write_clip_tokenizer
from sdort.pipelines.configs import INDEX, write_json


def write_pipeline_files(file: SingleFile, folder: Path) -> None:
    """Write them as the family's published folder has them.

    Args:
        folder: an empty one.

    Raises:
        OutputError: one cannot be written.
    """
    write_json(folder / INDEX, _index(file))
    for name, config in file.configs.items():
        write_config(folder / name, config)
    (folder / "scheduler").mkdir()
    write_json(folder / "scheduler" / "scheduler_config.json", file.scheduler)
    merges = read_clip_merges()
    for part in file.family.encoders:
        if part.component in file.tensors:
            write_clip_tokenizer(folder / part.tokenizer, merges, part.pad)


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write a component's ``config.json`` into a new folder."""
    folder.mkdir()
    write_json(folder / "config.json", config)


def _index(file: SingleFile) -> dict[str, Any]:
    family, denoiser = file.family, file.family.denoiser
    parts = {
        denoiser.component: [denoiser.library, denoiser.class_name],
        "scheduler": ["diffusers", file.scheduler["_class_name"]],
    }
    if "vae" in file.tensors:
        parts["vae"] = ["diffusers", "AutoencoderKL"]
    for part in family.encoders:
        if part.component in file.tensors:
            parts[part.component] = ["transformers", part.class_name]
            parts[part.tokenizer] = ["transformers", "CLIPTokenizer"]
    return {"_class_name": family.pipelines[file.variant], **family.index, **parts}
