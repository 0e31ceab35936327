"""The conditioning of a batch of images, which may change from one call of the UNet to the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sdort.graph.signature import Array
from sdort.pipelines.conditioning import Conditioning

Copies = Sequence[Conditioning]
"""Conditioning of an image's samples, arrays [1, ...]: of the negative prompt, if any, then of the prompt's parts."""


Lengths = tuple[tuple[str, tuple[int, ...]], ...]
"""Conditioning inputs whose samples have different numbers of tokens, and the number of each sample."""

_STATES = 3
"""Dimensions of the states of tokens, [samples, tokens, width]."""


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

    def lengths(self, images: int) -> Lengths:
        """The tokens of each sample, [copies * images], of inputs whose samples do not all have as many.

        Args:
            images: of the batch, which may share their conditioning.
        """
        first = [calls[0] for calls in self._images]
        shared = images // len(first)
        found = {}
        for name, value in first[0][0].items():
            if value.ndim == _STATES:
                copies = [[image[copy][name].shape[1] for image in first] * shared for copy in range(self.copies)]
                found[name] = tuple(length for copy in copies for length in copy)
        return tuple((name, each) for name, each in found.items() if len(set(each)) > 1)

    def changes(self, call: int) -> bool:
        """Whether the conditioning is another one than at the call before, or the first."""
        return call == 0 or any(
            before is not now
            for calls in self._images
            for before, now in zip(calls[call - 1], calls[call], strict=True)
        )

    def at(self, call: int) -> list[Conditioning]:
        """The conditioning of a call: of each copy arrays [images, ...]. Fewer tokens than the most are filled up with
        zeros, see :meth:`lengths`."""
        every = [condition for calls in self._images for condition in calls[call]]
        most = {name: max(each[name].shape[1] for each in every) for name in every[0] if every[0][name].ndim == _STATES}
        return [
            {name: np.concatenate([_filled(each[name], most.get(name)) for each in images]) for name in images[0]}
            for images in zip(*(calls[call] for calls in self._images), strict=True)
        ]


def _filled(values: Array, length: int | None) -> Array:
    """Arrays [1, tokens, width] with so many tokens; others as they are."""
    if length is None or values.shape[1] == length:
        return values
    return np.pad(values, ((0, 0), (0, length - values.shape[1]), (0, 0)))
