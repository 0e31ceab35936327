"""Statistics of times, held to exact values: the bootstrap of a median has a closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sdort.benchmark import timing
from sdort.benchmark.regression import FASTER, SAME, SLOWER, ratio_interval
from sdort.benchmark.timing import LEAST, RESAMPLES, interleave, interval, median_interval, ratio, statistics

COUNT = 401


def exact_rank(share: float) -> int:
    """The rank, from 1, of the value below which the median of ``COUNT`` draws with replacement is with a probability
    of ``share``: the median is at most the k-th value if more than half of the draws are, each with probability k / n.
    """
    for rank in range(1, COUNT + 1):
        each = rank / COUNT
        terms = (
            math.comb(COUNT, hits) * each**hits * (1 - each) ** (COUNT - hits)
            for hits in range((COUNT + 1) // 2, COUNT + 1)
        )
        if sum(terms) >= share:
            return rank
    raise AssertionError(share)


SPREAD = 3 * math.sqrt(0.025 * 0.975 / RESAMPLES)
"""Three standard deviations of the share of resamples below the true bound. 90 % would be 0.025 away, 99 % 0.02."""
LOW = exact_rank(0.025 - SPREAD), exact_rank(0.025 + SPREAD)


def assert_is_95_percent(low: float, high: float) -> None:
    assert LOW[0] <= low <= LOW[1]
    assert LOW[0] <= COUNT + 1 - high <= LOW[1]


def test_the_bounds_of_other_intervals_lie_outside() -> None:
    assert exact_rank(0.05) > LOW[1]
    assert exact_rank(0.005) < LOW[0]


@pytest.mark.parametrize("seed", range(3))
def test_an_interval_of_a_median_is_one_of_95_percent(seed: int) -> None:
    ranks = np.random.default_rng(seed).permutation(np.arange(1.0, COUNT + 1))
    found = median_interval(ranks)
    assert found is not None
    assert_is_95_percent(*found)
    summary = statistics(ranks.tolist())
    assert (summary.low, summary.high) == found
    assert (summary.median, summary.mean, summary.minimum, summary.repeat) == (201, 201, 1, COUNT)
    assert summary.p90 == pytest.approx(1 + 0.9 * 400)


def test_a_ratio_of_two_runs_has_the_interval_of_the_one_that_varies() -> None:
    ranks = [float(rank) for rank in range(1, COUNT + 1)]
    middle, low, high = ratio_interval([2.0] * COUNT, ranks)
    assert middle == 201 / 2
    assert_is_95_percent(2 * low, 2 * high)
    middle, low, high = ratio_interval(ranks, [2.0] * COUNT)
    assert middle == 2 / 201
    assert_is_95_percent(2 / high, 2 / low)


def test_a_speedup_is_that_of_pairs() -> None:
    """Of a machine that becomes slower meanwhile, most pairs are 2, and the medians 24 and 4."""
    found = ratio([2.0, 4.0, 30.0, 24.0, 200.0], [1.0, 2.0, 4.0, 8.0, 100.0])
    assert (found.median, found.low, found.high) == (2, 2, 7.5)
    assert ratio([4.0] * 4, [2.0] * 4) == timing.Ratio(2, None, None)


def test_fewer_calls_than_it_takes_have_no_interval() -> None:
    assert LEAST == 5
    few = statistics([3.0, 1.0, 2.0, 4.0])
    assert (few.median, few.low, few.high, few.minimum) == (2.5, None, None, 1)
    assert statistics([3.0, 1.0, 2.0, 4.0, 5.0]).low is not None


def test_an_interval_takes_as_much_from_either_end() -> None:
    low, high = interval(np.arange(1001.0))
    assert (low, high) == pytest.approx((25, 975))


@pytest.mark.parametrize(
    ("now", "verdict", "sure"),
    [(110.0, SAME, True), (110.1, SLOWER, True), (100 / 1.1, SAME, True), (90.8, FASTER, True), (100.0, SAME, True)],
)
def test_a_margin_is_reached_before_it_is_passed(now: float, verdict: str, sure: bool) -> None:
    from sdort.benchmark.regression import UNSURE, compare_rows
    from sdort.benchmark.rows import Row

    def row(times: Sequence[float]) -> Row:
        return Row(
            pipeline="fast", engine="onnxruntime", provider="cpu", device="a CPU", component="unet", batch_size=1,
            height=64, width=64, steps=None, dtype="float16", model_hash="0", versions={}, times_ms=list(times),
            median_ms=float(np.median(times)),
        )  # fmt: skip

    found = compare_rows(row([100.0] * 5), row([now] * 5), 0.1)
    assert found.verdict == verdict
    assert (found.reason != UNSURE) == sure


def test_calls_take_turns_and_the_order_turns_round(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    calls: list[Callable[[], None]] = [lambda: called.append("a"), lambda: called.append("b")]
    numbers = iter(range(6))
    monkeypatch.setattr(timing, "clock", lambda call: (call(), float(next(numbers)))[1])
    advanced: list[float] = []
    assert interleave(calls, 3, advanced.append) == [[0, 3, 4], [1, 2, 5]]
    assert called == list("abbaab")
    assert advanced == [1] * 6


def test_a_clock_counts_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 10.25])
    monkeypatch.setattr("sdort.benchmark.timing.time.perf_counter", lambda: next(times))
    assert timing.clock(lambda: None) == 250
