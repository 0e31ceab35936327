"""Random cases of kernels. Each is made from one seed, which its test's name tells: ``seed=17-...``.

Every run draws the same cases. ``SDORT_TEST_SEED=17`` makes 17 the first seed, so a case that failed comes first;
``SDORT_TEST_DRAWS=20`` draws twenty times as many, for a search by hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]
Generator = np.random.Generator

FIRST = int(os.environ.get("SDORT_TEST_SEED", "0"))
FACTOR = int(os.environ.get("SDORT_TEST_DRAWS", "1"))


def drawn(count: int, draw: Callable[[Generator, int], Any]) -> pytest.MarkDecorator:
    """Parametrizes a test's argument ``case`` with ``draw(rng, seed)`` for ``count`` seeds in a row."""
    seeds = range(FIRST, FIRST + count * FACTOR)
    cases = [draw(np.random.default_rng(seed), seed) for seed in seeds]
    names = [f"seed={seed}-{case}" for seed, case in zip(seeds, cases, strict=True)]
    return pytest.mark.parametrize("case", cases, ids=names)


def chance(rng: Generator, probability: float = 0.5) -> bool:
    return bool(rng.random() < probability)


def near(rng: Generator, blocks: tuple[int, ...], most: int) -> int:
    """A multiple of one of ``blocks``, one less or one more; from 1 to ``most``."""
    block = int(rng.choice(blocks))
    size = block * int(rng.integers(1, max(1, most // block) + 1)) + int(rng.integers(-1, 2))
    return min(max(size, 1), most)


def epsilon_and_spread(rng: Generator) -> tuple[float, float]:
    """An epsilon from 1e-10 to 1, and a standard deviation for values that are normalized with it.

    In three of four cases the variance is a tenth to ten times epsilon, so the result depends on epsilon by as much as
    on the values; elsewhere it is up to a million, which float16's sums of squares cannot hold.
    """
    epsilon = float(np.float32(10.0 ** rng.uniform(-10, 0)))
    if chance(rng, 0.75):
        return epsilon, epsilon**0.5 * 10.0 ** rng.uniform(-0.5, 0.5)
    return epsilon, 10.0 ** rng.uniform(-3, 3)


def unit_of(spread: float) -> float:
    """The power of two that is ``spread`` or below it."""
    return float(2.0 ** np.floor(np.log2(spread)))


def grid(rng: Generator, shape: tuple[int, ...], dtype: Any, spread: float, mean: float = 0.0) -> Array:
    """Normally distributed multiples of a 128th of ``unit_of(spread)``, rounded to ``dtype``.

    Float32 adds several such tensors without any rounding while ``mean`` is below a thousand times ``spread``, so a
    sum's rounding to float16 is the same whatever the order of the additions.
    """
    unit = unit_of(spread) / 128
    return np.asarray((np.round((rng.normal(size=shape) * spread + mean) / unit) * unit).astype(dtype))


def name_of(dtype: Any) -> str:
    return "fp16" if dtype is np.float16 else "fp32"
