"""Normal random numbers of a seed, as ``torch.randn`` draws them from a generator of the CPU, without torch.

The bits are those of MT19937, which NumPy has too (https://doi.org/10.1145/272991.272995); pairs of uniform numbers
become pairs of normal ones (Box and Muller, https://doi.org/10.1214/aoms/1177706645). Which number is whose pair, and
in which precision, is torch's ``aten/src/ATen/native/cpu/DistributionTemplates.h``, for processors with AVX2. Its
logarithms and cosines are approximations, others with and without AVX2; here they are rounded correctly, so that a
seed's numbers are the same on every machine, and torch's but for roundings.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np

from sdort.graph.signature import Array

_BLOCK = 16
"""Numbers that torch makes at once: the radii of the first half are those of the second."""


class SeededNormal:
    """Standard normal numbers in fp32, one draw after the other; a copy goes on by itself.

    Args:
        seed: of 64 bits, of which torch's MT19937 takes the lower 32.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.RandomState(seed & 0xFFFFFFFF)
        self._second: float | None = None
        """The other number of a pair of which a small draw took one."""

    def copy(self) -> SeededNormal:
        return copy.deepcopy(self)

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
