"""Expressions of weights: equal where they are computed from the same bytes in the same way, and not else."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np

from sdort.graph.weights import (
    Absent,
    Cast,
    Combined,
    Concatenated,
    Dequantized,
    Inline,
    Reshaped,
    Scaled,
    Stored,
    Transposed,
    Weight,
    expression_key,
)

HELD = np.ones((2, 3), np.float32)
OTHER = HELD.copy()


def leaf(name: str = "a", offset: int = 0, dtype: str = "float32", shape: tuple[int, ...] = (2, 3)) -> Stored:
    return Stored(Path(name), offset, shape, dtype)


def different() -> list[Weight]:
    """Each differs from every other, most in one thing alone."""
    vector, narrow = leaf("s", shape=(3,)), leaf("i", dtype="int8")
    return [
        leaf(), leaf("b"), leaf(offset=24), leaf(dtype="int32"), leaf(shape=(3, 2)), leaf(shape=(6,)),
        Transposed(leaf(), (1, 0)), Transposed(leaf(), (0, 1)), Transposed(leaf("b"), (1, 0)),
        Transposed(leaf(shape=(3, 2)), (1, 0)), Reshaped(leaf(), (3, 2)), Reshaped(leaf(), (6,)),
        Cast(leaf(), "float16"), Cast(leaf(), "float64"), Cast(leaf(offset=24), "float16"),
        Scaled(leaf(), 2), Scaled(leaf(), 3), Concatenated([leaf(), leaf("b")], 0),
        Concatenated([leaf(), leaf("b")], 1),
        Concatenated([leaf("b"), leaf()], 0), Concatenated([leaf(), leaf("b"), leaf()], 0),
        Combined(leaf(), 0, [[1, 1]]), Combined(leaf(), 0, [[1, 2]]), Combined(leaf(), 1, [[1, 1, 1]]),
        Dequantized(narrow, vector, None, 1), Dequantized(narrow, vector, leaf("z", dtype="int8", shape=(3,)), 1),
        Dequantized(narrow, leaf("t", shape=(3,)), None, 1), Dequantized(narrow, leaf("s", shape=(1,)), None, 1),
        Dequantized(narrow, leaf("s", shape=(1,)), None, 0), Absent("p", (2, 3), "float32"),
        Absent("q", (2, 3), "float32"), Inline(HELD), Inline(OTHER),
    ]  # fmt: skip


def test_the_same_expression_has_the_same_key() -> None:
    for one, two in zip(different(), different(), strict=True):
        assert one is not two
        assert expression_key(one) == expression_key(two)
        assert hash(expression_key(one)) == hash(expression_key(two))


def test_others_have_another() -> None:
    keys = [expression_key(weight) for weight in different()]
    assert [pair for pair in combinations(range(len(keys)), 2) if keys[pair[0]] == keys[pair[1]]] == []
