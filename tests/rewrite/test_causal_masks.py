"""Causal masks by themselves: what a triangle is, at which lengths it is looked for, and of which sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import Array, edit

from sdort.graph.symbolic import Dim, symbol
from sdort.rewrite.causal_masks import (
    CLOSED,
    LARGEST_NUMBER,
    LENGTHS,
    _batch,
    _cone,
    _lengths,
    _lower_triangle,
    _size,
    is_causal,
)
from sdort.rewrite.editor import Editor

LOWEST = float(np.finfo(np.float32).min)


def triangle(size: int, closed: float = -np.inf, k: int = 0) -> Array:
    return np.where(np.tri(size, k=k, dtype=bool), np.float32(0), np.float32(closed)).astype(np.float32)


def changed(mask: Array, at: tuple[int, ...], value: float) -> Array:
    mask = mask.copy()
    mask[at] = value
    return mask


TRIANGLES: dict[str, tuple[Array, int, bool]] = {
    "infinite": (triangle(5), 5, True), "lowest": (triangle(5, LOWEST), 5, True), "1": (triangle(1), 1, True),
    "just closed": (triangle(5, CLOSED), 5, True), "not quite": (triangle(5, CLOSED * 0.99), 5, False),
    "positive": (triangle(5, -CLOSED), 5, False), "booleans": (np.tri(5, dtype=bool), 5, True),
    "inverted": (~np.tri(5, dtype=bool), 5, False), "in a batch": (np.stack([triangle(5)] * 3)[:, None], 5, True),
    "one of a batch": (changed(np.stack([triangle(5)] * 3), (1, 0, 4), 0), 5, False),
    "larger": (triangle(6), 5, False), "smaller": (triangle(4), 5, False), "rows": (triangle(5)[:4], 5, False),
    "columns": (triangle(5)[:, :4], 5, False), "upper": (triangle(5).T.copy(), 5, False),
    "strict": (triangle(5, k=-1), 5, False), "one more": (triangle(5, k=1), 5, False),
    "open that weighs": (changed(triangle(5), (3, 1), -1), 5, False),
    "a hole": (changed(triangle(5), (1, 3), 0), 5, False),
    "closed inside": (changed(triangle(5), (3, 1), -np.inf), 5, False), "vector": (triangle(5)[0], 5, False),
    "half": (triangle(5).astype(np.float16), 5, True), "whole numbers": (np.tri(5, dtype=np.int64), 5, False),
}  # fmt: skip


@pytest.mark.parametrize("name", TRIANGLES)
def test_a_triangle_is_open_below_and_closed_above(name: str) -> None:
    mask, size, causal = TRIANGLES[name]
    assert _lower_triangle(mask, size) is causal


@pytest.mark.parametrize(
    ("shape", "rows", "causal"),
    [((5, 5), 5, True), ((5, 5), symbol("S"), True), ((1, 1), 1, True), ((1, 1), symbol("S"), False),
     ((5, 5), 6, False), ((1, 1), 5, False)],
    ids=str,
)  # fmt: skip
def test_constant_masks(shape: tuple[int, int], rows: Dim, causal: bool) -> None:
    editor = edit("g (float[B, 4] x) => (float[B, 4] y) { y = Neg (x) }")
    assert is_causal(editor, gs.Constant("mask", triangle(shape[0])), rows) is causal


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_the_lengths_are_around_the_numbers_that_a_mask_is_computed_with(dtype: Any) -> None:
    def lengths(*numbers: float, shape: tuple[int, ...] | None = None) -> list[int] | None:
        values = np.array(numbers, dtype).reshape(shape or (len(numbers),))
        return _lengths([gs.Node("Add", "a", {}, [gs.Constant("c", values), gs.Variable("x")], [])])

    assert lengths() == lengths(0, 1, -1, 2, -2) == sorted(LENGTHS)
    assert lengths(3) == lengths(-3) == sorted({*LENGTHS, 2, 3, 4, 5})
    assert lengths(10, 50) == sorted({*LENGTHS, 9, 10, 11, 12, 49, 50, 51, 52})
    assert lengths(LARGEST_NUMBER) == sorted({*LENGTHS, *range(LARGEST_NUMBER - 1, LARGEST_NUMBER + 3)})
    assert lengths(LARGEST_NUMBER + 1) is None
    assert lengths(3, LARGEST_NUMBER + 1) is None
    assert lengths(-LARGEST_NUMBER - 1) == lengths(2**31) == sorted(LENGTHS)
    assert lengths(*[20] * 8) == sorted({*LENGTHS, 19, 20, 21, 22})
    assert lengths(*[20] * 9) == lengths(*[20] * 10, shape=(5, 2)) == sorted(LENGTHS)
    text = gs.Node("Add", "a", {}, [gs.Constant("c", np.array([True]))], [])
    assert _lengths([text]) == sorted(LENGTHS)


@pytest.mark.parametrize("sizes", [{"S": 5}, {"S": 5, "T": 3}, {}], ids=str)
def test_a_size_in_numbers(sizes: dict[str, int]) -> None:
    s, t = symbol("S"), symbol("T")
    worth: Callable[[str], int] = lambda name: sizes.get(name, 11)  # noqa: E731
    rows: list[tuple[Dim, int]] = [
        (7, 7), (s, worth("S")), (s + t, worth("S") + worth("T")), (3 * s * t - 2, 3 * worth("S") * worth("T") - 2),
        ((s + 1) // 2, (worth("S") + 1) // 2),
        (4 * ((s - t) // 3) + s, 4 * ((worth("S") - worth("T")) // 3) + worth("S")),
    ]  # fmt: skip
    for dim, wanted in rows:
        assert _size(dim, sizes, 11) == wanted, str(dim)


def test_the_batch_is_the_first_axis_of_the_first_input() -> None:
    def batch(inputs: str) -> dict[str, int]:
        return _batch(edit(f"g ({inputs}) => (float[] y) {{ y = Identity (x) }}"), 3)

    assert batch("float[N, S] x, float[B, C] k") == {str(symbol("N")): 3}
    assert batch("float[2, S] x, float[B, C] k") == {}
    assert batch("float x") == {}
    editor = edit("g () => (float[] y) <float c = {1.0}> { y = Identity (c) }")
    assert _batch(editor, 3) == {}


CONE = """
g (float[B, S] x, float[] d) => (float[] y) <float c = {1.0}, int64 one = {1}, int64[1] flat = {-1}, int64 zero = {0}> {
    s = Shape <start = 1> (x)
    n = Reshape (s, flat)
    m = Squeeze (n)
    r = Range (zero, m, one)
    e = Neg (r)
    f = Add (e, r)
    z = Mul (d, c)
    y = Add (z, z)
}"""


def test_what_a_mask_is_computed_from_is_cut_at_shapes() -> None:
    editor = edit(CONE)
    tensors = editor.graph.tensors()
    names = {name: _cone(tensors[name]) for name in ("f", "s", "z", "y", "x", "c")}
    cone = names["f"]
    assert cone is not None
    order = [node.outputs[0].name for node in cone]
    assert sorted(order) == sorted("snmref")
    assert all(order.index(a) < order.index(b) for a, b in ("sn", "nm", "mr", "re", "ef", "rf"))
    assert [node.op for node in names["s"] or ()] == ["Shape"]
    assert (names["z"], names["y"], names["x"]) == (None, None, None)  # data flows in
    assert names["c"] == []
    empty = gs.Node("Clip", "clip", {}, [tensors["e"], gs.Variable.empty()], [gs.Variable("w")])
    assert [node.op for node in _cone(empty.outputs[0]) or ()][-2:] == ["Neg", "Clip"]


MASK = """
g (float[{batch}, {rows}, 8] x{more}) => (float[] mask)
<int64 zero = {{0}}, int64 one = {{1}}, int64[1] col = {{1}}, int64[1] at = {{1}}, float open = {{0.0}},
float closed = {{{closed}}}, int64 limit = {{{limit}}}, int64[1] flat = {{-1}}> {{
    whole = Shape (x)
    n = Gather ({of}, {axis})
    r = Range (zero, n, one)
    {lines}
    column = Unsqueeze (r, col)
    k = {keys}
    b = {compare} ({first})
    mask = Where (b, {arms})
}}"""


def masked(**more: str) -> Editor:
    values = {
        "batch": "B", "rows": "S", "more": "", "closed": "-10000.0", "limit": "5000000000", "of": "whole",
        "axis": "one", "lines": "", "keys": "Identity (r)", "compare": "LessOrEqual", "first": "k, column",
        "arms": "open, closed",
    }  # fmt: skip
    return edit(MASK.format(**values | more))


@pytest.mark.parametrize(
    ("more", "causal"),
    [
        ({}, True), ({"closed": "-9999.0"}, False), ({"compare": "Less"}, False), ({"first": "column, k"}, False),
        ({"arms": "closed, open"}, False), ({"compare": "Greater", "arms": "closed, open"}, True),
        ({"rows": "7"}, True), ({"axis": "zero"}, False), ({"keys": "Add (r, one)"}, False),
        ({"keys": "Min (r, limit)"}, True), ({"keys": "Min (r, limit)", "limit": "100"}, False),
        ({"keys": "Max (r, limit)", "limit": "40"}, False), ({"limit": "5000", "keys": "Min (r, limit)"}, False),
        ({"more": ", int64[K] d", "keys": "Identity (d)"}, False),
    ],
    ids=str,
)  # fmt: skip
def test_masks_that_are_computed_from_sizes(more: dict[str, str], causal: bool) -> None:
    editor = masked(**more)
    rows = editor.shape(editor.graph.inputs[0])
    assert rows is not None
    assert is_causal(editor, editor.graph.outputs[0], rows[1]) is causal


KEYS = "w = Shape <end = 1> (d)  t = Squeeze (w)  "
SHIFTS = {
    "more keys than queries": "p = Sub (t, n)  s = Max (p, zero)", "fewer": "p = Sub (n, t)  s = Max (p, zero)",
    "as many": "p = Equal (t, n)  s = Cast <to = 7> (p)", "any": "s = Sub (t, n)",
}  # fmt: skip


@pytest.mark.parametrize("name", SHIFTS)
def test_a_mask_that_follows_another_size_is_not_causal(name: str) -> None:
    """As with keys of earlier tokens: where the other size is another, the triangle is shifted."""
    for keys, causal in (("Add (r, s)", False), ("Identity (r)", True)):
        editor = masked(more=", float[T] d", lines=KEYS + SHIFTS[name], keys=keys)
        assert is_causal(editor, editor.graph.outputs[0], symbol("S")) is causal


def test_the_batch_is_no_size_of_a_mask_that_is_not_causal() -> None:
    """One batch is neither 1 nor the length; a mask that has it as an axis stays one."""
    editor = edit("""
        g (float[B, S, 8] x) => (float[] mask) <int64[1] two = {2}, int64 zero = {0}, int64 one = {1}, float o = {0.0},
        float c = {-10000.0}, int64[1] col = {1}> {
            w = Shape (x)  n = Gather (w, one)  r = Range (zero, n, one)  k = Unsqueeze (r, col)  b = LessOrEqual (r, k)
            m = Where (b, o, c)  e = Shape <end = 1> (x)  l = Shape <start = 1, end = 2> (x)
            t = Concat <axis = 0> (e, l, l)  mask = Expand (m, t)
        }""")
    assert is_causal(editor, editor.graph.outputs[0], symbol("S"))
    (shape,) = [node for node in editor.graph.nodes if node.op == "Concat"]
    assert not is_causal(editor, shape.outputs[0], symbol("S"))


def test_no_mask_is_not_causal() -> None:
    editor = masked()
    assert not is_causal(editor, gs.Variable.empty(), symbol("S"))
    assert not is_causal(editor, editor.graph.outputs[0], symbol("T"))
