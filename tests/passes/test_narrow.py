"""Casts around each operator by itself: which are unwrapped, which move, and which stay."""

from __future__ import annotations

import numpy as np
import pytest
from support.small_graphs import Array, edit, feeds_for, operators, parse, run

from sdort.passes import narrow, types
from sdort.rewrite.editor import Editor

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)
CONSTANTS = """<int64[2] shape = {4, -1}, int64[1] first = {1}, int64[1] zero = {0}, int64[1] three = {3},
int64[3] wide = {5, 2, 8}, int64[2] places = {1, 0}, float low = {-0.5}, float high = {0.75}, bool[8] open =
{1, 0, 1, 1, 0, 0, 1, 0}, float[8] g = {1.0, 0.5, 2.0, -1.0, 0.25, 3.0, 1.5, -0.5}, float[2] g2 = {0.5, 2.0}>"""
ROUNDED_ONCE = {
    **{op: f"b = {op} (a)" for op in ("Abs", "Erf", "Gelu", "Neg", "Relu", "Sigmoid", "Tanh")},
    "Sqrt": "p = Abs (x)  q = Cast <to = 1> (p)  b = Sqrt (q)",
    "Add": "b = Add (a, c)", "Sub": "b = Sub (a, c)", "Mul": "b = Mul (c, a)", "Div": "b = Div (c, a)",
    "Max": "b = Max (a, c)", "Min": "b = Min (c, a)", "Clip": "b = Clip (a, low, high)",
    "Clip from above": "b = Clip (a, , high)",
    "Concat": "b = Concat <axis = 0> (a, c)", "Softmax": "b = Softmax <axis = 0> (a)",
    "LogSoftmax": "b = LogSoftmax <axis = -1> (a)", "Where": "b = Where (open, a, c)",
    "a weight": "b = Mul (a, g)", "a number before": "b = Sub (high, a)",
}  # fmt: skip
NORMALIZING = {
    "LayerNormalization": "b = LayerNormalization (a, g, g)",
    "LayerNormalization without a bias": "b = LayerNormalization (a, g)",
    "RMSNormalization": "b = RMSNormalization (a, g)",
    "GroupNormalization": "i = Unsqueeze (a, zero)  n = GroupNormalization <num_groups = 2> (i, g2, g2)"
    "  b = Squeeze (n, zero)",
    "InstanceNormalization": "i = Unsqueeze (a, zero)  n = InstanceNormalization (i, g2, g2)  b = Squeeze (n, zero)",
}
MOVING = {
    "Reshape": "Reshape ({x}, shape)", "Transpose": "Transpose <perm = [1, 0]> ({x})",
    "Squeeze": "Squeeze ({x})", "Unsqueeze": "Unsqueeze ({x}, first)", "Flatten": "Flatten <axis = 0> ({x})",
    "Identity": "Identity ({x})", "Slice": "Slice ({x}, zero, three, first)",
    "Gather": "Gather <axis = 0> ({x}, places)", "Expand": "Expand ({x}, wide)",
}  # fmt: skip
STAYING = {
    **{op: f"b = {op} (a)" for op in ("Exp", "Sin", "Cos", "Softplus", "Reciprocal", "Round", "Floor", "HardSigmoid")},
    "Log": "p = Abs (a)  b = Log (p)",
    "Pow": "b = Pow (a, high)",
    "MatMul": "t = Transpose <perm = [1, 0]> (c)  b = MatMul (a, t)",
    "Gemm": "b = Gemm <transB = 1> (a, c)",
    "Einsum": 'b = Einsum <equation = "ij,kj->ik"> (a, c)',
    **{f"Reduce{kind}": f"b = Reduce{kind} <keepdims = 1> (a)" for kind in ("Mean", "Sum", "L2", "SumSquare")},
    "CumSum": "one = Squeeze (zero)  b = CumSum (a, one)",
    "another domain's": "b = com.microsoft.QuickGelu (a)",
    "GlobalAveragePool": "i = Unsqueeze (a, zero)  b = GlobalAveragePool (i)",
}


def graph(body: str, kinds: tuple[str, str] = ("float16", "float16"), outputs: str = "") -> str:
    wide = "a = Cast <to = 1> (x)  c = Cast <to = 1> (z)" if kinds[0] == "float16" else ""
    return f"g ({kinds[0]}[2, 8] x, {kinds[0]}[2, 8] z) => ({kinds[1]}[] y{outputs}) {CONSTANTS} {{ {wide}  {body} }}"


def narrowed(text: str) -> Editor:
    """The graph after the pass, which computes the same but for a rounding."""
    editor, proto = edit(text), parse(text)
    narrow.run(editor)
    types.check(editor, 23, "")
    feeds = feeds_for(proto, {})
    for found, wanted in zip(run(editor.model, feeds), run(proto, feeds), strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=2**-9, atol=2**-12)
    return editor


@pytest.mark.parametrize("body", [*ROUNDED_ONCE.values(), *NORMALIZING.values()], ids=[*ROUNDED_ONCE, *NORMALIZING])
def test_a_single_operator_loses_its_casts(body: str) -> None:
    editor = narrowed(graph(f"{body}  y = Cast <to = 10> (b)"))
    assert "Cast" not in operators(editor)


@pytest.mark.parametrize("body", STAYING.values(), ids=STAYING)
def test_others_keep_them(body: str) -> None:
    text = graph(f"{body}  y = Cast <to = 10> (b)")
    editor = edit(text)
    narrow.run(editor)
    assert editor.dtype(next(t for n in editor.graph.nodes for t in n.outputs if t.name == "b")) == SINGLE


@pytest.mark.parametrize("move", MOVING.values(), ids=MOVING)
def test_elements_move_before_they_are_widened_and_after_they_are_rounded(move: str) -> None:
    sunk = narrowed(graph(f"m = {move.format(x='a')}  y = Exp (m)", ("float16", "float")))
    assert [sunk.dtype(n.inputs[0]) for n in sunk.graph.nodes if n.op in MOVING] == [HALF]
    hoisted = narrowed(graph(f"e = Exp (x)  m = {move.format(x='e')}  y = Cast <to = 10> (m)", ("float", "float16")))
    assert [hoisted.dtype(n.outputs[0]) for n in hoisted.graph.nodes if n.op in MOVING] == [HALF]


KEPT = {
    "a wide tensor with two readers": (
        "m = Reshape (a, shape)  w = Exp (a)  y = Exp (m)", ("float16", "float"), ", float[] w"),
    "a moved tensor with two readers": (
        "e = Exp (x)  m = Reshape (e, shape)  y = Cast <to = 10> (m)  w = Exp (m)",
        ("float", "float16"), ", float[] w"),
    "a moved tensor that is an output": (
        "e = Exp (x)  m = Reshape (e, shape)  y = Cast <to = 10> (m)", ("float", "float16"), ", float[] m"),
    "a result that is read in single too": (
        "b = Sigmoid (a)  y = Cast <to = 10> (b)  w = Exp (b)", ("float16", "float16"), ", float[] w"),
    "a result that is an output": ("b = Sigmoid (a)  y = Cast <to = 10> (b)", ("float16", "float16"), ", float[] b"),
    "rounded to two types": (
        "b = Sigmoid (a)  y = Cast <to = 10> (b)  w = Cast <to = 16> (b)", ("float16", "float16"), ", bfloat16[] w"),
    "an input in single": ("b = Add (a, x32)  y = Cast <to = 10> (b)", ("float16", "float16"), ""),
    "rounded to an integer": ("b = Sigmoid (a)  y = Cast <to = 7> (b)", ("float16", "int64"), ""),
    "widened from an integer": (
        "i = Cast <to = 7> (x)  f = Cast <to = 1> (i)  b = Neg (f)  y = Cast <to = 10> (b)", ("float", "float16"), ""),
    "to a type that is no wider": (
        "f = Cast <to = 16> (x)  b = Neg (f)  y = Cast <to = 10> (b)", ("float16", "float16"), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_what_somebody_needs_wide_stays(case: tuple[str, tuple[str, str], str]) -> None:
    body, kinds, more = case
    text = graph(body, kinds, more)
    if "x32" in body:
        text = text.replace(" z)", " z, float[2, 8] x32)")
    editor = edit(text)
    editor.finish()
    before = operators(editor)
    narrow.run(editor)
    editor.finish()
    assert operators(editor) == before


WEIGHTS: dict[str, tuple[Array, bool]] = {
    "held": (np.array([1.0, -65504.0, 3e-5, 0, 0, 0, 0, 0], np.float32), True),
    "infinite before": (np.array([-np.inf, 1, 0, 0, 0, 0, 0, 0], np.float32), True),
    "too large": (np.array([1, 65520.0, 0, 0, 0, 0, 0, 0], np.float32), False),
    "nothing but numbers for all": (np.array(1e5, np.float32), False),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_constant_is_rounded_where_half_holds_it(name: str) -> None:
    values, held = WEIGHTS[name]
    editor = edit(graph("b = Add (a, v)  y = Cast <to = 10> (b)"), {"v": values})
    narrow.run(editor)
    assert ("Cast" not in operators(editor)) == held


def test_casts_of_copies_are_one() -> None:
    """Up and up, up and back, up and to something else that is narrower."""
    for first, second, left in ((1, 11, [11]), (1, 10, []), (11, 1, [1]), (1, 16, [16]), (11, 10, [])):
        kind = {1: "float", 10: "float16", 11: "double", 16: "bfloat16"}[second]
        text = graph(f"p = Cast <to = {first}> (x)  q = Cast <to = {second}> (p)  y = Neg (q)", ("float16", kind))
        editor = edit(text)
        narrow.run(editor)
        assert [node.attrs["to"] for node in editor.graph.nodes if node.op == "Cast"] == left


def test_doubles_are_narrowed_to_single_too() -> None:
    text = graph("a = Cast <to = 11> (x)  b = Sigmoid (a)  y = Cast <to = 1> (b)", ("float", "float"))
    editor = edit(text)
    narrow.run(editor)
    assert operators(editor) == {"Identity": 1, "Sigmoid": 1}  # the output keeps its name
