"""Noise levels of flow matching, from 1 for pure noise to 0 for an image, and their shift.

Of a larger image the same noise hides less: its noise levels are shifted towards noise, by a number of the config or by
the number of the image's tokens (https://arxiv.org/abs/2403.03206, section 5.3.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sdort.graph.signature import Array
from sdort.samplers.settings import IMAGE_TOKENS

_TOKEN = 2
"""Latents along each side of a token: of Stable Diffusion 3, Flux and Z-Image."""


def tokens_of(size: tuple[int, int], factor: int) -> int:
    """The number of tokens of an image.

    Args:
        size: height and width in pixels.
        factor: pixels of a latent along each side.
    """
    height, width = (max(side // factor // _TOKEN, 1) for side in size)
    return height * width


def shift_of(values: Mapping[str, Any], key: str) -> float:
    """The shift of a config: its own number, or by the number of tokens.

    Args:
        values: of the settings of :func:`shifting_settings`.
        key: the setting that has the number.
    """
    if not values["use_dynamic_shifting"]:
        return float(values[key])
    least, most = values["base_image_seq_len"], values["max_image_seq_len"]
    tokens = values[IMAGE_TOKENS] or most
    slope = (values["max_shift"] - values["base_shift"]) / (most - least)
    amount = float(values["base_shift"] + slope * (tokens - least))
    return math.exp(amount) if values["time_shift_type"] == "exponential" else amount


def shifted(noises: Array, shift: float) -> Array:
    """Noise levels after a shift: equation 23 of https://arxiv.org/abs/2403.03206."""
    return shift * noises / (1 + (shift - 1) * noises)


def stretched(noises: Array, last: float | None) -> Array:
    """Noise levels whose signals are scaled so that the last level is ``last``; None or 0 leaves them as they are.

    Raises:
        ZeroDivisionError: the last level has no signal.
    """
    return 1 - (1 - noises) * ((1 - last) / float(1 - noises[-1])) if last else noises
