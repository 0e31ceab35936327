"""Attention's kernels on the four simulated machines, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import FORMS, Case, close, make
from kernel_cases import Guarded, simulate
from native import MACHINES

DTYPES = [np.float32, np.float16]
machines = pytest.mark.parametrize("machine", MACHINES)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def check(machine: str, case: Case, form: str = "apart") -> int:
    """Run every variant twice; how many there are."""
    inputs = case.inputs(form)
    count = 0
    while True:
        results = []
        for _ in range(2):
            y = Guarded(case.output_shape, case.q.dtype)
            if not simulate(machine, "simulate_attention", case.problem(inputs, form, y.pointer), case.q.dtype, count):
                return count
            results.append(y.check())
        assert np.array_equal(results[0], results[1])
        close(results[0], case, rounded_weights=case.q.dtype == np.float16)
        count += 1


@machines
@dtypes
@pytest.mark.parametrize("form", FORMS)
def test_forms(machine: str, dtype: Any, form: str) -> None:
    assert check(machine, make(dtype, 2, 19, 19, 2, 40, bias=True), form)


@machines
@dtypes
@pytest.mark.parametrize(
    ("queries", "keys", "size", "value_size"),
    [(40, 77, 4, 4), (33, 1, 16, 16), (5, 70, 72, 20), (20, 65, 200, 200), (2, 66, 24, 520)],
)
def test_any_size(machine: str, dtype: Any, queries: int, keys: int, size: int, value_size: int) -> None:
    assert check(machine, make(dtype, 1, queries, keys, 2, size, value_size=value_size))


@machines
@dtypes
@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (3, 70), (70, 3)])
def test_causal(machine: str, dtype: Any, queries: int, keys: int) -> None:
    assert check(machine, make(dtype, 1, queries, keys, 2, 8, bias=True, causal=True))


@machines
@dtypes
@pytest.mark.parametrize("spread", [30.0, 1e-3])
def test_scores_far_beyond_the_range_of_exp(machine: str, dtype: Any, spread: float) -> None:
    assert check(machine, make(dtype, 1, 35, 150, 1, 64, spread=spread, scale=1.0))
