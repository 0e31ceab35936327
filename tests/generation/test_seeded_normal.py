"""The noise of a seed is torch's: diffusers draws the same image from it."""

from __future__ import annotations

import sys
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch

from sdort.generation.schedules.image_noise import ImageSeed, NoiseSource, SeededNormal
from sdort.samplers.scheduler_names import CLASSES

ROUNDINGS = 4e-6
"""torch's own numbers with and without AVX2 are as far as 2e-6 from one another."""


@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**32 + 7, 2**63 - 1])
def test_draws_are_those_of_torch_one_after_the_other(seed: int) -> None:
    """Above and below 16 numbers, which torch draws in two ways: a small draw keeps half a pair for the next."""
    numbers, generator = SeededNormal(seed), torch.Generator().manual_seed(seed)
    for shape in [(4, 8, 8), (3,), (4, 9, 13), (5,), (16,), (1,), (17,), (31,), (2, 2), (4, 64, 64)]:
        wanted = torch.randn(shape, generator=generator).numpy()
        np.testing.assert_allclose(numbers.draw(shape), wanted, rtol=0, atol=ROUNDINGS, err_msg=str(shape))


def test_the_ends_of_the_uniform_numbers_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = SeededNormal(0)
    for word in (0, 0xFFFFFF, 0xFFFFFFFF):
        monkeypatch.setattr(numbers, "_words", lambda size, word=word: np.full(size, word, np.uint32))
        assert np.isfinite(numbers.draw((16,))).all()
        assert np.isfinite(numbers.draw((3,))).all()


def test_a_state_is_restored_as_often_as_asked() -> None:
    source = NoiseSource([ImageSeed(1, 5), ImageSeed(2, 6)], 0.3)
    source.draw((3,))  # leaves the second of a pair
    state = source.state()
    first = [source.first((4, 5, 5)), source.draw((3,))]
    for _ in range(2):
        source.restore(state)
        for before, again in zip(first, [source.first((4, 5, 5)), source.draw((3,))], strict=True):
            np.testing.assert_array_equal(before, again)
    np.testing.assert_array_equal(first[1][1:], _alone(2))


def _alone(seed: int) -> Any:
    """What an image's seed gives without others beside it."""
    source = NoiseSource([ImageSeed(seed)])
    source.draw((3,))
    source.draw((4, 5, 5))
    return source.draw((3,))


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_schedulers_draw_where_sdort_gives_them_noise(name: str) -> None:
    import diffusers

    if name == "LMSDiscreteScheduler":
        pytest.importorskip("scipy")
    scheduler = getattr(diffusers, name)
    draws = "generator" in signature(scheduler.step).parameters
    assert draws == hasattr(sys.modules[scheduler.__module__], "randn_tensor")
