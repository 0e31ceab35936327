"""Sampler, steps and guidance of a request that does not say: those of distilled models are few, where configs tell."""

from __future__ import annotations

from dataclasses import dataclass

from sdort.pipelines.folder import PipelineFolder
from sdort.samplers.scheduler_names import find_scheduler, has_betas

USUAL_STEPS, SLOW_STEPS, USUAL_GUIDANCE = 25, 50, 7.5
"""Of a model that is not distilled: solvers of a higher order than DDIM's are where they will be after 20 to 30 steps
(https://arxiv.org/abs/2211.01095, figure 3). The others are diffusers' defaults."""
USUAL_SCHEDULER = "dpm++-2m-karras"
"""In the place of a slow one that nobody asked for."""
_SLOW = ("DDIMScheduler", "DDPMScheduler", "PNDMScheduler")

_CONSISTENCY = ("LCMScheduler", "TCDScheduler")
_EULER = ("EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler")


@dataclass(frozen=True)
class Sampling:
    """Steps, guidance and sampler that a request gets where it does not say."""

    steps: int = USUAL_STEPS
    guidance_scale: float = USUAL_GUIDANCE
    scheduler: str | None = None
    """In the place of the pipeline's own; None for that."""
    reason: str | None = None
    """By what the model is known to need few steps; None for one that does not."""


def default_sampling(folder: PipelineFolder, scheduler: str | None) -> Sampling:
    """The usual sampling of a pipeline.

    A latent consistency model (https://arxiv.org/abs/2310.04378) embeds the guidance scale in its UNet, and takes 4
    steps at 8.5. Consistency and trajectory schedulers are for models, or adapters, that are distilled to few steps
    without guidance. SD Turbo, SDXL Turbo and SDXL-Lightning ship Euler's sampler with trailing timesteps and epsilon
    prediction (https://huggingface.co/stabilityai/sdxl-turbo); other models with trailing timesteps predict v. A
    config whose noise ends at zero or whose timesteps trail asks for its own sampler.

    Args:
        scheduler: as :func:`find_scheduler` takes it, or the class of the pipeline's own; None where another one may
            take its place.

    Raises:
        BadModelError: the folder has no usable scheduler config.
        UsageError: no such scheduler.
    """
    if folder.family.usual:
        return Sampling(*folder.family.usual(folder.config(folder.denoiser)))
    config = folder.scheduler
    own = str(config.get("_class_name"))
    chosen = own if scheduler in (None, own) else find_scheduler(scheduler or own)[0]
    if folder.config(folder.denoiser).get("time_cond_proj_dim"):
        return Sampling(4, 8.5, reason="its UNet embeds the guidance scale")
    if chosen in _CONSISTENCY:
        return Sampling(4, 1.0, reason=f"{chosen} is for distilled models")
    trailing = config.get("timestep_spacing") == "trailing" and not config.get("rescale_betas_zero_snr")
    if own in _EULER and trailing and config.get("prediction_type", "epsilon") == "epsilon":
        return Sampling(4, 1.0, reason=f"its scheduler is {own} with trailing timesteps, as of Turbo and Lightning")
    if chosen not in _SLOW:
        return Sampling()
    asks_for_its_own = config.get("timestep_spacing") == "trailing" or config.get("rescale_betas_zero_snr")
    if scheduler is None and has_betas(config) and not asks_for_its_own:
        return Sampling(scheduler=USUAL_SCHEDULER)
    return Sampling(SLOW_STEPS)
