"""What a mask may hold, operator by operator: which hand an infinity on, and which are looked through."""

from __future__ import annotations

import numpy as np
import pytest
from support.small_graphs import Array, edit

from sdort.rewrite.masks import Extremes, closes_keys, cone, extremes

CONSTANTS = """<int64[1] axis = {0}, int64[2] shape = {7, 5}, int64[3] wide = {2, 5, 7}, int64[1] zero = {0},
int64[1] two = {2}, int64[2] twice = {2, 1}, int64[2] places = {1, 0}, int64[4] pads = {0, 1, 2, 0}, float one = {1.0},
int64[2, 1] rows = {1, 0}, int64[2, 7] columns = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1}>"""
MOVES = {
    "Reshape": "y = Reshape (m, shape)", "Unsqueeze": "y = Unsqueeze (m, axis)", "Flatten": "y = Flatten (m)",
    "Squeeze": "u = Unsqueeze (m, axis)  y = Squeeze (u, axis)", "Identity": "y = Identity (m)",
    "Expand": "y = Expand (m, wide)", "Tile": "y = Tile (m, twice)", "Slice": "y = Slice (m, zero, two)",
    "Gather": "y = Gather (m, places)", "GatherND": "y = GatherND (m, rows)",
    "GatherElements": "y = GatherElements (m, columns)", "Transpose": "y = Transpose (m)",
    "Concat": "y = Concat <axis = 0> (fine, m)", "Cast": "y = Cast <to = 10> (m)", "CastLike": "y = CastLike (m, fine)",
    "Pad": "y = Pad (m, pads)", "Trilu": "y = Trilu (m)", "ScatterND": "y = ScatterND (m, rows, updates)",
    "ScatterND of updates": "y = ScatterND (fine, rows, m2)",
    "ScatterElements": "y = ScatterElements (fine, columns, m2)", "Split": "y, z = Split <num_outputs = 2> (m)",
    "Add": "y = Add (fine, m)", "Sub": "y = Sub (fine, m)", "Neg": "y = Neg (m)", "Where": "y = Where (open, fine, m)",
    "Where of the other": "y = Where (open, m, fine)", "Min": "y = Min (fine, m)", "Max": "y = Max (m, fine)",
    "Clip": "y = Clip (m, , one)", "Sum": "y = Sum (fine, m)",
}  # fmt: skip
STOPS = {
    **{op: f"y = {op} (m)" for op in ("Exp", "Softmax", "Sigmoid", "Relu", "Abs", "Tanh")},
    "MatMul": "y = MatMul (m, square)", "ReduceMax": "y = ReduceMax <keepdims = 1> (m)", "Mul": "y = Mul (m, fine)",
    "Div": "y = Div (m, fine)", "another domain's": "y = com.microsoft.Gelu (m)",
    "another domain's move": "y = com.microsoft.Pad (m, pads)",
    "booleans": "b = Cast <to = 9> (m)  y = Cast <to = 1> (b)",
}  # fmt: skip
FINE = np.full((5, 7), 0.25, np.float32)


def weights_of(body: str, **values: Array) -> dict[str, Array]:
    all_ = {"fine": FINE, "square": np.eye(7, dtype=np.float32), **values}
    return {name: value for name, value in all_.items() if f"{name})" in body or f"{name}," in body}


def found(body: str, given: str, **values: Array) -> Extremes:
    text = f"g (bool[5, 7] open, float[2, 7] updates{given}) => (float[] y) {CONSTANTS} {{ {body} }}"
    editor = edit(text, weights_of(body, **values))
    return extremes(editor, editor.graph.outputs[0])


@pytest.mark.parametrize("body", MOVES.values(), ids=MOVES)
def test_what_hands_an_infinity_on(body: str) -> None:
    """Of an input, which may hold one, and of a constant that does or is beyond fp16."""
    name, shape = ("m2", (2, 7)) if "m2" in body else ("m", (5, 7))
    closed = np.where(np.arange(14).reshape(2, 7) % 2 if name == "m2" else np.tri(5, 7), 0, 1).astype(np.float32)
    others = "updates" in body
    assert found(body, f", float[{shape[0]}, 7] {name}") == Extremes(infinite=True)
    assert found(body, "", **{name: (closed * -1e4).astype(np.float32)}) == Extremes(infinite=others)
    assert found(body, "", **{name: (closed * -7e4).astype(np.float32)}) == Extremes(others, beyond_half=True)
    with np.errstate(invalid="ignore"):
        infinite = np.where(closed, np.float32(-np.inf), np.float32(0))
    assert found(body, "", **{name: infinite}) == Extremes(infinite=True)


@pytest.mark.parametrize("body", STOPS.values(), ids=STOPS)
def test_what_does_not(body: str) -> None:
    assert found(body, ", float[5, 7] m") == Extremes()


@pytest.mark.parametrize("operator", ["Mul", "Div"])
def test_constants_are_seen_through_scales(operator: str) -> None:
    assert found(f"y = {operator} (m, fine)", "", m=np.full((5, 7), -7e4, np.float32)) == Extremes(beyond_half=True)
    infinite = np.array([[-np.inf]], np.float32)
    assert found(f"y = {operator} (m, fine)", "", m=infinite) == Extremes(infinite=True)


def test_the_borders() -> None:
    for value, beyond in ((65504, False), (65505, True), (-65504, False), (-65505, True)):
        assert found("y = Identity (m)", "", m=np.array(value, np.float32)) == Extremes(beyond_half=beyond)
    half = float(np.finfo(np.float32).max) / 2
    for operator, infinite in (("Add", True), ("Sub", True), ("Sum", True), ("Max", False), ("Where", False)):
        arguments = "open, m, fine" if operator == "Where" else "m, fine"
        for size, much in ((half * 1.01, True), (half * 0.99, False)):
            wanted = Extremes(infinite and much, True)
            assert found(f"y = {operator} ({arguments})", "", m=np.array(-size, np.float32)) == wanted


def test_a_filled_tensor_is_its_value() -> None:
    fill = "s = Shape (open)  f = ConstantOfShape {}(s)  y = Where (open, f, fine)"
    value = "<value: tensor = float[1] {{{}}}> "
    assert found(fill.format(""), "") == Extremes()
    assert found(fill.format(value.format("-100000.0")), "") == Extremes(beyond_half=True)


def test_the_cone_is_what_is_looked_through() -> None:
    body = """a = Mul (m, fine)  b = Exp (m)  c = Where (open, a, b)  i = Cast <to = 9> (c)  j = Cast <to = 1> (i)
        d = Add (c, j)  y = Neg (d)"""
    text = f"g (bool[5, 7] open, float[2, 7] updates, float[5, 7] m) => (float[] y) {CONSTANTS} {{ {body} }}"
    editor = edit(text, weights_of(body))
    nodes = cone(editor, editor.graph.outputs[0])
    assert sorted(node.op for node in nodes) == ["Add", "Cast", "Mul", "Neg", "Where"]
    assert len({id(node) for node in nodes}) == len(nodes)


KEYS = {
    "of all keys": ("a = Mul (keys, low)  y = Add (a, bias)", True),
    "of all keys, repeated": ("a = Mul (keys, low)  b = Expand (a, wide)  y = Add (bias, b)", True),
    "of each query": ("a = Mul (bias, low)  y = Add (a, keys)", False),
    "of each query, chosen": ("c = Greater (bias, keys)  y = Where (c, bias, low)", False),
    "what fp16 holds": ("y = Add (keys, bias)", True),
}


@pytest.mark.parametrize(("body", "wanted"), KEYS.values(), ids=KEYS)
def test_what_closes_keys_for_all_queries_alike(body: str, wanted: bool) -> None:
    given = "float[2, 1, 1, 7] keys, float[1, 3, 5, 7] bias"
    constants = "<float low = {-3.4e38}, int64[4] wide = {2, 1, 5, 7}>"
    used = constants if "wide" in body else constants.replace(", int64[4] wide = {2, 1, 5, 7}", "")
    used = used if "low" in body else ""
    editor = edit(f"g ({given}) => (float[] y) {used} {{ {body} }}")
    assert closes_keys(editor, editor.graph.outputs[0]) is wanted


def test_a_mask_that_is_clipped_holds_nothing_beyond_fp16() -> None:
    text = "g (float[5, 7] m) => (float[] y) <float low = {LOW}, float high = {65504.0}, float much = {-3.4e38}> {"
    text += " a = Mul (m, much)  y = Clip (a, low, high) }"
    for low, held in (("-65504.0", True), ("-1e6", False)):
        editor = edit(text.replace("LOW", low))
        assert extremes(editor, editor.graph.outputs[0]).beyond_half is not held
