"""The settings by which CLIP's vision models get their pixels: ``preprocessor_config.json`` of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.checkpoints.config_schemas import PREPROCESSOR
from sdort.checkpoints.configs import optional_config
from sdort.errors import BadModelError

FEATURE_EXTRACTOR = "feature_extractor"
"""The folder of a pipeline that has them."""
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Of the channels of the pictures that CLIP was trained on (https://github.com/openai/CLIP, ``clip.py``)."""
_SIDE, _BICUBIC = 224, 3
_STEPS = ("do_resize", "do_center_crop", "do_rescale", "do_normalize")


@dataclass(frozen=True)
class ClipProcessing:
    """Settings of ``CLIPImageProcessor`` of transformers."""

    side: int
    """Pixels of the square that is cut out of the middle."""
    shorter: int
    """Pixels of the shorter side before that."""
    mean: tuple[float, ...] = MEAN
    """Of each channel, which is subtracted."""
    deviation: tuple[float, ...] = DEVIATION
    """Of each channel, by which is divided."""
    factor: float = 1 / 255
    """Of 8-bit pixels."""
    resample: int = _BICUBIC
    """Pillow's number of the filter."""


def usual_processing(side: int) -> ClipProcessing:
    """The settings of OpenAI's CLIP at another number of pixels a side."""
    return ClipProcessing(side, side)


def read_processing(folder: Path, side: int | None) -> ClipProcessing:
    """The settings in a pipeline's ``feature_extractor``; without one those of OpenAI's CLIP.

    Args:
        folder: the folder with ``preprocessor_config.json``.
        side: of the pixels that the model takes; None where it leaves that open.

    Raises:
        BadModelError: they are broken, make pixels of another size, or are not what CLIP's processor does.
    """
    path = folder / "preprocessor_config.json"
    config = optional_config(path, PREPROCESSOR)
    if not config:
        return usual_processing(side or _SIDE)
    cropped, shorter = _square(config.get("crop_size", _SIDE)), _shorter(config.get("size", _SIDE))
    skipped = [step for step in _STEPS if not config.get(step, True)]
    if skipped or cropped is None or shorter is None or shorter < cropped:
        what = f"{skipped[0]} is false" if skipped else "it does not cut a square out of what it resized"
        raise BadModelError(f"{path} is not that of a CLIPImageProcessor: {what}", hint=_AGAIN)
    if side not in (None, cropped):
        raise BadModelError(f"{path} makes {cropped} pixels a side, and the model takes {side}", hint=_AGAIN)
    return ClipProcessing(
        cropped,
        shorter,
        tuple(config.get("image_mean", MEAN)),
        tuple(config.get("image_std", DEVIATION)),
        config.get("rescale_factor", 1 / 255),
        config.get("resample", _BICUBIC),
    )


_AGAIN = "The two are not of one pipeline: copy or download it again."


def _square(size: int | Mapping[str, Any]) -> int | None:
    """The side of a square; None of another size. Old configs have a number."""
    if isinstance(size, int):
        return size
    height, width = size.get("height"), size.get("width")
    return height if height == width else None


def _shorter(size: int | Mapping[str, Any]) -> int | None:
    return size if isinstance(size, int) else size.get("shortest_edge")
