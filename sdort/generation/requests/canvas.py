"""The init image and its mask at the size that is generated, and what comes back into the original.

Sizes, blur, thresholds and the paste are those of diffusers' ``VaeImageProcessor``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sdort.console import say
from sdort.errors import UsageError
from sdort.generation.pictures.resampling import Region, fitted, pasted, resized, shares, surroundings
from sdort.generation.requests.request import Request
from sdort.graph.signature import Array

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Canvas:
    """An init image at the size that is generated."""

    pixels: Array
    """float32 [1, 3, height, width] in [-1, 1]."""
    mask: Array | None
    """float32 [1, 1, height, width], 1 where something new is generated, else 0; None without a mask."""
    original: Image.Image
    """The image that stays where nothing is generated: the init image, whole where only a region of it is generated."""
    alpha: Image.Image | None
    """The mask that the result is pasted through, of the original's size and with soft edges."""
    region: Region | None
    """The part of the original that is generated; None for all of it."""

    def latent_mask(self, factor: int) -> Array:
        """The mask of latents, bool [height / factor, width / factor]: that of each one's first pixel."""
        assert self.mask is not None
        return np.asarray(self.mask[0, 0, ::factor, ::factor] >= 0.5)

    @property
    def masked_pixels(self) -> Array:
        """``pixels`` with zeros, which are grey, where something new is generated."""
        assert self.mask is not None
        return self.pixels * (self.mask < 0.5)

    def finished(self, pixels: Array) -> Array:
        """A generated image with the original wherever the mask is black, uint8 [height, width, 3]."""
        from PIL import Image

        if self.alpha is None:
            return pixels
        return np.asarray(pasted(Image.fromarray(pixels), self.original, self.alpha, self.region))


def make_canvas(request: Request, size: tuple[int, int], factor: int) -> Canvas:
    """The canvas of a request's init image.

    Args:
        size: height and width in pixels that are generated.
        factor: pixels a latent along each side.

    Raises:
        UsageError: the mask leaves nothing to generate at this size.
    """
    from PIL.ImageFilter import GaussianBlur

    image, mask = request.init_image, request.mask
    assert image is not None
    if mask is None:
        return Canvas(2 * shares(resized(image.picture, size)) - 1, None, image.picture, None, None)
    alpha = mask.picture.filter(GaussianBlur(request.blur)) if request.blur else mask.picture
    region = surroundings(alpha, size, request.padding) if request.only_masked else None
    pictures = image.picture, alpha
    if region is None:
        fit = original, alpha = [resized(each, size) for each in pictures]
    else:
        fit, original = [fitted(each.crop(region), size, extend=True) for each in pictures], image.picture
    selected = np.float32(1) * (shares(fit[1].convert("L")) >= 0.5)
    canvas = Canvas(2 * shares(fit[0]) - 1, selected, original, alpha, region)
    if not canvas.latent_mask(factor).any():
        height, width = size
        instead = "ask for a larger image" if region else "generate its surroundings alone, larger: --only-masked"
        raise UsageError(
            f"the white of --mask {mask.name} is too small: at {width}x{height} pixels it covers no square of {factor}",
            hint=f"Draw it larger, or {instead}.",
        )
    return canvas


def remark_on_size(request: Request, size: tuple[int, int]) -> None:
    """Say that the init image is resized, and that a mask selects everything."""
    image, mask = request.init_image, request.mask
    if image is not None and image.size != size and not request.only_masked:
        (height, width), (before, across) = size, image.size
        # Rounding to whole latents is no change of proportions.
        stretched = abs(width * before / (height * across) - 1) > 0.05
        say(
            f"{image} is resized from {across}x{before} to {width}x{height} pixels"
            + (", which are other proportions" if stretched else "")
            + "; --size asks for another size"
        )
    if mask is not None and np.asarray(mask.picture).min() == 255:
        say(f"--mask {mask.name} is all white: the whole image is generated anew")
