"""The one error measure: against numpy's definitions, whatever the size, and where the reference is constant."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sdort.graph import pieces
from sdort.workload.judgement import magnitude, measure_errors, standard_deviation

RNG = np.random.default_rng(3)


def test_errors_of_known_arrays() -> None:
    found = measure_errors(np.array([1.0, 2.0, 3.0, 8.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert (found.largest, found.mean) == (4, 1)
    deviation = math.sqrt(1.25)
    assert [found.largest_share, found.mean_share] == pytest.approx([4 / deviation, 1 / deviation])
    assert found.cosine == pytest.approx((1 + 4 + 9 + 32) / math.sqrt(78 * 30))
    assert found.largest_relative == pytest.approx(4 / (deviation + 4))
    assert measure_errors(np.zeros(3), np.zeros(3)).cosine == 1
    assert measure_errors(np.zeros(3), np.ones(3)).cosine == 0


def test_shares_are_of_the_standard_deviation() -> None:
    # The reference's deviation is 2; the differences are 0 and 3.
    found = measure_errors(np.array([0.0, 1.0]), np.array([0.0, 4.0]))
    assert (found.largest_share, found.mean_share) == (1.5, 0.75)


@pytest.mark.parametrize(("constant", "scale"), [(1.0, 1.0), (0.0, 1.0), (-4.0, 4.0), (0.1, 0.1)])
def test_shares_of_a_constant_are_of_its_magnitude(constant: float, scale: float) -> None:
    """The standard deviation of 0.1, 0.1, ... in fp64 is 1e-17 and not 0, as the mean is rounded."""
    reference = np.full(1000, constant)
    found = measure_errors(reference + np.where(np.arange(1000) % 2, 0.5, 0.0), reference)
    assert (found.largest_share, found.mean_share) == pytest.approx((0.5 / scale, 0.25 / scale))


def test_pieces_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = RNG.normal(3, 2, (7, 11, 5)).astype(np.float16)
    value = (reference.astype(np.float64) + RNG.normal(0, 0.1, reference.shape)).transpose(2, 0, 1)
    reference = reference.transpose(2, 0, 1)  # not in row-major order
    wide, apart = reference.astype(np.float64), np.abs(value - reference.astype(np.float64))
    monkeypatch.setattr(pieces, "PIECE", 32)
    found = measure_errors(value, reference)
    assert standard_deviation(reference) == pytest.approx(wide.std())
    assert (found.largest, found.mean) == pytest.approx((apart.max(), apart.mean()))
    assert found.largest_relative == pytest.approx((apart / (wide.std() + np.abs(wide))).max())
    angle = (value * wide).sum() / (np.linalg.norm(value) * np.linalg.norm(wide))
    assert found.cosine == pytest.approx(angle, rel=1e-12)
    assert magnitude(-reference) == np.abs(wide).max()


def test_a_limit_clips_both() -> None:
    found = measure_errors(np.array([0.0, -np.inf, 2.0]), np.array([0.0, -3.4e38, 1.0], np.float32), limit=10)
    clipped = measure_errors(np.array([0.0, -10.0, 2.0]), np.array([0.0, -10.0, 1.0]))
    assert found == clipped
    assert found.largest == 1


def test_what_has_no_errors_is_refused() -> None:
    for value, reference in ((np.zeros(3), np.zeros((3, 1))), (np.zeros(0), np.zeros(0))):
        with pytest.raises(ValueError, match="no errors of"):
            measure_errors(value, reference)
