"""The small files of a diffusers folder that a single-file checkpoint lacks: index, configs, scheduler, tokenizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sdort.checkpoints.clip_merges import read_clip_merges
from sdort.checkpoints.clip_tokenizer import write_clip_tokenizer
from sdort.checkpoints.configs import INDEX, write_json
from sdort.families.family import Config, Family


def write_pipeline_files(
    family: Family,
    variant: str | None,
    configs: Mapping[str, Config],
    scheduler: Config,
    folder: Path,
    merges: Sequence[str] = (),
) -> None:
    """Write them as the family's published folder has them, but for tokenizers of plain text.

    Args:
        family: of the pipeline.
        variant: of its denoiser; None for the usual one.
        configs: component -> its ``config.json``; a pipeline may lack its VAE and text encoders.
        scheduler: ``scheduler_config.json``.
        folder: an empty one.
        merges: of the tokenizers; CLIP's by default.

    Raises:
        OutputError: one cannot be written.
    """
    write_json(folder / INDEX, _index(family, variant, configs, scheduler))
    for name, config in configs.items():
        write_config(folder / name, config)
    (folder / "scheduler").mkdir()
    write_json(folder / "scheduler" / "scheduler_config.json", scheduler)
    merges = merges or read_clip_merges()
    for part in family.encoders:
        if part.component in configs and part.plain is None:
            write_clip_tokenizer(folder / part.tokenizer, merges, part.pad)


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write a component's ``config.json`` into a new folder."""
    folder.mkdir()
    write_json(folder / "config.json", config)


def _index(family: Family, variant: str | None, configs: Mapping[str, Config], scheduler: Config) -> dict[str, Any]:
    net = family.denoiser
    parts = {net.component: [net.library, net.class_name], "scheduler": ["diffusers", scheduler["_class_name"]]}
    if "vae" in configs:
        parts["vae"] = ["diffusers", "AutoencoderKL"]
    for part in family.encoders:
        if part.component in configs:
            parts[part.component] = ["transformers", part.class_name]
            parts[part.tokenizer] = ["transformers", part.plain.tokenizer if part.plain else "CLIPTokenizer"]
    return {"_class_name": family.pipelines[variant], **family.index, **parts}
