"""The start of a batch of images: noise, an image's latents, a mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdort.generation.latents.encode import Posterior
from sdort.generation.schedules.image_noise import NoiseSource
from sdort.generation.schedules.schedule_part import Begin, Part
from sdort.graph.signature import Array
from sdort.pipelines.folder import PipelineFolder


@dataclass(frozen=True)
class BatchStart:
    """Arrays of a batch, before its first step."""

    noise: Array
    """float32 [images, channels, height, width], of unit variance."""
    image: Array | None = None
    """Scaled latents of the same shape; None where the part of the schedule takes none."""
    mask: Array | None = None
    """bool [height, width], true where the scheduler's steps count; None where they count everywhere."""
    extra: Array | None = None
    """float32 [images, 1 + channels, height, width], what an inpainting UNet takes beside the latents."""


@dataclass(frozen=True)
class Start:
    """The start of all batches, of any seed: nothing but noise, an encoded image, or the latents of one batch."""

    folder: PipelineFolder
    image: Posterior | None = None
    latents: Array | None = None
    """Scaled latents [images, channels, height, width] in place of ``image``."""
    mask: Array | None = None
    """bool [height, width], of latents; None without a mask."""
    masked: Posterior | None = None
    """The image without what the mask selects, for an inpainting UNet."""

    def begin(self, source: NoiseSource, latent: tuple[int, int, int], part: Part) -> BatchStart:
        """The beginning of a batch.

        Draws in the order of diffusers' image-to-image and inpainting pipelines: the image's latents, the noise, the
        masked image's latents.

        Args:
            latent: channels, height and width of the latents.
        """
        image = self.latents
        if self.image is not None and part.takes_image:
            image = self._drawn(self.image, source)
        if part.begin is Begin.LATENTS:
            assert image is not None
            return BatchStart(np.zeros_like(image), image)  # their noise is in them: none is drawn
        noise = source.first(latent)
        if self.mask is None:
            return BatchStart(noise, image)
        if self.masked is None:
            if self.folder.draws_latents:  # the pipelines encode the masked image whether the UNet takes it or not
                source.draw(latent)
            return BatchStart(noise, image, self.mask)
        masked = self._drawn(self.masked, source)
        mask = np.broadcast_to(self.mask.astype(np.float32), (len(masked), 1, *self.mask.shape))
        return BatchStart(noise, image, None, np.concatenate([mask, masked], axis=1))

    def _drawn(self, posterior: Posterior, source: NoiseSource) -> Array:
        return self.folder.scaled(posterior.sample(source))
