"""The tasks of diffusers' pipelines, and which pipeline does them with a family's components."""

from __future__ import annotations

from typing import Any

from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import ENCODER
from sdort.pipelines.folder import PipelineFolder

TASKS = {
    "text-to-image": "",
    "image-to-image": "Img2Img",
    "inpainting": "Inpaint",
    "controlnet": "ControlNet",
    "controlnet-image-to-image": "ControlNetImg2Img",
    "controlnet-inpainting": "ControlNetInpaint",
}
"""Task -> the part of the names of diffusers' classes that says so."""
_INPAINTING = ("inpainting", "controlnet-inpainting")
_FROM_TEXT = ("text-to-image", "controlnet")
"""Tasks that need no encoder of images."""
_REFINER = ("image-to-image", "inpainting")


def check_task(task: str) -> None:
    """Refuse what is no task.

    Raises:
        UsageError: there is none by this name.
    """
    if task not in TASKS:
        raise UsageError(f"there is no task {task!r}", hint=f"There are: {', '.join(TASKS)}.")


def pipeline_class(folder: PipelineFolder, task: str) -> Any:
    """Diffusers' class that does a task with the components of a folder.

    Raises:
        BadModelError: the pipeline is not for this task.
    """
    _check_fit(folder, task)
    import diffusers

    family = "StableDiffusionXL" if folder.family.sizes else "StableDiffusion"
    return getattr(diffusers, f"{family}{TASKS[task]}Pipeline")


def _check_fit(folder: PipelineFolder, task: str) -> None:
    if folder.family.aesthetic and task not in _REFINER:
        raise BadModelError(
            f"{folder.path} is a refiner, which does no {task}", hint=f"It does {' and '.join(_REFINER)}."
        )
    if folder.sample_channels != folder.latent_channels and task not in _INPAINTING:
        raise BadModelError(
            f"{folder.path} has a UNet of {folder.sample_channels} channels, which does no {task}",
            component=folder.denoiser,
            hint=f"It is for {' and '.join(_INPAINTING)}.",
        )
    if task not in _FROM_TEXT and ENCODER not in folder.models:
        raise BadModelError(
            f"{folder.path} has no {ENCODER}, which {task} needs",
            hint="Export all of the checkpoint:\n    sdort export MODEL OUT",
        )
