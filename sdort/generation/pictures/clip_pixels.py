"""Pictures as CLIP's vision models take them, without transformers: for IP-Adapters and for safety checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sdort.checkpoints.clip_processing import ClipProcessing
from sdort.graph.signature import Array

if TYPE_CHECKING:
    from PIL import Image


def clip_pixels(picture: Image.Image, processing: ClipProcessing) -> Array:
    """A picture as ``CLIPImageProcessor`` of transformers makes it, float32 [1, 3, side, side].

    It is resized, the middle is cut out, and the channels are normalized.

    Args:
        picture: 8-bit ``RGB``.
    """
    from PIL import Image

    height, width = resized((picture.height, picture.width), processing.shorter)
    larger = picture.resize((width, height), Image.Resampling(processing.resample))
    side = processing.side
    top, left = (height - side) // 2, (width - side) // 2
    cropped = np.asarray(larger)[top : top + side, left : left + side]
    values = (cropped.astype(np.float64) * processing.factor).astype(np.float32)
    normal = (values - np.asarray(processing.mean, np.float32)) / np.asarray(processing.deviation, np.float32)
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[None])


def resized(size: tuple[int, int], shorter: int) -> tuple[int, int]:
    """Height and width at which the shorter of the two is ``shorter``."""
    longer = int(shorter * max(size) / min(size))
    return (shorter, longer) if size[0] <= size[1] else (longer, shorter)
