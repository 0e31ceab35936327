"""Images beside their references, with a map of where they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sdort.benchmark.measure import ImagePair
from sdort.benchmark.report.theme import WIDTH
from sdort.verification.metrics import psnr
from sdort.verification.report.difference import difference_map
from sdort.verification.report.html import Theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
COLUMNS = ("reference", "this", "difference")


def similarity(picture: ImagePair) -> str:
    """``61.6 dB``, or what stands in its way."""
    if picture.image.problem:
        return picture.image.problem
    if picture.reference is None:
        return "no reference"
    if picture.image.pixels.shape != picture.reference.pixels.shape:
        return "another size than the reference"
    found = psnr(picture.image.pixels, picture.reference.pixels)
    return "equal" if math.isinf(found) else f"{found:.1f} dB PSNR"


def comparable(picture: ImagePair) -> bool:
    """Whether there is a reference of the same size."""
    return picture.reference is not None and picture.image.pixels.shape == picture.reference.pixels.shape


def image_figure(pictures: Sequence[ImagePair], names: Sequence[str], theme: Theme) -> Figure | None:
    """A line for each picture: the reference, the image, the difference map; None where there are no pictures."""
    from matplotlib.figure import Figure

    if not pictures:
        return None
    side = 2.1
    figure = Figure(figsize=(WIDTH * 0.8, (side + 0.35) * len(pictures)), layout="constrained", facecolor=theme.paper)
    grid = figure.subplots(len(pictures), 3, squeeze=False)
    for line, picture, name in zip(grid, pictures, names, strict=True):
        shown, words = _panels(picture)
        for axes, pixels, above in zip(line, shown, (name, similarity(picture), words), strict=True):
            axes.set_axis_off()
            axes.set_title(above, fontsize=8.5, color=theme.ink, loc="left")
            if pixels is not None:
                axes.imshow(pixels, interpolation="nearest")
    for axes, column in zip(grid[0], COLUMNS, strict=True):
        axes.set_title(f"{column}\n{axes.get_title(loc='left')}", fontsize=8.5, color=theme.ink, loc="left")
    return figure


def _panels(picture: ImagePair) -> tuple[list[Pixels | None], str]:
    if not comparable(picture) or picture.reference is None:
        return [None, picture.image.pixels, None], "no difference map"
    pixels, words = difference_map(picture.image.pixels, picture.reference.pixels)
    return [picture.reference.pixels, picture.image.pixels, pixels], words
