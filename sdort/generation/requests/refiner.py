"""A second pipeline that takes the last steps of a schedule: SDXL's refiner, or another model of the same latents.

The latents go from one UNet to the other as they are, as in diffusers' ``denoising_end`` and ``denoising_start``
(https://arxiv.org/abs/2307.01952, section 2.5).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sdort.console import say
from sdort.errors import UsageError
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.samplers.sampler import Sampler


def open_refiner(path: Path, base: PipelineFolder) -> PipelineFolder:
    """A refiner's folder that goes on where ``base`` ends.

    Raises:
        BadModelError: there is no pipeline.
        UsageError: it is for other latents, or predicts something else.
    """
    folder = open_folder(path)
    pair = base.family.title, folder.family.title
    if base.family.aesthetic:
        raise UsageError(
            f"{base.path} is SDXL's refiner itself",
            hint=f"Give SDXL's base first: sdort run BASE --refiner {base.path}",
        )
    if base.family.name not in (folder.family.name, folder.family.refines):
        raise UsageError(
            f"--refiner {path} is of {pair[1]}, and {base.path} of {pair[0]}: their latents differ",
            hint="Take a refiner of the same family.",
        )
    for what, ours, theirs in _latents(base, folder):
        if ours != theirs:
            raise UsageError(
                f"--refiner {path} has another {what} than {base.path}: {theirs} and {ours}",
                hint="Latents go from one to the other as they are: take models with the same VAE and prediction.",
            )
    return folder


def _latents(base: PipelineFolder, refiner: PipelineFolder) -> list[tuple[str, Any, Any]]:
    """Properties that have to be the same in both."""
    keys = {
        "scaling factor": "scaling_factor",
        "mean of latents": "latents_mean",
        "deviation of latents": "latents_std",
    }
    schedules = [folder.scheduler for folder in (base, refiner)]
    kinds = [config.get("prediction_type", "epsilon") for config in schedules]
    return [
        ("number of latent channels", base.latent_channels, refiner.latent_channels),
        ("size of a latent in pixels", base.vae_factor, refiner.vae_factor),
        *((what, base.vae.get(key), refiner.vae.get(key)) for what, key in keys.items()),
        ("prediction type", *kinds),
    ]


def remark_on_base(base: Path, *, adapters: bool, controls: bool) -> None:
    """Say what acts on the base alone, whose architecture a refiner does not have."""
    if adapters:
        say(
            f"adapters change {base.name} alone, not its refiner; a refiner can have its own baked in: sdort export "
            "REFINER OUT --lora FILE"
        )
    if controls:
        say(
            f"control images and those of IP-Adapters steer {base.name} alone, not its refiner: a later "
            "--refiner-start leaves them more steps"
        )


def handover(sampler: Sampler, start: float) -> int:
    """The number of the first call of the UNet that the refiner takes.

    As in diffusers: all timesteps below the share ``1 - start`` of those trained. A sampler with two calls a step is
    divided between steps; its last one may have a single call.
    """
    cutoff = round(sampler.trained - start * sampler.trained)
    first = sum(float(time) >= cutoff for time in sampler.timesteps)
    return first if first == len(sampler.timesteps) else first - first % sampler.order
