"""Images beside their references, with a map of where they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sdort.benchmark.measure import ImagePair
from sdort.benchmark.report.theme import WIDTH
from sdort.verification.metrics import psnr
from sdort.verification.report.difference import difference_map, is_comparable, shared_gain
from sdort.verification.report.html import Theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
COLUMNS = ("reference", "this", "difference")


def similarity(pair: ImagePair) -> str:
    """``61.6 dB``, or what stands in its way."""
    if pair.image.problem:
        return pair.image.problem
    if pair.reference is None:
        return "no reference"
    if pair.image.pixels.shape != pair.reference.pixels.shape:
        return "another size than the reference"
    decibels = psnr(pair.image.pixels, pair.reference.pixels)
    return "equal" if math.isinf(decibels) else f"{decibels:.1f} dB PSNR"


def comparable(pair: ImagePair) -> bool:
    """Whether there is a reference of the same size."""
    return pair.reference is not None and is_comparable(pair.image.pixels, pair.reference.pixels)


def common_gain(pairs: Sequence[ImagePair]) -> int:
    """The factor of all difference maps of ``pairs``."""
    return shared_gain((pair.image.pixels, pair.reference.pixels) for pair in pairs if pair.reference is not None)


def image_figure(pairs: Sequence[ImagePair], names: Sequence[str], theme: Theme) -> Figure | None:
    """A line for each pair: the reference, the image, the difference map; None without pairs."""
    from matplotlib.figure import Figure

    if not pairs:
        return None
    side = 2.1
    figure = Figure(figsize=(WIDTH * 0.8, (side + 0.35) * len(pairs)), layout="constrained", facecolor=theme.paper)
    grid = figure.subplots(len(pairs), 3, squeeze=False)
    for line, pair, name in zip(grid, pairs, names, strict=True):
        shown, words = _panels(pair, common_gain(pairs))
        for axes, pixels, above in zip(line, shown, (name, similarity(pair), words), strict=True):
            axes.set_axis_off()
            axes.set_title(above, fontsize=8.5, color=theme.ink, loc="left")
            if pixels is not None:
                axes.imshow(pixels, interpolation="nearest")
    for axes, column in zip(grid[0], COLUMNS, strict=True):
        axes.set_title(f"{column}\n{axes.get_title(loc='left')}", fontsize=8.5, color=theme.ink, loc="left")
    return figure


def _panels(pair: ImagePair, gain: int) -> tuple[list[Pixels | None], str]:
    if not comparable(pair) or pair.reference is None:
        return [None, pair.image.pixels, None], "no difference map"
    pixels, words = difference_map(pair.image.pixels, pair.reference.pixels, gain)
    return [pair.reference.pixels, pair.image.pixels, pixels], words
