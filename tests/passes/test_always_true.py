"""Conditions that always hold leave the graph; what may be false stays."""

from __future__ import annotations

import pytest
from support.rules import run_simplify
from support.small_graphs import check_step

SIZES = {"B": 2, "S": 5, "H": 3}
WHERE = """g (int64[B, S] ids, float[1, H, S, S] x) => (float[] y)
<float low = {{-1e9}}, int64 least = {{{least}}}, int64 start = {{{start}}}, int64 step = {{1}}, int64[1] one = {{1}},
 int64[4] view = {{1, 1, -1, 1}}> {{
    length = Shape <start = 1> (ids)
    batch = Shape <start = 0, end = 1> (ids)
    count = Squeeze (length)
    places = Range (start, count, step)
    rows = Reshape (places, view)
    held = {compare} (rows, least)
    {brought}
    y = Where (condition, x, low)
}}"""
ALL = "all = Concat <axis = 0> (batch, one, length, length)  condition = Expand (held, all)"


def left(compare: str = "GreaterOrEqual", least: int = 0, start: int = 0, brought: str = ALL) -> set[str]:
    text = WHERE.format(compare=compare, least=least, start=start, brought=brought)
    return set(check_step(text, run_simplify, SIZES))


def test_a_place_is_never_below_the_first_one() -> None:
    assert left() == {"Shape", "Concat", "Expand"}
    assert left(brought="condition = Identity (held)") <= {"Identity"}


@pytest.mark.parametrize(
    ("compare", "least"), [("GreaterOrEqual", 1), ("Greater", 0), ("LessOrEqual", 0), ("Equal", 0)]
)
def test_what_may_be_false_stays(compare: str, least: int) -> None:
    assert "Where" in left(compare, least)


def test_a_result_that_is_larger_than_what_is_known_of_it_stays() -> None:
    text = "g (float[1, S] x, float[B, S] y) => (float[] z) <bool[1] held = {1}> { z = Where (held, x, y) }"
    assert set(check_step(text, run_simplify, SIZES)) == {"Where"}


def test_all_true_changes_nothing_that_is_joined_to_it() -> None:
    text = """g (float[B, S] x) => (bool[] y) <bool held = {1}, float zero = {0.0}> {
        c = Greater (x, zero)  a = And (held, c)  b = And (a, held)  y = Not (b) }"""
    assert set(check_step(text, run_simplify, SIZES)) == {"Greater", "Not"}
    kept = text.replace("{1}", "{0}")
    assert set(check_step(kept, run_simplify, SIZES, constant=True)) == {"Greater", "And", "Not"}
