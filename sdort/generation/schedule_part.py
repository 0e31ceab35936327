"""Part of a schedule: which of a scheduler's steps are taken, and what the latents are before the first of them.

Text to image takes all steps and begins with noise. Image to image leaves out the first steps and begins with the
image under as much noise as the schedule has there (SDEdit, https://arxiv.org/abs/2108.01073). What another model
left off is continued from its latents as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Begin(Enum):
    """What the latents are before the first step."""

    NOISE = "noise"
    """Noise of the schedule's first standard deviation."""
    IMAGE = "image"
    """An image's latents under noise."""
    LATENTS = "latents"
    """Latents that another schedule left, as they are."""


@dataclass(frozen=True)
class Part:
    """Part of a schedule, counted in calls of the UNet: several schedulers take two a step."""

    first: int = 0
    """Number of the first call."""
    last: int | None = None
    """Number of the call after the last one; None for the schedule's end."""
    begin: Begin = Begin.NOISE
    masked: bool = False
    """Whether the latents outside of a mask are, after every step, those of an image under noise: inpainting with a
    UNet that takes no mask."""

    @property
    def takes_image(self) -> bool:
        """Whether it needs latents beside the noise."""
        return self.masked or self.begin is not Begin.NOISE


WHOLE = Part()
"""All steps, from noise."""


class PartSteps:
    """The calls of a part of a scheduler's schedule; one walks through them once.

    All latents are tensors [images, channels, height, width] in fp32.

    Args:
        scheduler: a new one, with its timesteps set.
    """

    def __init__(self, scheduler: Any, part: Part) -> None:
        self.scheduler = scheduler
        self.part = part
        self.timesteps = scheduler.timesteps[part.first : part.last]
        if part.takes_image and hasattr(scheduler, "set_begin_index"):
            # Otherwise it searches the timestep, and where one stands twice it may find the wrong one.
            scheduler.set_begin_index(part.first)

    def begin(self, noise: Any, image: Any = None) -> Any:
        """The latents before the first call.

        Args:
            noise: of unit variance.
            image: scaled latents, where the part takes some.
        """
        if self.part.begin is Begin.NOISE:
            return noise * self.scheduler.init_noise_sigma
        if self.part.begin is Begin.LATENTS:
            return image
        return self.scheduler.add_noise(image, noise, self.timesteps[:1].repeat(len(noise)))

    def sample(self, number: int, latents: Any) -> Any:
        """What the UNet gets at a call: its number counts from 0 in this part."""
        return self.scheduler.scale_model_input(latents, self.timesteps[number])

    def step(self, number: int, output: Any, latents: Any, **extra: Any) -> Any:
        """The latents after a call that gave ``output``."""
        return self.scheduler.step(output, self.timesteps[number], latents, **extra, return_dict=False)[0]

    def outside(self, number: int, noise: Any, image: Any) -> Any:
        """The latents outside of the mask after a call; to be asked after :meth:`step`, which moves the schedule on."""
        if number + 1 == len(self.timesteps):
            return image
        return self.scheduler.add_noise(image, noise, self.timesteps[number + 1 : number + 2].repeat(len(noise)))
