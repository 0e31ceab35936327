"""The conditioning of a batch of images, which may change from one call of the UNet to the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sdort.pipelines.conditioning import Conditioning

Copies = Sequence[Conditioning]
"""Conditioning of an image's samples, arrays [1, ...]: of the negative prompt, if any, then of the prompt's parts."""


class StepConditions:
    """The conditioning of a batch at every call.

    Args:
        images: for each image the copies of each call; calls in a row with the same conditioning have the same objects.
    """

    def __init__(self, images: Sequence[Sequence[Copies]]) -> None:
        self._images = images

    @classmethod
    def fixed(cls, copies: Copies, calls: int) -> StepConditions:
        """The same conditioning at every call, for one image or for all at once (arrays [images, ...])."""
        return cls([[copies] * calls])

    @property
    def copies(self) -> int:
        """Samples of each image."""
        return len(self._images[0][0])

    def changes(self, call: int) -> bool:
        """Whether the conditioning is another one than at the call before, or the first."""
        return call == 0 or any(
            before is not now
            for calls in self._images
            for before, now in zip(calls[call - 1], calls[call], strict=True)
        )

    def at(self, call: int) -> list[Conditioning]:
        """The conditioning of a call: of each copy arrays [images, ...]."""
        return [
            {name: np.concatenate([condition[name] for condition in images]) for name in images[0]}
            for images in zip(*(calls[call] for calls in self._images), strict=True)
        ]
