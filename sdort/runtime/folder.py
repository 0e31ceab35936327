"""A pipeline on disk: its components, configs and manifest, as text to image needs them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sdort.errors import BadModelError
from sdort.runtime.schedulers import read_config

MANIFEST = "sdort.json"
DECODER = "vae_decoder"
NEEDED = ("text_encoder", "unet", DECODER)
# What AutoencoderKL of Stable Diffusion 1.x has; old conversion scripts write no config beside the ONNX files.
_SD1_VAE: dict[str, Any] = {"scaling_factor": 0.18215, "block_out_channels": [128, 256, 512, 512]}

_SAMPLES, _SAMPLE_BYTES = 64, 64 << 10


@dataclass(frozen=True)
class PipelineFolder:
    """Where the components of an exported or optimized pipeline lie, and what its configs say."""

    path: Path
    models: dict[str, Path]

    def config(self, component: str) -> dict[str, Any]:
        """A component's ``config.json``, empty when there is none."""
        path = self.path / component / "config.json"
        return read_config(path) if path.is_file() else {}

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """``sdort.json``, empty when the pipeline comes from elsewhere."""
        path = self.path / MANIFEST
        return read_config(path) if path.is_file() else {}

    @cached_property
    def vae(self) -> dict[str, Any]:
        """The autoencoder's config, as optimum or diffusers place it, or that of Stable Diffusion 1.x."""
        return _SD1_VAE | (self.config(DECODER) or self.config("vae"))

    @property
    def vae_factor(self) -> int:
        """Pixels a latent along each side."""
        return 1 << (len(self.vae["block_out_channels"]) - 1)

    @property
    def scheduler_class(self) -> str:
        """Diffusers' class of the pipeline's own scheduler."""
        return str(read_config(self.path / "scheduler" / "scheduler_config.json").get("_class_name"))

    @cached_property
    def model_hash(self) -> str:
        """A short hash over all components; see :func:`hash_model`."""
        digest = hashlib.sha256()
        for name, path in sorted(self.models.items()):
            digest.update(f"{name}:{hash_model(path)}".encode())
        return digest.hexdigest()[:16]


def open_folder(path: Path, needed: tuple[str, ...] = NEEDED) -> PipelineFolder:
    """Find a pipeline's components.

    Raises:
        BadModelError: there is no pipeline, or it lacks a component of ``needed``.
    """
    from sdort.loader import find_components

    models = find_components(path)
    missing = [name for name in needed if name not in models]
    if missing:
        raise BadModelError(
            f"{path} has no {', '.join(missing)}",
            hint="Text to image wants a whole pipeline: sdort export MODEL OUT, without --component.",
        )
    return PipelineFolder(path, models)


def hash_model(path: Path) -> str:
    """:func:`hash_files` over an ``.onnx`` file and the files beside it whose names start alike: its external data."""
    return hash_files(sorted(each for each in path.parent.iterdir() if each.name.startswith(path.stem)))


def hash_files(paths: Iterable[Path]) -> str:
    """A hash that tells one model from another in milliseconds.

    Files up to 4 MiB are covered whole; of larger ones the size and 64 blocks of 64 KiB spread over them, so that an
    edit between the blocks goes unseen.
    """
    digest = hashlib.sha256()
    for path in paths:
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        with open(path, "rb") as stream:
            for offset in range(0, size, max(_SAMPLE_BYTES, size // _SAMPLES)):
                stream.seek(offset)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
