"""Steps and guidance that a pipeline was made for, where its configs tell: those of distilled models are few."""

from __future__ import annotations

from dataclasses import dataclass

from sdort.pipelines.folder import PipelineFolder
from sdort.pipelines.scheduler_names import find_scheduler

USUAL_STEPS, USUAL_GUIDANCE = 50, 7.5
"""Of a model that is not distilled, and diffusers' defaults."""

_CONSISTENCY = ("LCMScheduler", "TCDScheduler")
_EULER = ("EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler")


@dataclass(frozen=True)
class Sampling:
    """Steps and guidance that a request gets where it does not say."""

    steps: int = USUAL_STEPS
    guidance_scale: float = USUAL_GUIDANCE
    reason: str | None = None
    """By what the model is known to need few steps; None for one that does not."""


def usual_sampling(folder: PipelineFolder, scheduler: str | None) -> Sampling:
    """The usual sampling of a pipeline.

    A latent consistency model (https://arxiv.org/abs/2310.04378) embeds the guidance scale in its UNet, and takes 4
    steps at 8.5. Consistency and trajectory schedulers are for models, or adapters, that are distilled to few steps
    without guidance. SD Turbo, SDXL Turbo and SDXL-Lightning ship Euler's sampler with trailing timesteps and epsilon
    prediction (https://huggingface.co/stabilityai/sdxl-turbo); other models with trailing timesteps predict v.

    Args:
        scheduler: as :func:`find_scheduler` takes it; None for the pipeline's own.

    Raises:
        BadModelError: the folder has no usable scheduler config.
        UsageError: no such scheduler.
    """
    config = folder.scheduler
    own = str(config.get("_class_name"))
    chosen = find_scheduler(scheduler)[0] if scheduler else own
    if folder.config("unet").get("time_cond_proj_dim"):
        return Sampling(4, 8.5, "its UNet embeds the guidance scale")
    if chosen in _CONSISTENCY:
        return Sampling(4, 1.0, f"{chosen} is for distilled models")
    trailing = config.get("timestep_spacing") == "trailing" and not config.get("rescale_betas_zero_snr")
    if own in _EULER and trailing and config.get("prediction_type", "epsilon") == "epsilon":
        return Sampling(4, 1.0, f"its scheduler is {own} with trailing timesteps, as of Turbo and Lightning")
    return Sampling()
