"""Difference maps of images: one scaling for every report."""

from __future__ import annotations

import numpy as np

from sdort.model.signature import Array

MOST_GAIN = 64
"""A difference map is made at most this much brighter: more would show rounding as if it were damage."""


def difference_map(image: Array, reference: Array) -> tuple[Array, str]:
    """Difference of two images [height, width, 3], uint8, as bright as it may be, and the scale in words."""
    difference = np.abs(image.astype(np.int32) - reference.astype(np.int32))
    largest = int(difference.max())
    gain = int(np.clip(255 // max(largest, 1), 1, MOST_GAIN))
    return (difference * gain).clip(0, 255).astype(np.uint8), f"times {gain}, at most {largest} of 255"
