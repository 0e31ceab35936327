"""Seconds of phases: each without those inside of it, of the thread that counts alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sdort.machine import phases
from sdort.machine.phases import counted, phase


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(phases, "time", made)
    return made


@pytest.mark.parametrize("seed", range(8))
def test_phases_add_up_to_the_time_in_any_of_them(seed: int, clock: Clock) -> None:
    """Random nested blocks, against the seconds that each name had the innermost block."""
    rng = np.random.default_rng(seed)
    expected: dict[str, float] = {}

    def work(names: list[str]) -> None:
        for _ in range(rng.integers(1, 4)):
            seconds = float(rng.integers(0, 9))
            clock.now += seconds
            if names:
                expected[names[-1]] += seconds
            if len(names) < 4 and rng.random() < 0.7:
                name = str(rng.choice(["a", "b", "c"]))
                expected.setdefault(name, 0.0)
                with phase(name):
                    work([*names, name])

    with counted() as found:
        work([])
    assert found.seconds == expected
    assert list(found.seconds) == list(expected)


def test_a_phase_that_fails_ends(clock: Clock) -> None:
    def fail() -> None:
        with phase("inside"):
            clock.now += 2
            raise ValueError("bad")

    with counted() as found, phase("around"):
        with pytest.raises(ValueError, match="bad"):
            fail()
        clock.now += 3
    assert found.seconds == {"around": 3, "inside": 2}


def test_nobody_counts_outside_and_in_other_threads(clock: Clock) -> None:
    def inside() -> None:
        with phase("thread"):
            clock.now += 5

    with phase("before"):
        clock.now += 1
    with counted() as found, phase("waiting"), ThreadPoolExecutor(1) as pool:
        pool.submit(inside).result()
    with counted(found), phase("later"):
        clock.now += 7
    with phase("after"):
        clock.now += 1
    assert found.seconds == {"waiting": 5, "later": 7}
