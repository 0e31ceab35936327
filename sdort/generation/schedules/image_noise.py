"""Noise of images: a generator for each, and normal numbers as ``torch.randn`` draws them on the CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdort.graph.signature import Array

_BLOCK = 16
"""Numbers that torch makes at once: the radii of the first half are those of the second."""


class SeededNormal:
    """Standard normal numbers in fp32, one draw after the other.

    Args:
        seed: of 64 bits, of which torch's MT19937 takes the lower 32.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.RandomState(seed & 0xFFFFFFFF)
        self._second: float | None = None
        """The other number of a pair of which a small draw took one."""

    def state(self) -> tuple[Any, float | None]:
        """The state to come back to with :meth:`restore`."""
        return self._bits.get_state(), self._second

    def restore(self, state: tuple[Any, float | None]) -> None:
        """Draw the same again as after :meth:`state`, as often as that is asked for."""
        bits, self._second = state
        self._bits.set_state(bits)

    def draw(self, shape: Sequence[int]) -> Array:
        """The next numbers, float32 of ``shape``."""
        size = math.prod(shape)
        numbers = self._many(size) if size >= _BLOCK else np.array([self._one() for _ in range(size)], np.float32)
        return numbers.reshape(tuple(shape))

    def _many(self, size: int) -> Array:
        whole = size - size % _BLOCK
        numbers = np.empty(size, np.float32)
        numbers[:whole] = _normal(self._uniform(size)[:whole])
        if whole < size:  # the last block is drawn once more, over the end of the one before
            numbers[-_BLOCK:] = _normal(self._uniform(_BLOCK))
        return numbers

    def _one(self) -> float:
        if self._second is not None:
            number, self._second = self._second, None
            return number
        angle, radius = (self._precise() for _ in range(2))
        angle, radius = 2 * math.pi * angle, math.sqrt(-2 * math.log1p(-radius))
        self._second = radius * math.sin(angle)
        return radius * math.cos(angle)

    def _uniform(self, size: int) -> Array:
        """float32 of 24 bits from 0 to 1."""
        return (self._words(size) & 0xFFFFFF).astype(np.float32) * np.float32(2**-24)

    def _precise(self) -> float:
        """A number of 53 bits from 0 to 1."""
        high, low = map(int, self._words(2))
        return ((high << 32 | low) & ((1 << 53) - 1)) * 2.0**-53

    def _words(self, size: int) -> Array:
        return self._bits.randint(0, 1 << 32, size, np.uint32)


def _normal(uniform: Array) -> Array:
    """Blocks of uniform numbers, float32 [16 n], as normal ones: each step is rounded to fp32, as torch rounds it."""
    blocks = uniform.reshape(-1, 2, _BLOCK // 2)
    radius = np.sqrt(np.float32(-2) * _rounded(np.log, np.float32(1) - blocks[:, 0]))
    angle = np.float32(2 * np.pi) * blocks[:, 1]
    return np.stack([radius * _rounded(np.cos, angle), radius * _rounded(np.sin, angle)], axis=1).reshape(-1)


def _rounded(function: np.ufunc, values: Array) -> Array:
    return np.asarray(function(values.astype(np.float64)), np.float32)


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

    def state(self) -> list[tuple[Any, float | None]]:
        """The state to come back to with :meth:`restore`."""
        return [each.state() for each in (*self._numbers, *self._variations)]

    def restore(self, state: Sequence[tuple[Any, float | None]]) -> None:
        """Draw the same again as after :meth:`state`, as often as that is asked for."""
        for numbers, own in zip((*self._numbers, *self._variations), state, strict=True):
            numbers.restore(own)

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
