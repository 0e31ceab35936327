"""A pipeline on disk: its components, configs and manifest."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sdort.checkpoints.config_schemas import PIPELINE_INDEX, SCHEDULER, latent_rules
from sdort.checkpoints.configs import INDEX, optional_config, read_component_config, read_config, read_manifest
from sdort.errors import BadModelError, SdortError
from sdort.errors.plain_text import one_line
from sdort.families.component_names import DECODER, ENCODER, SAFETY_CHECKER
from sdort.families.family import Family
from sdort.families.known_families import TEXT_ENCODERS, family_of
from sdort.families.safety_signature import SafetyKind, safety_kind
from sdort.families.vae_levels import decoder_widths, vae_factor
from sdort.graph.signature import static_size
from sdort.machine.phases import phase
from sdort.onnx_io.component_file import ComponentFile, read_component
from sdort.onnx_io.components import find_components
from sdort.onnx_io.derived import Derived
from sdort.onnx_io.model_hash import hash_model
from sdort.options.number_ranges import HEIGHT, WIDTH
from sdort.pipelines.explain_path import HUB_ID, check_graphs, expect_onnx

_LONGEST_NAME = 200
"""Characters of a checkpoint's name; file systems allow 255 bytes."""


@dataclass(frozen=True)
class PipelineFolder:
    """The components of an exported or optimized pipeline by name, and its configs and model files, each of which is
    read once."""

    path: Path
    models: dict[str, Path]
    _configs: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _files: dict[str, ComponentFile] = field(default_factory=dict, init=False, repr=False, compare=False)
    derived: Derived = field(default_factory=Derived, init=False, repr=False, compare=False)
    """Values that follow from its files alone."""

    def file(self, component: str) -> ComponentFile:
        """A component's model file, read once.

        Raises:
            BadModelError: it cannot be read, or is no ONNX model.
        """
        if component not in self._files:
            self._files[component] = read_component(self.models[component], component)
        return self._files[component]

    def config(self, component: str) -> dict[str, Any]:
        """A component's ``config.json``, empty when there is none."""
        if component not in self._configs:
            self._configs[component] = read_component_config(self.path / component / "config.json", component)
        return self._configs[component]

    @cached_property
    def scheduler(self) -> dict[str, Any]:
        """The config of the pipeline's own scheduler.

        Raises:
            BadModelError: as :func:`read_scheduler_config`.
        """
        return {**self.family.schedule, **read_scheduler_config(self.path / "scheduler")}

    @cached_property
    def family(self) -> Family:
        """The family of the pipeline."""
        index = optional_config(self.path / INDEX, PIPELINE_INDEX)
        named = [name for name in TEXT_ENCODERS if (index.get(name) or [None])[0]]
        family = family_of({*self.models, *named}, lambda name: self.config(name).get("_class_name"))
        return family.told_by(lambda: self.config(family.denoiser.component))

    @property
    def denoiser(self) -> str:
        """The name of the component that takes noise out of latents."""
        return self.family.denoiser.component

    @property
    def needed(self) -> tuple[str, ...]:
        """The components that text to image runs, in their order."""
        return self.family.needed

    def tokens(self, component: str) -> int:
        """As :meth:`sdort.families.family.Family.tokens`."""
        return self.family.tokens(component)

    @property
    def compared(self) -> list[str]:
        """The components whose outputs are numbers, to be compared and timed by themselves: not a safety checker that
        gives its decision alone."""
        return [name for name in self.models if name != SAFETY_CHECKER or self._gives_scores()]

    def _gives_scores(self) -> bool:
        signature = self.file(SAFETY_CHECKER).signature
        return safety_kind(signature.inputs, signature.outputs) is SafetyKind.SCORES

    @property
    def generates(self) -> bool:
        """Whether all components and tokenizers for text to image are there; a refiner makes no image of text alone."""
        return self.is_complete and not self.family.aesthetic

    @property
    def is_complete(self) -> bool:
        """Whether all components and tokenizers that generating needs are there."""
        tokenizers = [self.path / encoder.tokenizer for encoder in self.family.encoders]
        return set(self.needed) <= self.models.keys() and all(folder.is_dir() for folder in tokenizers)

    @cached_property
    def empty_is_zero(self) -> bool:
        """Whether diffusers conditions the UNet as zeros by an empty negative prompt, not as the encoders' outputs for
        it."""
        index = optional_config(self.path / INDEX, PIPELINE_INDEX)
        usual = self.family.empty_is_zero
        return bool(self.family.sizes) and bool(index.get("force_zeros_for_empty_prompt", usual))

    @property
    def default_size(self) -> tuple[int, int]:
        """Height and width in pixels that the UNet was made for.

        Raises:
            BadModelError: larger than sdort makes.
        """
        name = self.denoiser
        side = self.config(name).get("sample_size") or self.family.side // self.vae_factor
        return pixels_of(side, self.vae_factor, name)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """``sdort.json``, empty when the pipeline comes from elsewhere."""
        return read_manifest(self.path)

    @property
    def checkpoint(self) -> str:
        """The name of the checkpoint that it was made of; its folder's where nothing tells."""
        made = (self.manifest.get("optimized") or {}).get("checkpoint")
        source = str(made or self.manifest.get("source") or "")
        # A hub id has a slash, and a folder's name may have a dot.
        name = source.removesuffix(".safetensors").strip()
        return one_line(name)[:_LONGEST_NAME] or self.path.resolve().name

    @property
    def given(self) -> str:
        """The name that a person gives it: its path; of one in the cache the checkpoint's, or its id on the hub."""
        made = self.manifest.get("optimized") or {}
        if not made.get("checkpoint"):
            return str(self.path)
        return self.checkpoint if HUB_ID.fullmatch(self.checkpoint) else str(made["from"])

    @property
    def checkpoint_sha256(self) -> str | None:
        """The SHA-256 of the single file that it was made of, by which model sites know it; None if it is unknown."""
        digest = (self.manifest.get("optimized") or {}).get("sha256")
        return digest if digest and re.fullmatch("[0-9a-f]{64}", digest) else None

    @cached_property
    def vae(self) -> dict[str, Any]:
        """The autoencoder's config, as optimum or diffusers place it, or what it is in that family."""
        latents = self.family.latents
        usual = {"scaling_factor": latents.scaling_factor} | ({"shift_factor": latents.shift} if latents.shift else {})
        config = usual | (self.config(DECODER) or self.config("vae"))
        config["block_out_channels"] = decoder_widths(config)
        if problem := next(latent_rules(config), None):
            raise BadModelError(f"the autoencoder's config contradicts itself: {problem}", component=DECODER)
        return config

    @property
    def vae_factor(self) -> int:
        """Pixels a latent along each side."""
        return vae_factor(self.vae)

    @property
    def side_step(self) -> int:
        """Pixels of which heights and widths of images are multiples."""
        return self.vae_factor * self.family.denoiser.patch

    @property
    def largest_side(self) -> int | None:
        """Pixels of a side that the denoiser has positions for; None where it has any number."""
        largest = self.family.denoiser.largest
        tokens = largest(self.config(self.denoiser)) if largest else None
        return tokens and tokens * self.side_step

    @property
    def latent_channels(self) -> int:
        """Channels of the latents that the autoencoder decodes."""
        spec = next(iter(self.file(DECODER).signature.inputs.values()))
        return static_size(spec.shape, 1) or int(self.vae.get("latent_channels", self.family.latents.channels))

    @property
    def draws_latents(self) -> bool:
        """Whether the encoder gives a distribution, of which an image's latents are drawn; a tiny one gives latents."""
        output = next(iter(self.file(ENCODER).signature.outputs.values()))
        return static_size(output.shape, 1) != self.latent_channels

    @property
    def sample_channels(self) -> int:
        """Channels of the denoiser's latents: those of the decoder's, and more in a UNet for inpainting."""
        denoiser = self.family.denoiser
        spec = self.file(denoiser.component).signature.inputs[denoiser.roles.sample]
        config = self.config(denoiser.component)
        given = static_size(spec.shape, 1)
        return given or (denoiser.channels_of(config) if denoiser.channels[0] in config else self.latent_channels)

    def scaled(self, latents: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Latents [images, channels, height, width] of the encoder as the UNet takes them: inverse to :meth:`unscaled`.

        Raises:
            BadModelError: the autoencoder's config is for another number of channels.
        """
        scale, deviation, mean = self._latent_scale(latents.shape[1])
        return (latents - mean) * scale / deviation

    def unscaled(self, latents: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Denoised latents [images, channels, height, width] as the decoder takes them.

        Raises:
            BadModelError: the autoencoder's config is for another number of channels.
        """
        scale, deviation, mean = self._latent_scale(latents.shape[1])
        return latents * deviation / scale + mean

    def _latent_scale(self, channels: int) -> tuple[np.float32, npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The factor of all latents, and the standard deviation and the mean of each channel."""
        # Of each channel, in some of SDXL's descendants, or of all. A config may leave out latent_channels.
        if problem := next(latent_rules({**self.vae, "latent_channels": channels}), None):
            raise BadModelError(f"the autoencoder's config does not fit the latents: {problem}", component=DECODER)
        deviation = np.asarray(self.vae.get("latents_std") or 1.0, np.float32)
        mean = np.asarray(self.vae.get("latents_mean") or self.vae.get("shift_factor") or 0.0, np.float32)
        return np.float32(self.vae["scaling_factor"]), deviation.reshape(-1, 1, 1), mean.reshape(-1, 1, 1)

    @property
    def scheduler_class(self) -> str:
        """Diffusers' class of the pipeline's own scheduler."""
        return str(self.scheduler.get("_class_name"))

    @cached_property
    def model_hash(self) -> str:
        """A short hash over all components; see :func:`hash_model`."""
        digest = hashlib.sha256()
        with phase("hashes of models"):
            for name, path in sorted(self.models.items()):
                digest.update(f"{name}:{hash_model(path)}".encode())
        return digest.hexdigest()[:16]


def pixels_of(sample_size: int | list[int], factor: int, component: str) -> tuple[int, int]:
    """Height and width in pixels of a UNet's ``sample_size``.

    Args:
        sample_size: latents of a side, or along height and width.
        factor: pixels a latent along each side.
        component: the UNet's name, for messages.

    Raises:
        BadModelError: larger than sdort makes.
    """
    height, width = (side * factor for side in (sample_size if isinstance(sample_size, list) else [sample_size] * 2))
    problem = HEIGHT.problem(height) or WIDTH.problem(width)
    if problem:
        raise BadModelError(
            f"its config says that it makes images of {width}x{height} pixels: {problem}",
            component=component,
            hint="Correct sample_size in its config.json: it is in latents.",
        )
    return height, width


def open_folder(path: Path, needed: tuple[str, ...] | None = None) -> PipelineFolder:
    """Find a pipeline's components.

    Args:
        needed: components that have to be there; None for those of text to image.

    Raises:
        BadModelError: there is no pipeline, or it lacks a component of ``needed``.
    """
    if path.is_dir():
        check_graphs(path)
    try:
        folder = PipelineFolder(path, find_components(path))
    except SdortError:
        expect_onnx(path)  # says what it is instead, where that is known
        raise
    missing = [name for name in (folder.needed if needed is None else needed) if name not in folder.models]
    if missing and (above := path.absolute().parent / INDEX).is_file():
        raise BadModelError(
            f"{path} is a part of the pipeline {above.parent}", hint=f"Give the whole pipeline:\n    {above.parent}"
        )
    if missing:
        whole = "Text to image wants a whole pipeline: sdort export MODEL OUT, without --component."
        parts = "Export the checkpoint that has it:\n    sdort export MODEL OUT"
        raise BadModelError(f"{path} has no {', '.join(missing)}", hint=whole if needed is None else parts)
    return folder


def read_scheduler_config(folder: Path) -> dict[str, Any]:
    """The config in a pipeline's ``scheduler`` folder.

    Raises:
        BadModelError: as :func:`read_config`.
    """
    config = read_config(folder / "scheduler_config.json", schema=SCHEDULER, infinity=True)
    betas, timesteps = config.get("trained_betas"), config.get("num_train_timesteps", 1000)
    if betas is not None and len(betas) != timesteps:
        raise BadModelError(
            f"{folder / 'scheduler_config.json'} has {len(betas)} trained_betas for {timesteps} num_train_timesteps",
            hint="Export the pipeline again.",
        )
    return config


def image_channels(path: Path, component: str) -> int | None:
    """The channels of a component's image or latent, by the config beside its model; None where there is none."""
    key = "latent_channels" if component == DECODER else "in_channels"
    channels: int | None = read_component_config(path.parent / "config.json", component).get(key)
    return channels
