"""Pictures and latents at other sizes, as diffusers' pipelines make them: ``VaeImageProcessor`` and ``interpolate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdort.graph.signature import Array

if TYPE_CHECKING:
    from PIL import Image

Region = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels."""


def resized(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """A picture at another height and width, whatever its proportions."""
    from PIL.Image import Resampling

    return picture.resize((size[1], size[0]), Resampling.LANCZOS)


def fitted(picture: Image.Image, size: tuple[int, int], *, extend: bool) -> Image.Image:
    """A picture in RGB with its own proportions in the middle of another height and width.

    Args:
        extend: whether it is whole, and its edges go on to where it does not reach; otherwise it reaches everywhere,
            and is cut.
    """
    from PIL import Image

    height, width = size
    wider = picture.width / picture.height > width / height
    if wider is extend:
        inner = picture.height * width // picture.width, width
    else:
        inner = height, picture.width * height // picture.height
    small = resized(picture, inner)
    left, top = width // 2 - inner[1] // 2, height // 2 - inner[0] // 2
    canvas = Image.new("RGB", (width, height))
    canvas.paste(small, (left, top))
    if extend and wider and top > 0:
        for edge, place in ((0, 0), (inner[0], top + inner[0])):
            canvas.paste(small.resize((width, top), box=(0, edge, width, edge)), (0, place))
    elif extend and not wider and left > 0:
        for edge, place in ((0, 0), (inner[1], left + inner[1])):
            canvas.paste(small.resize((left, height), box=(edge, 0, edge, height)), (place, 0))
    return canvas


def shares(picture: Image.Image) -> Array:
    """The values of a picture, float32 [1, channels, height, width] in [0, 1]."""
    values = np.asarray(picture, np.float32) / np.float32(255)
    return values.reshape(*values.shape[:2], -1).transpose(2, 0, 1)[None]


def surroundings(mask: Image.Image, size: tuple[int, int], padding: int) -> Region | None:
    """The part of a picture around all that its mask selects, with the proportions of a height and width.

    Args:
        padding: pixels on each side that belong to it.

    Returns:
        None where the mask selects nothing.
    """
    selected = np.asarray(mask.convert("L")) != 0
    if not selected.any():
        return None
    (top, bottom), (left, right) = (
        _padded(np.flatnonzero(selected.any(axis=1 - axis)), padding, selected.shape[axis]) for axis in (0, 1)
    )
    height, width = size
    if (right - left) / (bottom - top) > width / height:
        top, bottom = _grown(top, bottom, (right - left) / (width / height), selected.shape[0])
    else:
        left, right = _grown(left, right, (bottom - top) * (width / height), selected.shape[1])
    return left, top, right, bottom


def _padded(places: Array, padding: int, limit: int) -> tuple[int, int]:
    return max(int(places[0]) - padding, 0), min(int(places[-1]) + 1 + padding, limit)


def _grown(start: int, stop: int, wanted: float, limit: int) -> tuple[int, int]:
    """A range that is grown to a length on both sides alike, and moved to where it lies within the picture."""
    more = int(wanted - (stop - start))
    start, stop = start - more // 2, stop + more - more // 2
    beyond = max(stop - limit, 0)
    start, stop = start - beyond, stop - beyond
    return (0, min(stop - start, limit)) if start < 0 else (start, stop)


def pasted(made: Image.Image, original: Image.Image, alpha: Image.Image, region: Region | None) -> Image.Image:
    """A generated picture where ``alpha`` is white, the original where it is black.

    Args:
        made: of the original's size, or of the proportions of ``region``, where it belongs.
    """
    from PIL import Image, ImageOps

    kept = Image.new("RGBa", original.size)
    kept.paste(original.convert("RGBA").convert("RGBa"), mask=ImageOps.invert(alpha.convert("L")))
    if region is not None:
        left, top, right, bottom = region
        place = Image.new("RGB", original.size)
        place.paste(fitted(made, (bottom - top, right - left), extend=False), (left, top))
        made = place
    whole = made.convert("RGBA")
    whole.alpha_composite(kept.convert("RGBA"))
    return whole.convert("RGB")


def enlarged_latents(latents: Array, size: tuple[int, int]) -> Array:
    """Latents [images, channels, height, width] at another height and width, linearly between their values.

    As ``torch.nn.functional.interpolate(mode="bilinear")``, whose values are in the middle of their squares.
    """
    rows, columns = (_linear_weights(latents.shape[2 + axis], size[axis]) for axis in (0, 1))
    return np.asarray(np.einsum("yh,nchw,xw->ncyx", rows, latents, columns, optimize=True), np.float32)


def _linear_weights(before: int, after: int) -> Array:
    """The weights of ``before`` values in ``after`` values, float32 [after, before]."""
    places = np.maximum((np.arange(after) + 0.5) * (before / after) - 0.5, 0)
    low = np.minimum(places.astype(np.int64), before - 1)
    high, share = np.minimum(low + 1, before - 1), places - low
    weights = np.zeros((after, before))
    np.add.at(weights, (np.arange(after), low), 1 - share)
    np.add.at(weights, (np.arange(after), high), share)
    return weights.astype(np.float32)
