"""What inference computes of sizes is what ONNX gives, for numbers and for whatever a size turns out to be."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import pytest

from sdort.graph.symbolic import Dim, symbol
from sdort.rewrite.inference.elementwise import _arithmetic, _compare

H, W = symbol("h"), symbol("w")
DIMS: list[Dim] = [*range(-7, 8), H, H + 1, 2 * H, 3 * H + 2, -H, -2 * H - 1, H // 2, (H + 1) // 2, H - 1, H * W, W]
SIZES = [{"h": h, "w": w} for h, w in ((1, 1), (2, 5), (3, 4), (8, 3), (9, 9))]


def at(dim: Dim, sizes: dict[str, int]) -> int:
    return int(eval(str(dim), {}, sizes))


def quotient(a: int, b: int) -> int:
    """Rounded towards 0, as ONNX Runtime's."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": quotient,
    "Min": min,
    "Max": max,
}
COMPARISONS = {
    "Equal": operator.eq, "Less": operator.lt, "LessOrEqual": operator.le, "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
}  # fmt: skip


@pytest.mark.parametrize("op", ARITHMETIC)
def test_arithmetic_is_onnxs(op: str) -> None:
    known = 0
    for a, b in itertools.product(DIMS, DIMS):
        if op == "Div" and b == 0:
            continue
        found = _arithmetic(op, a, b)
        if found is None:
            continue
        for sizes in SIZES:
            left, right = at(a, sizes), at(b, sizes)
            if op == "Div" and right == 0:
                continue
            known += 1
            assert at(found, sizes) == ARITHMETIC[op](left, right), f"{op} {a}, {b} at {sizes}: {found}"
    assert known > 500


@pytest.mark.parametrize("op", COMPARISONS)
def test_comparisons_hold_for_all_sizes(op: str) -> None:
    known = 0
    for a, b in itertools.product(DIMS, DIMS):
        found = _compare(op, a, b)
        if found is None:
            continue
        known += 1
        assert {COMPARISONS[op](at(a, sizes), at(b, sizes)) for sizes in SIZES} == {bool(found)}, f"{op} {a}, {b}"
    assert known > 200
