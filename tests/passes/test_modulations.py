"""Modulations: one view before the Split of a projection, and the number that is added to a piece in its bias."""

from __future__ import annotations

import numpy as np
import pytest
from support.small_graphs import Array, Described, check_step, edit, operators

from sdort.graph.weights import Absent
from sdort.passes import modulations, tidy
from sdort.rewrite.editor import Editor

RNG = np.random.default_rng(5)
WEIGHTS: dict[str, Array] = {
    "w": RNG.standard_normal((4, 12)).astype(np.float32), "b": RNG.standard_normal(12).astype(np.float32),
    "b2": RNG.standard_normal((1, 12)).astype(np.float32), "row": RNG.standard_normal(4).astype(np.float32),
}  # fmt: skip
CONSTANTS = """<float one = {1.0}, float[1] two = {2.0}, int64[3] row3 = {0, 1, 4}, int64[4] rows4 = {0, 0, 1, 4},
int64[3] columns = {0, 4, 1}, int64[3] sizes = {2, 4, 6}, int64[3] wide = {0, 1, -1}, int64[2] plain = {0, 4}>"""
SIZES = {"B": 2, "S": 3}
SPLIT = "p, q, r = Split <axis = -1, num_outputs = 3> (m)"
VIEWS = "u = Reshape (p, row3)  v = Reshape (q, row3)  z = Reshape (r, row3)"
ADALN = "s = Add (u, one)  n = Mul (x, s)  o = Add (n, v)  y = Mul (o, z)"


def weights(text: str) -> dict[str, Array]:
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return {name: values for name, values in WEIGHTS.items() if name in words}


def graph(body: str, more: str = "") -> str:
    return f"g (float[B, S, 4] x, float[B, 4] t{more}) => (float[] y) {CONSTANTS} {{ {body} }}"


def whole(editor: Editor) -> None:
    tidy.run(editor, tidy.BEFORE_FUSIONS)


@pytest.mark.parametrize("linear", ["m = Gemm (t, w, b)", "h = MatMul (t, w)  m = Add (h, b)"])
@pytest.mark.parametrize("number", ["Add (u, one)", "Add (one, u)", "Add (u, two)"])
def test_a_modulation_is_a_split_a_product_and_a_sum(linear: str, number: str) -> None:
    text = graph(f"{linear}  {SPLIT}  {VIEWS}  {ADALN.replace('Add (u, one)', number)}")
    left = check_step(text, whole, SIZES, weights(text), rtol=1e-6)
    product = {"Gemm": 1} if "Gemm" in linear else {"MatMul": 1}
    assert left == {**product, "Split": 1, "Reshape": 1, "Mul": 2, "Add": 1 if "Gemm" in linear else 2}


def test_pieces_of_several_sizes_get_their_axis_together() -> None:
    body = "m = Gemm (t, w, b)  p, q, r = Split <axis = 1> (m, sizes)  u = Reshape (p, wide)  v = Reshape (q, wide)"
    text = graph(f"{body}  z = Reshape (r, wide)  y = Concat <axis = 2> (u, x2, v, z)", ", float[B, 1, 4] x2")
    assert check_step(text, whole, SIZES, weights(text), rtol=1e-6) == {
        "Concat": 1, "Gemm": 1, "Reshape": 1, "Split": 1,
    }  # fmt: skip


def test_what_is_added_before_the_view_is_in_the_bias_too() -> None:
    text = graph(f"m = Gemm (t, w, b)  {SPLIT}  a = Add (p, one)  {VIEWS.replace('(p', '(a')}  {ADALN}".replace(
        "s = Add (u, one)  n = Mul (x, s)", "n = Mul (x, u)"))  # fmt: skip
    left = check_step(text, whole, SIZES, weights(text), rtol=1e-6)
    assert left == {"Gemm": 1, "Split": 1, "Reshape": 1, "Mul": 2, "Add": 1}


def test_what_is_added_to_all_of_a_linear_is_in_its_bias() -> None:
    text = graph("m = Gemm (t, w, b)  s = Add (m, one)  y = Neg (s)")
    assert check_step(text, whole, SIZES, weights(text), rtol=1e-6) == {"Gemm": 1, "Neg": 1}


LINEAR = "m = Gemm (t, w, b)"
STAY = {
    "a piece that is read elsewhere": f"{LINEAR}  {SPLIT}  {VIEWS}  s = Add (u, one)  k = Mul (s, u)  n = Mul (x, k)  "
    "o = Add (n, v)  y = Mul (o, z)",
    "a row that is added": f"{LINEAR}  {SPLIT}  {VIEWS}  {ADALN.replace('one', 'row')}",
    "a bias times a number": f"m = Gemm <beta = 0.5> (t, w, b)  {SPLIT}  {VIEWS}  {ADALN}",
    "no bias": f"m = MatMul (t, w)  {SPLIT}  {VIEWS}  {ADALN}",
    "a bias of two axes": f"m = Gemm (t, w, b2)  {SPLIT}  {VIEWS}  {ADALN}",
    "a bias that is computed": f"k = Exp (f)  m = Gemm (t, w, k)  {SPLIT}  {VIEWS}  {ADALN}",
    "a Linear that is read elsewhere": f"{LINEAR}  {SPLIT}  {VIEWS}  s = Add (u, one)  n = Mul (x, s)  o = Add (n, v)  "
    "k = Mul (o, z)  h = ReduceSum (m)  y = Mul (k, h)",
    "another function between": f"{LINEAR}  {SPLIT}  g = Sigmoid (p)  {VIEWS.replace('(p', '(g')}  {ADALN}",
}  # fmt: skip


@pytest.mark.parametrize("body", STAY.values(), ids=STAY)
def test_other_sums_stay(body: str) -> None:
    text = graph(body, ", float[12] f")
    before = operators(edit(text, weights(text)))["Add"]
    assert check_step(text, whole, SIZES, weights(text), rtol=1e-6)["Add"] == before


APART = {
    "another axis": f"{LINEAR}  {SPLIT}  u = Reshape (p, columns)  v = Reshape (q, columns)  y = Sub (u, v)",
    "a piece that is read as it is": f"{LINEAR}  {SPLIT}  u = Reshape (p, row3)  v = Reshape (q, row3)  "
    "k = Sub (u, v)  h = ReduceSum (r)  n = Exp (r)  l = Reshape (n, row3)  y = Mul (k, l)",
    "one view": f"{LINEAR}  {SPLIT}  y = Reshape (p, row3)",
    "another axis of the Split": "p, q, r = Split <axis = 1, num_outputs = 3> (x)  a = Reshape (p, plain)  "
    "u = Reshape (q, plain)  y = Sub (a, u)",
}  # fmt: skip


@pytest.mark.parametrize("body", APART.values(), ids=APART)
def test_other_views_stay(body: str) -> None:
    text = graph(body)
    editor = edit(text, weights(text))
    assert not any(modulations._view_before_split(editor, node) for node in list(editor.graph.nodes))
    assert check_step(text, whole, SIZES, weights(text), rtol=1e-6)["Split"] == 1


def test_a_bias_that_is_not_at_hand_is_left() -> None:
    """A template has no weights."""
    editor = edit(
        graph("m = Gemm (t, w, b)  y = Add (m, one)"),
        {"w": Described([4, 4], np.float32), "b": Absent("b", [4], np.float32)},
    )
    whole(editor)
    assert operators(editor) == {"Add": 1, "Gemm": 1}
