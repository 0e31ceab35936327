"""A VAE alone: a folder as diffusers saves it, or a file in any layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.checkpoints.config_schemas import component_schema
from sdort.checkpoints.configs import INDEX, optional_config, read_config
from sdort.checkpoints.file_kind import recognise_file
from sdort.checkpoints.pipeline_files import write_config
from sdort.checkpoints.single_file import read_vae_file
from sdort.checkpoints.weight_names import Kind
from sdort.errors import BadModelError
from sdort.exporter.checkpoint import read_checkpoint, sole_variant
from sdort.exporter.component_configs import DOWNLOAD_AGAIN
from sdort.exporter.signatures import VAES
from sdort.families.component_names import DECODER
from sdort.files.model_folder import check_model_folder
from sdort.graph.weights import Weight

_SCALES = ("scaling_factor", "shift_factor", "latents_mean", "latents_std", "force_upcast", "sample_size")
"""Keys of an ``AutoencoderKL``'s config that its tensors say nothing about."""


@dataclass(frozen=True)
class VaePart:
    """A VAE that stands alone or takes the place of a pipeline's own."""

    class_name: str
    folder: Path
    """The folder of its ``config.json``."""
    config: Mapping[str, Any]
    tensors: Mapping[str, Weight]


def holds_vae(folder: Path) -> bool:
    """Whether a folder is that of a VAE, without a pipeline around it.

    Raises:
        BadModelError: its ``config.json`` is broken.
    """
    if (folder / INDEX).is_file():
        return False
    return optional_config(folder / "config.json").get("_class_name") in VAES


def read_vae(path: Path, folder: Path, usual: Mapping[str, Any]) -> VaePart:
    """The VAE at a path.

    Args:
        path: a file, a VAE's folder, or a pipeline's, whose VAE is taken.
        folder: where the config of a file is written.
        usual: what scales the latents, where the file cannot say.

    Raises:
        BadModelError: there is no VAE, or it is broken.
    """
    if path.is_dir():
        return _read_folder(path / "vae" if (path / INDEX).is_file() else path)
    found = recognise_file(path)
    if found.kind not in (Kind.VAE, Kind.CHECKPOINT):
        raise BadModelError(f"{path} is {found.what}, not a VAE", hint=found.advice)
    config, tensors = read_vae_file(path)
    if config["_class_name"] == "AutoencoderKL":
        config = {**config, **{key: usual[key] for key in _SCALES if key in usual}}
    write_config(folder / "vae", config)
    return VaePart(config["_class_name"], folder / "vae", config, tensors)


def _read_folder(path: Path) -> VaePart:
    check_model_folder(path)
    config = read_config(path / "config.json", "the config", DOWNLOAD_AGAIN, schema=component_schema("vae"))
    name = config.get("_class_name")
    if name not in VAES:
        raise BadModelError(f"{path} holds {name or 'no model of diffusers'}, not a VAE ({' or '.join(VAES)})")
    tensors = read_checkpoint(path, DECODER, sole_variant(path), allow_pickle=False)
    return VaePart(name, path, config, tensors)
