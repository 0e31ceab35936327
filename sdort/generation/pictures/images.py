"""Images from the decoder's output, and those that must not be written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdort.graph.signature import Array

FLAT = 1.0
"""Standard deviation, of 255, below which every channel of an image shows nothing: overflow and dead weights end in one
colour, with a border or a few pixels of another. The demo's images have 16.6 or more (85 images of its prompts, at 1 to
20 steps and guidance 1 to 15), and 18.7 or more decoded from noise; a decoder with random weights has 60 from noise and
0 from zeros. A black frame with one dim lamp has 1.5. An image of blank paper
alone, under 1, is refused; trained models but the demo's were not measured."""


@dataclass(frozen=True)
class Generated:
    """One image: ``pixels`` is uint8 [height, width, 3]; ``problem`` says why it must not be used, None if it may."""

    seed: int
    pixels: Array
    problem: str | None
    variation_seed: int | None = None


def to_image(decoded: Array, seed: int) -> Generated:
    """An image from the decoder's float output [3, height, width] in [-1, 1].

    The rounding is that of diffusers' ``VaeImageProcessor``: (x / 2 + 0.5) clamped to [0, 1], times 255, to nearest.
    """
    values = np.asarray(decoded, np.float32)
    channels, height, width = values.shape
    if not np.isfinite([values.min(), values.max()]).all():  # both are NaN where one value is
        return Generated(seed, np.zeros((height, width, channels), np.uint8), "it has NaN or infinite pixels")
    pixels = np.empty((height, width, channels), np.uint8)
    rows = max(1, _AT_ONCE // width)
    for first in range(0, height, rows):
        strip = np.s_[first : first + rows]
        shares = values[:, strip] / 2
        shares += 0.5
        np.clip(shares, 0, 1, out=shares)
        shares *= 255
        rounded = np.rint(shares, out=shares).astype(np.uint8)
        for channel in range(channels):  # three times as fast as all of them at once
            pixels[strip, :, channel] = rounded[channel]
    return Generated(seed, pixels, constant_problem(pixels))


_AT_ONCE = 1 << 16
"""Pixels that are rounded at once: their floats stay in a processor's cache."""
_SAMPLED = 64
"""One pixel of so many is looked at first."""


def constant_problem(pixels: Array) -> str | None:
    """The reason why an 8-bit image shows nothing, None when it shows something."""
    channels = pixels.reshape(-1, pixels.shape[-1])
    # The squares of some pixels' differences from their own mean are at most those of all from theirs.
    few = np.ascontiguousarray(channels[::_SAMPLED].T)
    if few.var(axis=1, dtype=np.float32).max() * few.shape[1] >= 1.01 * FLAT**2 * len(channels):
        return None
    deviation = float(channels.std(axis=0, dtype=np.float64).max())
    if deviation >= FLAT:
        return None
    colour = np.median(channels, axis=0).astype(int).tolist()
    if max(colour) <= 2 * FLAT:
        return "it is all black"
    return f"every pixel has nearly the same value ({', '.join(map(str, colour))}; standard deviation {deviation:.2f})"
