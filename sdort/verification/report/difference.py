"""Difference maps of images, all of one report with one factor: what is brighter differs more."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sdort.graph.signature import Array

MOST_GAIN = 64
"""Difference maps are made at most this much brighter: more would show rounding as if it were damage."""


def shared_gain(pairs: Iterable[tuple[Array, Array]]) -> int:
    """The factor for all difference maps of a report: a power of two, with which the brightest of them is not clipped.

    Args:
        pairs: images [height, width, 3], uint8, and their references; those of two sizes or without pixels have no map.
    """
    largest = max((int(_difference(*pair).max()) for pair in pairs if is_comparable(*pair)), default=0)
    gain = MOST_GAIN
    while gain > 1 and gain * largest > 255:
        gain //= 2
    return gain


def is_comparable(image: Array, reference: Array) -> bool:
    """Whether there are two images of one size."""
    return image.shape == reference.shape and bool(image.size)


def difference_map(image: Array, reference: Array, gain: int) -> tuple[Array, str]:
    """Difference of two images [height, width, 3], uint8, times ``gain``, and the scale in words."""
    difference = _difference(image, reference)
    return (difference * gain).clip(0, 255).astype(np.uint8), f"times {gain}, at most {difference.max()} of 255"


def _difference(image: Array, reference: Array) -> Array:
    return np.abs(image.astype(np.int32) - reference.astype(np.int32))
