"""The init image and its mask at the size that is generated, and what comes back into the original.

Sizes, blur, thresholds and the paste are those of diffusers' ``VaeImageProcessor``, which does them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sdort.console import say
from sdort.errors import UsageError
from sdort.generation.request import Request
from sdort.model.signature import Array

if TYPE_CHECKING:
    from PIL import Image

Region = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels."""


@dataclass(frozen=True)
class Canvas:
    """An init image at the size that is generated."""

    pixels: Array
    """float32 [1, 3, height, width] in [-1, 1]."""
    mask: Array | None
    """float32 [1, 1, height, width], 1 where something new is generated, else 0; None without a mask."""
    original: Image.Image
    """What stays where nothing is generated: the init image, whole where only a region of it is generated."""
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
        processor = _processor()
        made = processor.apply_overlay(self.alpha, self.original, Image.fromarray(pixels), self.region)
        return np.asarray(made)


def make_canvas(request: Request, size: tuple[int, int], factor: int) -> Canvas:
    """The canvas of a request's init image.

    Args:
        size: height and width in pixels that are generated.
        factor: pixels a latent along each side.

    Raises:
        UsageError: the mask leaves nothing to generate at this size.
    """
    image, mask = request.init_image, request.mask
    assert image is not None
    height, width = size
    if mask is None:
        pixels = _processor().preprocess(image.picture, height=height, width=width).numpy()
        return Canvas(pixels, None, image.picture, None, None)
    masks = _processor(do_normalize=False, do_binarize=True, do_convert_grayscale=True)
    alpha = masks.blur(mask.picture, request.blur) if request.blur else mask.picture
    region = masks.get_crop_region(alpha, width, height, pad=request.padding) if request.only_masked else None
    place: dict[str, Any] = {"height": height, "width": width}
    if region is not None:
        place |= {"crops_coords": region, "resize_mode": "fill"}
    pixels = _processor().preprocess(image.picture, **place).numpy()
    selected = masks.preprocess(alpha, **place).numpy()
    original = image.picture
    if region is None:
        original, alpha = (_processor().resize(each, height, width) for each in (original, alpha))
    canvas = Canvas(pixels, selected, original, alpha, region)
    if not canvas.latent_mask(factor).any():
        surroundings = "ask for a larger image" if region else "generate its surroundings alone, larger: --only-masked"
        raise UsageError(
            f"the white of --mask {mask.name} is too small: at {width}x{height} pixels it covers no square of {factor}",
            hint=f"Draw it larger, or {surroundings}.",
        )
    return canvas


def _processor(**settings: bool) -> Any:
    from diffusers.image_processor import VaeImageProcessor

    # The size is a multiple of the autoencoder's factor by now.
    return VaeImageProcessor(vae_scale_factor=1, **settings)


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
