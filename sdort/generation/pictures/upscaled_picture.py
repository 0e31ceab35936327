"""Pictures of Pillow made larger by an upscaler."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from sdort.errors import UsageError
from sdort.graph.signature import Array
from sdort.upscaling.tiles import OnTile

if TYPE_CHECKING:
    from PIL import Image

    from sdort.upscaling.upscaler import Upscaler

MAX_PIXELS = 1 << 28
"""Pixels of a result, 268 million: with an alpha channel 1.1 GB, and as much again while the file is written."""
_TURNS = 3
"""Times that a network runs on its own result to reach a scale, as in AUTOMATIC1111."""


def upscale_picture(
    upscaler: Upscaler,
    picture: Image.Image,
    scale: float | None = None,
    tile: int | None = None,
    on_tile: OnTile = lambda tile, tiles: None,
) -> Image.Image:
    """A picture of Pillow in ``L``, ``RGB`` or ``RGBA``, made larger; in the same mode, with its colour profile.

    Args:
        scale: how many times as high and wide; None as the network makes it. Where the network makes images smaller
            than that, it runs again on its result; then the result is resized by Lanczos' filter.

    Raises:
        UsageError: the result is too large.
    """
    from PIL import Image

    height, width = result_size((picture.height, picture.width), scale or upscaler.scale)
    pixels = np.asarray(picture)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    turns = 0
    while turns == 0 or (scale is not None and upscaler.scale > 1 and pixels.shape[0] < height and turns < _TURNS):
        _refuse_large(pixels.shape[0] * upscaler.scale, pixels.shape[1] * upscaler.scale)
        pixels = _enlarged(upscaler, pixels, tile, on_tile)
        turns += 1
    result = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    if result.size != (width, height):
        result = result.resize((width, height), Image.Resampling.LANCZOS)
    if "icc_profile" in picture.info:
        result.info["icc_profile"] = picture.info["icc_profile"]
    return result


def _enlarged(upscaler: Upscaler, pixels: Array, tile: int | None, on_tile: OnTile) -> Array:
    """Pixels once through the network; an alpha channel as a grey image of its own."""
    if pixels.shape[2] != 4:
        return upscaler.enlarge(pixels, tile, on_tile)
    parts = [upscaler.enlarge(part, tile, on_tile) for part in (pixels[:, :, :3], pixels[:, :, 3:])]
    return np.concatenate(parts, axis=2)


def result_size(size: tuple[int, int], scale: float) -> tuple[int, int]:
    """Height and width of an image made ``scale`` times as large.

    Raises:
        UsageError: it has more than :data:`MAX_PIXELS`.
    """
    height, width = (max(math.floor(side * scale + 0.5), 1) for side in size)
    _refuse_large(height, width)
    return height, width


def _refuse_large(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise UsageError(
            f"the result would have {width}x{height} pixels, at most {MAX_PIXELS:,} are made",
            hint="Take a smaller --scale, or an upscaler that enlarges less.",
        )
