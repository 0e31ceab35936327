"""Scores, masks and biases in any order: sums of them end, fuse where they can, and compute the same."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from support.small_graphs import feeds_for, load, operators, parse, run

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.providers import load_target
from sdort.rewrite.editor import Editor

ADDENDS = {
    "scores": "s1 = MatMul (q, t)",
    "scaled scores": "s2m = MatMul (q, places)  s2 = Mul (s2m, half)",
    "bias": "s3 = Neg (bias)",
    "mask": "s4 = Identity (mask)",
}
"""As relative positions have it: two products, a bias of heads and a mask of keys."""


ORDERS = [order for count in (3, 4) for order in permutations(range(1, 5), count)]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_any_order_of_what_is_added_to_scores(order: tuple[int, ...]) -> None:
    sums = [f"a{n} = Add ({f'a{n - 1}' if n > 1 else f's{order[0]}'}, s{order[n]})" for n in range(1, len(order))]
    used = "  ".join(line for number, line in enumerate(ADDENDS.values(), 1) if number in order)
    text = f"""g (float[2, 3, 5, 4] q, float[2, 3, 7, 4] k, float[2, 3, 4, 7] places, float[1, 3, 5, 7] bias,
        float[2, 1, 1, 7] mask, float[2, 3, 7, 4] v) => (float[a, b, c, d] y) <float half = {{0.5}}> {{
        t = Transpose <perm = [0, 1, 3, 2]> (k)  {used}  {"  ".join(sums)}
        p = Softmax <axis = -1> (a{len(sums)})  y = MatMul (p, v) }}"""
    model, proto = load(text, opset=18), parse(text, opset=18)
    feeds = feeds_for(proto, {})
    optimize_model(model, OptimizeOptions(load_target("cpu")))
    (found,), (wanted,) = run(model, feeds), run(proto, feeds)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    if order in ((1, 3, 4), (3, 1, 4), (1, 4, 3), (4, 1, 3)):
        assert operators(Editor(model))["com.microsoft.MultiHeadAttention"] == 1
