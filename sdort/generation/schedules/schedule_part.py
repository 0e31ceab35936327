"""Part of a schedule: which of a scheduler's steps are taken, and what the latents are before the first of them.

Text to image takes all steps and begins with noise. Image to image leaves out the first steps and begins with the
image under as much noise as the schedule has there (SDEdit, https://arxiv.org/abs/2108.01073). What another model
left off is continued from its latents as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sdort.graph.signature import Array
from sdort.samplers.sampler import Draw, Sampler


class Begin(Enum):
    """The kind of latents before the first step."""

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
    """The calls of a part of a sampler's schedule; one walks through them once.

    All latents are arrays [images, channels, height, width]; calls are counted from 0 in the part.

    Args:
        sampler: a new one.
    """

    def __init__(self, sampler: Sampler, part: Part) -> None:
        self.sampler = sampler
        self.part = part
        self.timesteps = sampler.timesteps[part.first : part.last]
        sampler.begin_at(part.first)

    def begin(self, noise: Array, image: Array | None = None) -> Array:
        """The latents before the first call.

        Args:
            noise: of unit variance.
            image: scaled latents, where the part takes some.
        """
        if self.part.begin is Begin.NOISE:
            return self.sampler.begin(noise)
        assert image is not None
        return image if self.part.begin is Begin.LATENTS else self.sampler.noised(self.part.first, image, noise)

    def sample(self, number: int, latents: Array) -> Array:
        """Latents as the UNet gets them at a call."""
        return self.sampler.sample(self.part.first + number, latents)

    def step(self, number: int, output: Array, latents: Array, draw: Draw) -> Array:
        """The latents after a call that gave ``output``."""
        return self.sampler.step(self.part.first + number, output, latents, draw)

    def outside(self, number: int, noise: Array, image: Array) -> Array:
        """The latents outside of the mask after a call; to be asked after :meth:`step`, which moves the schedule on."""
        if number + 1 == len(self.timesteps):
            return image
        return self.sampler.noised(self.part.first + number + 1, image, noise)
