"""Sizes of what is generated from an image, and from what was generated at a smaller size."""

from __future__ import annotations

import math

from sdort.generation.pictures.input_image import InputImage

LARGEST = 4
"""An image with more pixels than the model's own size by this factor is scaled down to that size: a photograph would
take minutes a step, and a model repeats itself at a size that it was not trained for."""


def size_from(image: InputImage, asked: tuple[int | None, int | None], own: tuple[int, int], factor: int) -> list[int]:
    """Height and width in pixels to generate from an image.

    Args:
        asked: as asked; where one is None the image keeps its proportions.
        own: the model's own.
        factor: pixels of which a size is a multiple.

    Returns:
        Where nothing is asked for, the image's own size, rounded down as in diffusers; that of the model's pixels where
        the image has more than :data:`LARGEST` times as many.
    """
    height, width = image.size
    scale = math.sqrt(math.prod(own) / (height * width))
    if asked[0] is None and asked[1] is None:
        if scale**2 * LARGEST >= 1:
            return [max(side - side % factor, factor) for side in image.size]
    elif asked[0] is None or asked[1] is None:
        scale = asked[0] / height if asked[0] is not None else (asked[1] or 0) / width
    rounded = [max(round(side * scale / factor), 1) * factor for side in image.size]
    return [side if wanted is None else wanted for side, wanted in zip(rounded, asked, strict=True)]


def scaled_size(size: tuple[int, int], scale: float, factor: int) -> tuple[int, int]:
    """Height and width in pixels times ``scale``, rounded to multiples of ``factor``."""
    height, width = (max(round(side * scale / factor), 1) * factor for side in size)
    return height, width
