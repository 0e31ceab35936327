"""What a pattern matches, what it refuses, and the reasons it gives."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper
from support.small_graphs import Array, Described, edit

from sdort.graph.weights import Weight
from sdort.rewrite.editor import Editor
from sdort.rewrite.match import Match, Progress, find
from sdort.rewrite.pattern import check_connected, parse_pattern

BIAS_GELU = """
g (float[B, S, C] x) => (float[B, S, C] y) <float[C] bias> {
    biased = Add (x, bias)
    y = Gelu (biased)
}"""


def attempt(
    pattern: str, graph: str, weights: dict[str, Array | Weight] | None = None
) -> tuple[Match | None, Progress]:
    """The match at the producer of the graph's first output, and how far the search came."""
    return attempt_in(edit(graph, weights), pattern)


def attempt_in(editor: Editor, pattern: str) -> tuple[Match | None, Progress]:
    progress = Progress()
    root: gs.Node = editor.graph.outputs[0].inputs[0]
    return find(editor, parse_pattern(pattern), root, progress), progress


def refusal(pattern: str, graph: str, weights: dict[str, Array | Weight] | None = None) -> tuple[int, str]:
    match, progress = attempt(pattern, graph, weights)
    assert match is None
    return progress.matched, progress.reason


def test_match_binds_tensors_dims_and_nodes() -> None:
    match, _ = attempt(BIAS_GELU, "g (float[n, 7, 8] t) => (float[n, 7, 8] r) { s = Add (t, w)  r = Gelu (s) }", W8)
    assert match is not None
    assert {name: match[name].name for name in ("x", "bias", "biased", "y")} == {
        "x": "t", "bias": "w", "biased": "s", "y": "r"
    }  # fmt: skip
    assert (match.known("B"), match.known("S"), match.size("C")) == (None, 7, 8)
    assert [node.op for _, node in sorted(match.nodes.items())] == ["Add", "Gelu"]


W8: dict[str, Array | Weight] = {"w": np.arange(8, dtype=np.float32)}


@pytest.mark.parametrize(
    ("graph", "matched", "reason"),
    [
        (
            "g (float[2, 7, 8] t) => (float[] r, float[2, 7, 8] z) { s = Add (t, w)  r = Gelu (s)  z = Relu (s) }",
            2,
            "'s' is also read by Relu 'Relu.2'",
        ),
        (
            "g (float[2, 7, 8] t) => (float[2, 7, 8] r, float[2, 7, 8] s) { s = Add (t, w)  r = Gelu (s) }",
            2,
            "'s' is also read by the graph's output",
        ),
        (
            "g (float[2, 7, 8] t) => (float[2, 7, 8] r) { s = Mul (t, w)  r = Gelu (s) }",
            1,
            "expected Add -> 'biased', found Mul",
        ),
        ("g (float[2, 7, 8] t) => (float[2, 7, 8] r) { r = Gelu (t) }", 1, "found a graph input 't'"),
        ("g (float[2, 7, 8] t) => (float[2, 7, 8] r) { r = Gelu (w) }", 1, "found a constant 'w'"),
        (
            "g (float[2, 7, 8] t, float[8] v) => (float[2, 7, 8] r) { s = Add (t, v)  r = Gelu (s) }",
            2,
            "'bias' has to be a constant, 'v' is computed",
        ),
        (
            'g (float[2, 7, 8] t) => (float[2, 7, 8] r) { s = Add (t, w)  r = Gelu <approximate = "tanh"> (s) }',
            0,
            "Gelu has approximate='tanh', expected none",
        ),
        (
            "g (float[7, 8] t) => (float[7, 8] r) { s = Add (t, w)  r = Gelu (s) }",
            2,
            "'x' (t): its shape is [7, 8], expected ['B', 'S', 'C']",
        ),
        (
            "g (float[2, 7, 1] t) => (float[2, 7, 8] r) { s = Add (t, w)  r = Gelu (s) }",
            2,
            "expected ['B', 'S', 'C'] with C = 1",
        ),
        ("g (float t) => (float r) { s = Add (t, w)  r = Gelu (s) }", 2, "'x' (t): its shape is [], expected"),
    ],
)
def test_refusals(graph: str, matched: int, reason: str) -> None:
    found, text = refusal(BIAS_GELU, graph, W8)
    assert (found, reason in text) == (matched, True), text


def test_unknown_shape_is_refused() -> None:
    graph = "g (float[4, 8] t, int64[B] i) => (float[2, 7, 8] r) { u = Reshape (t, i)  s = Add (u, w)  r = Gelu (s) }"
    assert refusal(BIAS_GELU, graph, W8) == (2, "'x' (u): its shape is not known")


def test_integers_are_no_floats() -> None:
    pattern = "g (float[N] x) => (float[N] y) { n = Neg (x)  y = Neg (n) }"
    assert refusal(pattern, "g (int64[4] t) => (int64[4] r) { s = Neg (t)  r = Neg (s) }") == (
        2,
        "'x' (t): its type is int64",
    )


@pytest.mark.parametrize("dtype", ["float", "float16", "double", "bfloat16"])
def test_float_is_any_floating_point_type(dtype: str) -> None:
    pattern = "g (float[N] x) => (float[N] y) { n = Neg (x)  y = Neg (n) }"
    assert attempt(pattern, f"g ({dtype}[4] t) => ({dtype}[4] r) {{ s = Neg (t)  r = Neg (s) }}")[0] is not None


@pytest.mark.parametrize("graph", ["s = Add (t, w)", "s = Add (w, t)"])
def test_commutative_inputs_match_both_ways(graph: str) -> None:
    match, _ = attempt(BIAS_GELU, f"g (float[2, 7, 8] t) => (float[2, 7, 8] r) {{ {graph}  r = Gelu (s) }}", W8)
    assert match is not None
    assert match["bias"].name == "w"


def test_every_order_of_nested_sums_is_tried() -> None:
    pattern = """
    g (float[N] a, float[N] b) => (float[N] y) <float[N] c> {
        n = Neg (a)  p = Mul (b, c)  s = Add (n, p)  y = Mul (s, c)
    }"""
    for inner in ("Mul (t, w)", "Mul (w, t)"):
        for middle in ("Add (m, q)", "Add (q, m)"):
            for outer in ("Mul (u, w)", "Mul (w, u)"):
                graph = f"m = Neg (t)  q = {inner}  u = {middle}  r = {outer}"
                assert attempt(pattern, f"g (float[8] t) => (float[8] r) {{ {graph} }}", W8)[0] is not None, graph


def test_the_reason_is_that_of_the_order_that_came_further() -> None:
    graph = "g (float[7, 8] t) => (float[7, 8] r) { s = Add (w, t)  r = Gelu (s) }"
    assert refusal(BIAS_GELU, graph, W8) == (2, "'x' (t): its shape is [7, 8], expected ['B', 'S', 'C']")


def test_subtraction_does_not_commute() -> None:
    pattern = "g (float[N] x) => (float[N] y) <float[N] c> { d = Sub (x, c)  y = Neg (d) }"
    assert refusal(pattern, "g (float[8] t) => (float[8] r) { s = Sub (w, t)  r = Neg (s) }", W8)[0] == 2


SQUARE = "g (float[N] x) => (float[N] y) { s = Sigmoid (x)  y = Mul (x, s) }"


def test_a_name_is_one_tensor() -> None:
    assert attempt(SQUARE, "g (float[4] t) => (float[4] r) { s = Sigmoid (t)  r = Mul (s, t) }")[0] is not None
    found = refusal(SQUARE, "g (float[4] t, float[4] u) => (float[4] r) { s = Sigmoid (t)  r = Mul (u, s) }")
    assert found == (2, "'x' would have to be 'u' here too")


def test_equal_constants_are_one_tensor() -> None:
    pattern = "g (float[N] x) => (float[N] y) <float[N] c> { a = Add (x, c)  y = Div (a, c) }"
    graph = "g (float[8] t) => (float[8] r) { s = Add (t, w)  r = Div (s, v) }"
    assert attempt(pattern, graph, {**W8, "v": W8["w"]})[0] is not None
    assert refusal(pattern, graph, {**W8, "v": np.ones(8, np.float32)}) == (2, "'c' would have to be 'w' here too")
    assert refusal(pattern, graph, {**W8, "v": np.arange(8, dtype=np.float64)})[0] == 2


def test_described_weights_are_equal_to_themselves_only() -> None:
    pattern = "g (float[N] x) => (float[N] y) <float[N] c> { a = Add (x, c)  y = Div (a, c) }"
    one, other = Described([8], np.float32), Described([8], np.float32)
    assert (
        attempt(pattern, "g (float[8] t) => (float[8] r) { s = Add (t, w)  r = Div (s, w) }", {"w": one})[0] is not None
    )
    graph = "g (float[8] t) => (float[8] r) { s = Add (t, w)  r = Div (s, v) }"
    assert refusal(pattern, graph, {"w": one, "v": other})[0] == 2


def test_a_scalar_is_a_constant_of_one_element() -> None:
    pattern = "g (float[] x) => (float[] y) <float scale> { a = Mul (x, scale)  y = Neg (a) }"
    graph = "g (float[8] t) => (float[8] r) { s = Mul (t, c)  r = Neg (s) }"
    assert attempt(pattern, graph, {"c": np.ones([1, 1], np.float32)})[0] is not None
    assert refusal(pattern, graph, W8 | {"c": W8["w"]})[1] == "'scale' (c): its shape is [8], expected []"


VALUE = "g (float[] x) => (float[] y) <float half = {0.5}> { a = Mul (x, half)  y = Neg (a) }"


@pytest.mark.parametrize("value", [0.5, [0.5], [[[0.5]]]])
def test_a_constant_of_the_value_matches_at_any_rank(value: object) -> None:
    weights: dict[str, Array | Weight] = {"c": np.array(value, np.float32)}
    assert attempt(
        VALUE,
        "g (float[8] t) => (float[] r) { s = Mul (t, c)  r = Neg (s) }",
        weights,
    )[0]


ROOT = 0.5**0.5
BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
ROUNDED: dict[str, tuple[Any, Any]] = {
    "float64": (np.float64, ROOT),
    "float32": (np.float32, ROOT),
    "float32, rounded to the other side": (np.float32, np.nextafter(np.float32(ROOT), np.float32(1))),
    "float16": (np.float16, ROOT),
    "float16, rounded to the other side": (np.float16, np.nextafter(np.float16(ROOT), np.float16(1))),
    "bfloat16": (BFLOAT16, ROOT),
    "float16 of a half": (np.float16, 0.5),
}
OTHER: dict[str, tuple[Any, Any]] = {
    "float32 two units off": (np.float32, ROOT + 2.1 * 2.0**-24),
    "float16, the one after": (np.float16, np.nextafter(np.float16(ROOT), np.float16(0))),
    "float16 two units off": (np.float16, ROOT + 2.1 * 2.0**-11),
    "fp16's rounding in float32": (np.float32, float(np.float16(ROOT))),
    "a half, one unit off": (np.float16, np.nextafter(np.float16(0.5), np.float16(1))),
    "float32's half, one unit off": (np.float32, np.nextafter(np.float32(0.5), np.float32(1))),
}


@pytest.mark.parametrize("case", [*ROUNDED, *OTHER])
def test_a_constant_is_the_value_in_its_own_precision(case: str) -> None:
    dtype, value = {**ROUNDED, **OTHER}[case]
    wanted = "0.5" if "half" in case else "0.70710678"
    kind = {2: "float16", 4: "float", 8: "double"}[np.dtype(dtype).itemsize]
    kind = "bfloat16" if dtype is BFLOAT16 else kind
    pattern = f"g (float[] x) => (float[] y) <float c = {{{wanted}}}> {{ a = Mul (x, c)  y = Neg (a) }}"
    graph = f"g ({kind}[8] t) => ({kind}[8] r) {{ s = Mul (t, c)  r = Neg (s) }}"
    assert (attempt(pattern, graph, {"c": np.array(value).astype(dtype)})[0] is not None) == (case in ROUNDED)


@pytest.mark.parametrize(
    ("value", "shown"), [(0.25, "found [0.25]"), (0.5001, "found [0.500"), ([0.5] * 8, "found [0.5, 0.5, 0.5, 0.5]")]
)
def test_another_value_is_refused(value: object, shown: str) -> None:
    weights: dict[str, Array | Weight] = {"c": np.array(value, np.float32)}
    found, text = refusal(VALUE, "g (float[8] t) => (float[8] r) { s = Mul (t, c)  r = Neg (s) }", weights)
    assert (found, f"'half' has to be [0.5], {shown}" in text) == (2, True), text


def test_a_value_that_is_not_at_hand_is_refused() -> None:
    weights: dict[str, Array | Weight] = {"c": Described([64, 64], np.float32)}
    found = refusal(VALUE, "g (float[64] t) => (float[64, 64] r) { s = Mul (t, c)  r = Neg (s) }", weights)
    assert found == (2, "'half' has to be [0.5], found a large tensor")


@pytest.mark.parametrize(
    ("graph", "matches"),
    [
        ("r = Clip (n, low)", True),
        ("r = Clip (n, low, )", True),
        ("r = Clip (n)", False),
        ("r = Clip (n, low, high)", False),
        ("r = Clip (n, , high)", False),
    ],
)
def test_optional_inputs_have_to_be_the_same(graph: str, matches: bool) -> None:
    pattern = "g (float[N] x, float low) => (float[N] y) { n = Neg (x)  y = Clip (n, low) }"
    text = f"g (float[4] t, float low, float high) => (float[4] r) {{ n = Neg (t)  {graph} }}"
    match, progress = attempt(pattern, text)
    assert (match is not None) == matches
    assert matches or "Clip has" in progress.reason


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        ("r = Softmax <axis = -1> (n)", ""),
        ("r = Softmax (n)", ""),
        ("r = Softmax <axis = 1> (n)", "Softmax has axis=1, expected -1"),
    ],
)
def test_an_attribute_that_is_not_mentioned_is_at_its_default(graph: str, problem: str) -> None:
    pattern = "g (float[A, B] x) => (float[A, B] y) { n = Neg (x)  y = Softmax (n) }"
    match, progress = attempt(pattern, f"g (float[4, 4] t) => (float[4, 4] r) {{ n = Neg (t)  {graph} }}")
    assert (match is None, progress.reason) == (bool(problem), problem)


def test_an_absent_input_is_not_a_given_one() -> None:
    pattern = "g (float[N] x, float high) => (float[N] y) { n = Neg (x)  y = Clip (n, , high) }"
    graph = "g (float[4] t, float low, float high) => (float[4] r) {{ n = Neg (t)  r = Clip (n, {}, high) }}"
    assert attempt(pattern, graph.format(""))[0] is not None
    assert refusal(pattern, graph.format("low")) == (1, "input 1 of Clip is given, expected none")


def test_absent_inputs_at_the_end_do_not_count() -> None:
    editor = edit("g (float[4] t) => (float[4] r) { n = Neg (t)  r = Clip (n) }")
    editor.graph.outputs[0].inputs[0].inputs.extend([gs.Variable.empty(), gs.Variable.empty()])
    pattern = "g (float[N] x) => (float[N] y) { n = Neg (x)  y = Clip (n) }"
    assert attempt_in(editor, pattern)[0] is not None


def test_an_attribute_without_default_that_the_pattern_has_must_be_there() -> None:
    pattern = "g (float[A, B] x) => (float[B, A] y) { n = Neg (x)  y = Transpose <perm = [1, 0]> (n) }"
    graph = "g (float[4, 4] t) => (float[4, 4] r) { n = Neg (t)  r = Transpose (n) }"
    assert refusal(pattern, graph) == (0, "Transpose has no perm, expected [1, 0]")


def test_captures_take_values_and_defaults() -> None:
    pattern = """g (float[A, B] x) => (float[A, B] y) <float[B] g, float[B] b> {
        y = LayerNormalization <axis: int = @axis, epsilon: float = @epsilon> (x, g, b)
    }"""
    graph = "g (float[2, 8] t) => (float[2, 8] r) { r = LayerNormalization <epsilon = 0.25> (t, w, w) }"
    match, _ = attempt(pattern, graph, W8)
    assert match is not None
    assert match.attrs == {"axis": -1, "epsilon": 0.25}


def test_a_capture_is_one_value() -> None:
    pattern = """
    g (float[A, B] x) => (float[A, B] y) {
        n = Softmax <axis: int = @axis> (x)
        y = Softmax <axis: int = @axis> (n)
    }"""
    graph = "g (float[4, 4] t) => (float[4, 4] r) {{ n = Softmax <axis = 0> (t)  r = Softmax <axis = {axis}> (n) }}"
    assert attempt(pattern, graph.format(axis=0))[0] is not None
    assert refusal(pattern, graph.format(axis=1)) == (1, "Softmax has axis=0, expected 1 as before")


SPLIT = """
g (float[B, S, D] x) => (float[B, S, H] y) {
    hidden, gate = Split <axis = -1, num_outputs = 2> (x)
    act = Gelu (gate)
    y = Mul (hidden, act)
}"""


def test_outputs_of_one_node_are_told_apart() -> None:
    graph = """
    g (float[2, 3, 8] t) => (float[2, 3, 4] r) {{
        a, b = Split <axis = -1, num_outputs = 2> (t)
        g = Gelu ({})
        r = Mul ({}, g)
    }}"""
    assert attempt(SPLIT, graph.format("b", "a"))[0] is not None
    assert refusal(SPLIT, graph.format("a", "b")) == (1, "'hidden' is another output of Split")


def test_stated_shape_of_an_intermediate() -> None:
    pattern = (
        "g (float[] x, int64[] t) => (float[] y) <float[B, 4, D] heads> { heads = Reshape (x, t)  y = Neg (heads) }"
    )
    graph = "g (float[8, 8] t) => (float[] r) <int64[3] to = {{-1, {heads}, 2}}> {{ h = Reshape (t, to)  r = Neg (h) }}"
    match, _ = attempt(pattern, graph.format(heads=4))
    assert match is not None
    assert (match.known("B"), match.known("D")) == (8, 2)
    assert refusal(pattern, graph.format(heads=8))[1] == "'heads' (h): its shape is [4, 8, 2], expected ['B', 4, 'D']"


READ_BACK = "g (float[B, C] x, int64[] t) => (float[] y) { n = Neg (x)  y = Reshape (n, t) }"


def test_a_size_that_only_returns_into_the_match_does_not_stop_it() -> None:
    graph = "g (float[2, 8] t) => (float[] r) { n = Neg (t)  s = Shape (n)  r = Reshape (n, s) }"
    assert attempt(READ_BACK, graph)[0] is not None


def test_data_that_returns_into_the_match_stops_it() -> None:
    pattern = "g (float[N] x, float[N] z) => (float[N] y) { n = Neg (x)  y = Mul (n, z) }"
    graph = "g (float[8] t) => (float[8] r) { m = Neg (t)  u = Relu (m)  r = Mul (m, u) }"
    assert refusal(pattern, graph) == (2, "'m' is also read by Relu 'Relu.1'")


@pytest.mark.parametrize(("output", "extra"), [("u", "u = Add (s, s)"), ("s", "")])
def test_a_size_that_leaves_the_match_stops_it(output: str, extra: str) -> None:
    nodes = f"n = Neg (t)  s = Shape (n)  r = Reshape (n, s)  {extra}"
    graph = f"g (float[2, 8] t) => (float[] r, int64[2] {output}) {{ {nodes} }}"
    assert refusal(READ_BACK, graph) == (2, "'n' is also read by Shape 'Shape.1'")


@pytest.mark.parametrize(
    "text", ["g (float x) => (float y) { y = Add (x }", "not a graph", "g (float x) => (float y) { z = Neg (x) }"]
)
def test_broken_patterns_are_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        check_connected(parse_pattern(text))


TWICE = "g (float[] x, float[] b, float[] c) => (float[] y, float[] z) { n = Neg (x)  y = Add (n, b)  z = Mul (n, c) }"


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("n = Neg (x)  y = Add (b, n)  z = Mul (c, n)", True),
        ("n = Neg (x)  z = Mul (n, c)  y = Add (n, b)", True),
        ("n = Neg (x)  y = Add (n, b)  z = Sub (n, c)", False),  # another operator
        ("n = Neg (x)  y = Add (n, b)  z = Mul (y, c)", False),  # nothing else reads n
        ("n = Neg (x)  y = Add (n, b)  z = Mul (n, c)  w = Abs (n)", False),  # a third reader
    ],
)
def test_a_pattern_goes_on_to_other_readers_of_what_it_found(nodes: str, found: bool) -> None:
    more = ", float[2] w" if "w =" in nodes else ""
    editor = edit(f"g (float[2] x, float[2] b, float[2] c) => (float[2] y, float[2] z{more}) {{ {nodes} }}")
    root = next(node for node in editor.graph.nodes if node.op == "Add")
    progress = Progress()
    pattern = parse_pattern(TWICE)
    check_connected(pattern)
    match = find(editor, pattern, root, progress)
    assert (match is not None) is found
    if match is not None:
        assert [match[name].name for name in ("x", "b", "c", "y", "z")] == ["x", "b", "c", "y", "z"]
    else:
        assert re.match("expected Mul (after 'n'|-> 'z', found Sub)|'n' is also read by Abs", progress.reason)


def test_a_node_out_of_reach_is_refused() -> None:
    pattern = parse_pattern("g (float x) => (float y) { y = Neg (x)  z = Relu (x) }")
    with pytest.raises(ValueError, match=r"Relu -> \('z',\) cannot be reached from 'y'"):
        check_connected(pattern)


def test_what_the_match_computes_does_not_flow_into_it() -> None:
    """``Add (s, s)``: as the pattern's skip it would be removed and read."""
    pattern = """
    g (float[B, C] x, float[B, C] skip) => (float[B, C] y) <float[C] bias> {
        biased = Add (x, bias)
        y = Add (biased, skip)
    }"""
    graph = "g (float[2, 8] t) => (float[2, 8] r) {{ s = Add (t, w)  r = Add ({}) }}"
    assert refusal(pattern, graph.format("s, s"), W8) == (2, "'skip' is 's', which the match itself computes")
    assert attempt(pattern, graph.format("s, t"), W8)[0] is not None
    assert attempt(pattern, graph.format("t, s"), W8)[0] is not None


def test_what_one_order_of_inputs_binds_does_not_hinder_the_other() -> None:
    """Taken as ``column``, the row names A before it is found to be none."""
    pattern = parse_pattern("g (float[A, 1] column, float[1, B] row) => (float[A, B] y) { y = Add (column, row) }")
    for inputs in ("c, r", "r, c"):
        editor = edit(f"g (float[3, 1] c, float[1, 4] r) => (float[3, 4] y) {{ y = Add ({inputs}) }}")
        match = find(editor, pattern, editor.graph.nodes[0], Progress())
        assert match is not None
        assert (match["column"].name, match["row"].name) == ("c", "r")
        assert match.dims == {"A": 3, "B": 4}
