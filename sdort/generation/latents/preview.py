"""Previews: what the image will be, by the prediction that each step of denoising makes.

A UNet is trained on ``sqrt(a) image + sqrt(1 - a) noise``, where ``a`` is the schedule's ``alphas_cumprod`` at its
timestep, and says the noise, the image, or v (https://arxiv.org/abs/2202.00512, appendix D). So the image follows from
its input and its output, whatever the scheduler makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sdort.checkpoints.configs import read_component_config
from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import DECODER
from sdort.families.family import Latents
from sdort.generation.pictures.images import to_image
from sdort.graph.signature import Array, static_size
from sdort.onnx_io.components import find_components
from sdort.pipelines.folder import PipelineFolder
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session, open_session
from sdort.samplers.sampler import Sampler

PREVIEW_VAE = "preview_vae"
"""The folder of a pipeline with its own small VAE for previews."""

Decode = Callable[[Array], Array]
"""Scaled latents [images, channels, height, width] -> images [images, 3, height, width] in [-1, 1]."""


@dataclass(frozen=True)
class Preview:
    """Previews of the images of a batch."""

    step: int
    """Calls of the UNet until now."""
    steps: int
    """All calls of the batch."""
    seeds: list[int]
    """Of the images."""
    images: list[Array]
    """uint8 [height, width, 3]: of the latents' size, or of the images' with a preview VAE."""


OnPreview = Callable[[Preview], None]


@dataclass(frozen=True)
class Previewer:
    """Makes a preview every few calls of the UNet."""

    every: int
    decode: Decode
    show: OnPreview


class BatchPreviews:
    """The previews of one batch.

    Args:
        sampler: for what the UNet predicts and how much noise there is.
        timesteps: of the calls.
        guidance: the weight of each copy's output.
    """

    def __init__(
        self, previewer: Previewer, sampler: Sampler, timesteps: Array, guidance: Sequence[float], seeds: list[int]
    ) -> None:
        self.previewer = previewer
        self.timesteps = np.asarray(timesteps, np.float64)
        self.guidance = np.asarray(guidance, np.float32)
        self.seeds = seeds
        self._level_at = sampler.level_at
        self._prediction = sampler.prediction

    def is_due(self, call: int) -> bool:
        """Whether there is a preview after a call, counted from 0; after the last comes the image itself."""
        return (call + 1) % self.previewer.every == 0 and call + 1 < len(self.timesteps)

    def show(self, call: int, sample: Array, output: Array) -> None:
        """Show the preview of a call.

        Args:
            sample: what the UNet got, [copies * images, channels, height, width].
            output: what it gave.
        """
        images, channels = len(self.seeds), output.shape[1]
        copies = output.astype(np.float32).reshape(len(self.guidance), images, *output.shape[1:])
        guided = np.tensordot(self.guidance, copies, 1)
        latents = self._predicted(call, sample[:images, :channels].astype(np.float32), guided)
        decoded = zip(self.previewer.decode(latents), self.seeds, strict=True)
        pixels = [to_image(image, seed).pixels for image, seed in decoded]
        self.previewer.show(Preview(call + 1, len(self.timesteps), self.seeds, pixels))

    def _predicted(self, call: int, sample: Array, output: Array) -> Array:
        level = self._level_at(float(self.timesteps[call]))
        if self._prediction == "epsilon":
            # There may be no signal at the first timestep.
            return np.asarray((sample - level.noise * output) / max(level.signal, 1e-4))
        return np.asarray(level.image(self._prediction, output, sample))


def make_decode(
    folder: PipelineFolder, channels: int, vae: Path | None, provider: Provider, options: RuntimeOptions
) -> Decode:
    """The decoder of previews: a small VAE, or three weighted sums of the latents' channels.

    Args:
        channels: of the latents.
        vae: an exported VAE; None for the pipeline's own :data:`PREVIEW_VAE`, and without one for the sums.

    Raises:
        BadModelError: the VAE does not load.
        UsageError: it is for other latents, or there are no sums for this pipeline's.
    """
    own = folder.path / PREVIEW_VAE
    place = vae or (own if own.is_dir() else None)
    if place is not None:
        return _vae_decode(place, channels, provider, options)
    sums = folder.family.latents
    if channels != len(sums.preview_factors):
        raise UsageError(
            f"there are no previews of latents with {channels} channels",
            hint="Give a small VAE that was exported for them: --preview-vae DIR.",
        )
    factors, bias = _linear(sums)
    return lambda latents: np.einsum("nchw,cr->nrhw", latents, factors) + bias[:, None, None]


def _vae_decode(place: Path, channels: int, provider: Provider, options: RuntimeOptions) -> Decode:
    models = find_components(place)
    if DECODER not in models:
        raise BadModelError(
            f"{place} has no {DECODER}", hint="Export a small VAE, such as TAESD: sdort export VAE OUT."
        )
    session = open_session(models[DECODER], DECODER, provider, options)
    [(name, spec)] = list(session.inputs.items())[:1]
    taken = static_size(spec.shape, 1)
    if taken not in (None, channels):
        raise UsageError(
            f"--preview-vae {place} decodes latents of {taken} channels, the UNet has {channels}",
            hint="Take one for the pipeline's family: TAESD for Stable Diffusion, TAESDXL for SDXL.",
        )
    config = read_component_config(models[DECODER].parent / "config.json", DECODER)
    return _session_decode(session, name, float(config.get("scaling_factor", 1.0)))


def _session_decode(session: Session, name: str, scaling_factor: float) -> Decode:
    def decode(latents: Array) -> Array:
        return session.run({name: latents / np.float32(scaling_factor)})[session.outputs[0].name]

    return decode


def _linear(latents: Latents) -> tuple[Array, Array]:
    """Red, green and blue of each channel of scaled latents [channels, 3], and what is added [3]."""
    return np.asarray(latents.preview_factors, np.float32), np.asarray(latents.preview_bias, np.float32)
