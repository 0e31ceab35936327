"""The parts of a match by themselves: types, equal constants, Casts, sizes that return, attributes."""

from __future__ import annotations

import math
from itertools import permutations, product
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper
from support.small_graphs import Described, edit

from sdort.graph.symbolic import Dim, symbol
from sdort.rewrite.editor import Editor
from sdort.rewrite.match import (
    Match,
    Progress,
    Refusal,
    _is_rounded,
    _kind,
    _returns,
    _same_values,
    _unify,
    behind_casts,
    decline,
    find,
    is_float,
    refuse,
    same_tensor,
    widest,
)
from sdort.rewrite.pattern import Capture, TensorType, default_attribute, has_default, parse_pattern

BFLOAT16 = np.dtype(helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16))
HALF, SINGLE, DOUBLE = (np.dtype(name) for name in ("float16", "float32", "float64"))


def test_the_type_that_holds_the_values_of_all() -> None:
    rows: list[tuple[list[np.dtype[Any] | None], np.dtype[Any] | None]] = [
        ([], None), ([None], None), ([HALF, None], None), ([HALF], HALF), ([HALF, HALF], HALF), ([BFLOAT16], BFLOAT16),
        ([DOUBLE], DOUBLE), ([HALF, BFLOAT16], SINGLE), ([HALF, SINGLE], SINGLE), ([BFLOAT16, SINGLE], SINGLE),
        ([HALF, DOUBLE], DOUBLE), ([SINGLE, DOUBLE], DOUBLE), ([HALF, BFLOAT16, DOUBLE], DOUBLE),
    ]  # fmt: skip
    for dtypes, wanted in rows:
        for order in permutations(dtypes):
            assert widest(order) == wanted, dtypes


@pytest.mark.parametrize(
    ("dtype", "floats", "kind"),
    [("float16", True, "f"), ("float64", True, "f"), ("int32", False, "i"), ("uint8", False, "i"), ("bool", False, "b"),
     (BFLOAT16, True, "f")],
    ids=str,
)  # fmt: skip
def test_kinds_of_types(dtype: Any, floats: bool, kind: str) -> None:
    assert is_float(np.dtype(dtype)) is floats
    assert _kind(np.dtype(dtype)) == kind


def test_refusals_are_spelled_with_what_caused_them() -> None:
    assert [str(r) for r in (refuse("no"), refuse("no", 0), refuse("no", (2, "x")), decline("no", "y"))] == [
        "no", "no (0)", "no (2, x)", "no (y)"
    ]  # fmt: skip
    assert [(r.applicable, r.by_target) for r in (refuse("a", 1), decline("a", 1), Refusal("a", by_target=True))] == [
        (True, False), (False, False), (True, True)
    ]  # fmt: skip


CHAIN = """
g ({first}[4] x) => ({last}[4] y) {{
    a = Cast <to = {to[0]}> (x)
    b = Cast <to = {to[1]}> (a)
    y = Cast <to = {to[2]}> (b)
}}"""
NUMBERS = {"float": 1, "float16": 10, "double": 11, "bfloat16": 16, "int64": 7}


@pytest.mark.parametrize(
    ("types", "loose", "exact"),
    [
        (("float16", "float", "float16", "float"), 3, 1),
        (("float16", "float", "double", "double"), 3, 3),
        (("double", "float16", "float", "double"), 3, 2),
        (("float", "int64", "float", "float16"), 1, 0),
        (("int64", "float", "float16", "float"), 2, 1),
        (("float", "float", "float16", "int64"), 0, 0),
        (("float16", "bfloat16", "float", "double"), 3, 2),
    ],
)
def test_casts_that_do_not_count(types: tuple[str, ...], loose: int, exact: int) -> None:
    """Between floats all; exactly, only those that round nothing: up to the first that does, counted from the end."""
    editor = edit(CHAIN.format(first=types[0], last=types[-1], to=[NUMBERS[name] for name in types[1:]]))
    names = ["y", "b", "a", "x"]
    for exactly, count in ((False, loose), (True, exact)):
        tensor, casts = behind_casts(editor, editor.graph.outputs[0], exactly=exactly)
        assert tensor.name == names[count]
        assert [cast.outputs[0].name for cast in casts] == names[:count]
    assert behind_casts(editor, editor.graph.outputs[0])[0].name == names[loose]


def test_a_cast_of_an_unknown_type_counts() -> None:
    editor = edit("g (float16[4] x) => (float[4] y) { y = Cast <to = 1> (x) }")
    hidden = gs.Variable("hidden")
    editor.graph.nodes[0].inputs[0] = hidden
    assert behind_casts(editor, editor.graph.outputs[0]) == (editor.graph.outputs[0], [])
    unknown = gs.Variable("unknown")
    gs.Node("Cast", "cast", {}, [editor.graph.inputs[0]], [unknown])
    assert behind_casts(editor, unknown) == (unknown, [])


def test_one_tensor_is_itself_or_a_constant_of_equal_value() -> None:
    variable, other = gs.Variable("v"), gs.Variable("v")
    ints, same = (gs.Constant("c", np.array([1, 2])) for _ in range(2))
    floats = gs.Constant("c", np.array([1.0, 2.0]))
    column = gs.Constant("c", np.array([[1], [2]]))
    weight = Described([2], np.int64)
    described, again, else_ = (gs.Constant("w", ints.values) for _ in range(3))
    described._values, again._values, else_._values = weight, weight, Described([2], np.int64)
    groups = [[variable], [other], [ints, same], [floats], [column], [described, again], [else_]]
    for one, two in product(groups, groups):
        for a, b in product(one, two):
            assert same_tensor(a, b) is (one is two), (a, b)


@pytest.mark.parametrize(
    ("values", "expected", "same"),
    [
        ([1, 2], [1, 2], True), ([1, 2], [1, 3], False), ([1, 2], [1], False), ([1], [1, 1], False),
        ([[1]], [1], True), ([[1, 2]], [1, 2], False), ([[1, 2]], [[1, 2]], True), ([1.0], [1], True),
        ([0.5, 0.1], [0.5, 0.1], True), ([0.5, 0.1], [0.5, 0.1001], False), ([0.6, 0.1], [0.5, 0.1], False),
        ([True], [1], True),
    ],
)  # fmt: skip
def test_values_are_a_patterns(values: Any, expected: Any, same: bool) -> None:
    one, other = (np.array(v, np.float32 if np.array(v).dtype.kind == "f" else None) for v in (values, expected))
    assert _same_values(one, other) is same


@pytest.mark.parametrize(("name", "bits"), [("float16", 10), ("bfloat16", 7), ("float32", 23), ("float64", 23)])
@pytest.mark.parametrize("expected", [0.1, -0.1, 0.7071067811865476, 1.702, 1e-6, 12345.678, -3.3])
def test_a_rounded_value_is_at_most_a_unit_off(name: str, bits: int, expected: float) -> None:
    dtype = BFLOAT16 if name == "bfloat16" else np.dtype(name)
    unit = 2.0 ** (math.floor(math.log2(abs(expected))) - bits)
    for steps, near in ((0, True), (0.99, True), (-0.99, True), (1.01, False), (-1.01, False)):
        assert _is_rounded(expected + steps * unit, expected, dtype) is near
    assert not _is_rounded(-expected, expected, dtype)


@pytest.mark.parametrize("exact", [0.0, 0.5, 1.0, -2.0, 255.0, 0.01171875, float("inf"), float("-inf")])
def test_what_every_type_holds_has_to_be_just_that(exact: float) -> None:
    assert _is_rounded(exact, exact, HALF)
    assert not _is_rounded(float(np.nextafter(exact, 0 if exact else 1)), exact, SINGLE)
    assert not _is_rounded(exact, exact, np.dtype("int64"))


SIZES = """
g (float[B, 6] x, int64[1] z) => (float[] y, float[] w, int64[2] out) <int64[1] c = {{1}}, int64 i = {{0}}> {{
    n = Neg (x)
    s = Shape (n)
    {body}
}}"""


@pytest.mark.parametrize(
    ("body", "returns"),
    [
        ("y = Reshape (n, s)  w = Neg (x)  out = Shape (x)", True),
        ("t = Add (s, c)  u = Mul (t, c)  y = Reshape (n, u)  w = Neg (x)  out = Shape (x)", True),
        ("t = Add (s, c)  u = Mul (t, t)  y = Reshape (n, u)  w = Neg (x)  out = Shape (x)", True),
        ("y = Reshape (n, s)  w = Reshape (x, s)  out = Shape (x)", False),
        ("y = Reshape (n, s)  w = Neg (x)  out = Add (s, c)", False),
        ("t = Add (s, c)  y = Reshape (n, t)  w = Neg (x)  out = Add (t, s)", False),
        ("t = Add (s, c)  y = Reshape (n, t)  w = Neg (x)  out = Add (t, c)", False),
        ("out = Add (s, c)  y = Reshape (n, out)  w = Neg (x)", False),
    ],
)
def test_sizes_that_only_return_into_a_match(body: str, returns: bool) -> None:
    editor = edit(SIZES.format(body=body))
    nodes = {node.outputs[0].name: node for node in editor.graph.nodes}
    inside = {id(nodes[name]) for name in ("n", "y")}
    last = editor.position(nodes["y"])
    assert _returns(nodes["s"], inside, last, editor) is returns
    assert not _returns(nodes["n"], inside, last, editor)  # no Shape


def test_sizes_that_are_read_behind_the_match_do_not_return() -> None:
    editor = edit(SIZES.format(body="y = Reshape (n, s)  t = Add (s, c)  w = Reshape (x, t)  out = Shape (w)"))
    nodes = {node.outputs[0].name: node for node in editor.graph.nodes}
    inside = {id(nodes[name]) for name in ("n", "y", "w")}
    assert _returns(nodes["s"], inside, editor.position(nodes["w"]), editor)
    assert _returns(nodes["s"], inside, editor.position(nodes["t"]), editor)
    assert not _returns(nodes["s"], inside, editor.position(nodes["t"]) - 1, editor)


@pytest.mark.parametrize(
    ("stated", "given", "bound", "problem", "after"),
    [
        (TensorType("f", None), "float[B, 6] t", {}, None, {}),
        (TensorType("i", None), "float[B, 6] t", {}, "its type is float32", {}),
        (TensorType("f", ("N", "C")), "float[B, 6] t", {}, None, {"N": symbol("B"), "C": 6}),
        (TensorType("f", ("N", 6)), "float[B, 6] t", {}, None, {"N": symbol("B")}),
        (TensorType("f", ("N", 5)), "float[B, 6] t", {}, "expected ['N', 5]", None),
        (TensorType("f", ("N", "N")), "float[6, 6] t", {}, None, {"N": 6}),
        (TensorType("f", ("N", "N")), "float[5, 6] t", {}, "its shape is [5, 6], expected ['N', 'N'] with N = 5", None),
        (TensorType("f", ("N", "C")), "float[5, 6] t", {"C": 7}, "expected ['N', 'C'] with C = 7", None),
        (TensorType("f", ("N",)), "float[5, 6] t", {}, "its shape is [5, 6], expected ['N']", {}),
        (TensorType("f", ()), "float[1, 1] t", {}, "its shape is [1, 1], expected []", {}),
        (TensorType("f", ()), "float t", {}, None, {}),
        (TensorType("b", ("N",)), "bool[3] t", {}, None, {"N": 3}),
    ],
)  # fmt: skip
def test_types_and_shapes(
    stated: TensorType, given: str, bound: dict[str, Dim], problem: str | None, after: dict[str, Dim] | None
) -> None:
    editor = edit(f"g ({given}) => (float[] y) {{ y = Identity (t) }}")
    dims = dict(bound)
    said = _unify(stated, editor, editor.graph.inputs[0], dims)
    assert (said is None) is (problem is None)
    assert (problem or "") in (said or "")
    assert after is None or dims == after


def test_a_constant_of_one_element_is_a_scalar_and_an_unknown_type_may_be_any() -> None:
    editor = edit("g (float[2] t) => (float[2] y) { y = Neg (t) }")
    one, two = editor.constant(np.ones((1, 1), np.float32)), editor.constant(np.ones((1, 2), np.float32))
    unknown = gs.Variable("unknown")
    scalar = TensorType("f", ())
    assert [_unify(scalar, editor, t, {}) for t in (one, two)] == [None, "its shape is [1, 2], expected []"]
    assert _unify(TensorType("f", ("N",)), editor, one, {}) == "its shape is [1, 1], expected ['N']"
    assert _unify(TensorType("i", None), editor, unknown, {}) is None
    assert _unify(TensorType("i", ("N",)), editor, unknown, {}) == "its shape is not known"


def found(editor: Editor, pattern: str, *, through_casts: bool = False) -> Match | None:
    root = editor.graph.outputs[0].inputs[0]
    return find(editor, parse_pattern(pattern), root, Progress(), through_casts=through_casts)


def test_the_precision_of_a_match_is_the_widest_of_its_floats() -> None:
    pattern = "g (float[N] x) => (float[N] y) { n = Neg (x)  y = Abs (n) }"
    for inner, wanted in ((10, HALF), (1, SINGLE), (11, DOUBLE)):
        text = f"g (float16[4] t) => (float16[4] r) {{ c = Cast <to = {inner}> (t)  n = Neg (c)  d = Cast <to = 10> (n)"
        editor = edit(text + "  r = Abs (d) }")
        match = found(editor, pattern, through_casts=True)
        assert match is not None
        assert match.precision() == wanted
        # The Cast in front rounds nothing and is looked through, the one between goes with the nodes.
        assert match["x"].name == "t"
        assert [cast.outputs[0].name for cast in match.casts.values()] == ["d"]
        assert [node.op for node in match.removed] == ["Abs", "Neg", "Cast"]
        assert found(editor, pattern) is None


def test_whole_numbers_have_no_precision_and_an_unknown_type_hides_it() -> None:
    editor = edit("g (float16[4] t) => (float16[4] r, int64[1] s) { s = Shape (t)  r = Dropout (t) }")
    shape, dropout = editor.graph.nodes
    dropout.outputs.append(gs.Variable.empty())
    assert Match(editor, nodes={0: shape}).precision() is None
    assert Match(editor, nodes={0: shape, 1: dropout}).precision() == HALF
    dropout.outputs.append(gs.Variable("unknown"))
    assert Match(editor, nodes={0: shape, 1: dropout}).precision() is None


def test_a_copy_of_a_match_goes_on_by_itself() -> None:
    editor = edit("g (float[4] t) => (float[4] r) { n = Neg (t)  r = Abs (n) }")
    match = Match(editor, through_casts=True)
    copy = match.copy()
    node = editor.graph.nodes[0]
    copy.tensors["x"], copy.attrs["a"], copy.nodes[0], copy.dims["N"] = node.outputs[0], 1, node, 4
    copy.casts[1] = node
    assert (match.tensors, match.attrs, match.nodes, match.dims, match.casts) == ({}, {}, {}, {}, {})
    assert copy.through_casts
    assert copy.editor is editor


def test_what_a_match_tells_of_its_names() -> None:
    editor = edit("g (float[B, 4] t) => (float[B, 4] r) <float c = {2.5}> { r = Mul (t, c) }")
    match = found(editor, "g (float[N, C] x, float[] s) => (float[N, C] y) { y = Mul (x, s) }")
    assert match is not None
    assert match.scalar("s") == 2.5
    assert match.array("x") is None
    assert np.array_equal(match.array("s"), 2.5)  # type: ignore[arg-type]
    assert (match.known("N"), match.known("C"), match.size("C")) == (None, 4, 4)
    with pytest.raises(AssertionError):
        match.scalar("x")
    with pytest.raises(AssertionError):
        match.size("N")


def test_progress_keeps_the_attempt_that_came_furthest() -> None:
    """Nodes first, then whether the anchor is matched or where it stopped, then tensors; of equals the first."""
    editor = edit("g (float[4] t) => (float[4] r) { n = Neg (t)  r = Abs (n) }")
    neg, abs_ = editor.graph.nodes
    tensor = editor.graph.inputs[0]
    none, neg_, both = Match(editor), Match(editor, nodes={0: neg}), Match(editor, nodes={0: neg, 1: abs_})
    bound = Match(editor, nodes={1: abs_}, tensors={"x": tensor})
    progress = Progress(anchor=neg)
    noted: list[tuple[Match, Any, str, bool]] = [
        (none, tensor, "a", True), (none, tensor, "b", False), (none, neg, "c", True), (bound, tensor, "d", True),
        (bound, neg, "e", True), (neg_, tensor, "f", True), (bound, neg, "g", False), (both, tensor, "h", True),
    ]  # fmt: skip
    for match, at, reason, kept in noted:
        progress.note(match, at, reason, f"kind of {reason}")
        assert (progress.reason == reason) is kept, reason
        if kept:
            assert (progress.node, progress.kind) == (at.name, f"kind of {reason}")
            assert (progress.matched, progress.tensors) == (len(match.nodes), len(match.tensors))
    assert progress.reached == (2, 2, 0)


@pytest.mark.parametrize(
    ("op", "domain", "name", "wanted"),
    [
        ("Softmax", "", "axis", -1), ("Gemm", "", "alpha", 1.0), ("Gelu", "", "approximate", "none"),
        ("Attention", "", "scale", None), ("Transpose", "", "perm", ...), ("Softmax", "", "nothing", ...),
        ("Unheard", "", "axis", ...), ("Softmax", "elsewhere", "axis", ...), ("Attention", "", "q_num_heads", ...),
        ("SkipLayerNormalization", "com.microsoft", "epsilon", 1e-12), ("FusedMatMul", "com.microsoft", "alpha", 1.0),
        ("MultiHeadAttention", "com.microsoft", "num_heads", ...), ("FusedMatMul", "com.microsoft", "nothing", ...),
    ],
)  # fmt: skip
def test_defaults_of_attributes(op: str, domain: str, name: str, wanted: Any) -> None:
    default = default_attribute(op, domain, name)
    assert has_default(default) is (wanted is not ...)
    if wanted is not ...:
        assert default == (pytest.approx(wanted) if isinstance(wanted, float) else wanted)


def test_a_pattern_holds_what_its_text_states() -> None:
    pattern = parse_pattern("""
        g (float[B, 4] x, int64[] i, int32 j, bool[2] b) => (float16[B] y, float[] z)
        <float[C] w, float half = {0.5}, float[B, 7] n> {
            n = custom.Scale <epsilon: float = @eps, axis = 2, name = "text", sizes = [1, 2], ratio = 0.5> (x, , w)
            y, , z = Split (n, half)
        }""")
    assert pattern.types == {
        "x": TensorType("f", ("B", 4)), "i": TensorType("i", None), "j": TensorType("i", ()),
        "b": TensorType("b", (2,)), "y": TensorType("f", ("B",)), "z": TensorType("f", None),
        "w": TensorType("f", ("C",)), "n": TensorType("f", ("B", 7)),
    }  # fmt: skip
    assert (pattern.inputs, pattern.outputs) == (["x", "i", "j", "b"], ["y", "z"])
    assert pattern.producers == {"n": 0, "y": 1, "z": 1}
    assert sorted(pattern.constants) == ["half", "w"]
    assert pattern.root is pattern.nodes[1]
    scale, split = pattern.nodes
    assert (scale.op, scale.domain, scale.inputs, scale.outputs) == ("Scale", "custom", ("x", "", "w"), ("n",))
    assert scale.attrs == {
        "epsilon": Capture("eps"), "axis": 2, "name": "text", "sizes": [1, 2], "ratio": 0.5
    }  # fmt: skip
    assert (split.outputs, split.attrs) == (("y", "", "z"), {})
