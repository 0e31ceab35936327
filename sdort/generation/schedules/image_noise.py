"""Random numbers of a batch of images: a generator for each, so that an image is the same alone and among others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sdort.generation.schedules.seeded_normal import SeededNormal
from sdort.graph.signature import Array


@dataclass(frozen=True)
class ImageSeed:
    """The seed of one image, and that of the variation of it, if it is one."""

    number: int
    variation: int | None = None


class NoiseSource:
    """Noise for a batch of images, in fp32 on the CPU: its numbers are the same everywhere, and diffusers' own.

    Args:
        seeds: of the images.
        strength: how far variations go from their seed's image, from 0 to 1.
    """

    def __init__(self, seeds: Sequence[ImageSeed], strength: float = 0.0) -> None:
        self.seeds = list(seeds)
        self._numbers = [SeededNormal(seed.number) for seed in seeds]
        self._variations = [SeededNormal(seed.variation) for seed in seeds if seed.variation is not None]
        self._strength = strength

    def state(self) -> tuple[list[SeededNormal], list[SeededNormal]]:
        """The state to come back to with :meth:`restore`."""
        return [each.copy() for each in self._numbers], [each.copy() for each in self._variations]

    def restore(self, state: tuple[list[SeededNormal], list[SeededNormal]]) -> None:
        """Draw the same again as after :meth:`state`, as often as that is asked for."""
        self._numbers, self._variations = ([each.copy() for each in numbers] for numbers in state)

    def draw(self, shape: Sequence[int]) -> Array:
        """Noise [images, *shape]."""
        return _drawn(self._numbers, shape)

    def first(self, shape: Sequence[int]) -> Array:
        """The noise that the latents begin with, [images, channels, height, width]: of variations between two."""
        noise = self.draw(shape)
        if not self._variations:
            return noise
        return slerp(self._strength, noise, _drawn(self._variations, shape))


def _drawn(numbers: list[SeededNormal], shape: Sequence[int]) -> Array:
    """As diffusers' ``randn_tensor`` with a generator for each image."""
    return np.stack([each.draw(shape) for each in numbers])


def slerp(amount: float, low: Array, high: Array) -> Array:
    """Spherical interpolation from ``low`` at 0 to ``high`` at 1, float32 [images, channels, height, width].

    Of each channel's columns by themselves, as AUTOMATIC1111's variations have it: the same two seeds give the same
    noise there. https://en.wikipedia.org/wiki/Slerp
    """
    lengths = np.linalg.norm(low, axis=-2, keepdims=True) * np.linalg.norm(high, axis=-2, keepdims=True)
    cosines = (low * high).sum(axis=-2, keepdims=True) / np.maximum(lengths, np.float32(1e-8))
    # Of each image: where its columns are nearly parallel, sines are nearly zero.
    parallel = cosines.mean(axis=(1, 2, 3), keepdims=True) > 0.9995
    angles = np.arccos(cosines.clip(-1, 1))
    sines = np.where(parallel, np.float32(1), np.sin(angles))
    curved = (np.sin((1 - amount) * angles) * low + np.sin(amount * angles) * high) / sines
    return np.where(parallel, (1 - amount) * low + amount * high, curved)
