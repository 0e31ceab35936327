"""FP16: what is safe in 11 bits is, what is not stays in fp32, and the result is what fp32 gives, rounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support import stored
from support.rules import run_fold
from support.small_graphs import Array, Described, edit, feeds_for, operators, parse, run

from sdort.graph.weights import Weight
from sdort.passes import half
from sdort.rewrite.editor import Editor

RNG = np.random.default_rng(0)
SIZES = {"B": 2, "H": 6, "W": 5}
FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)
ROUNDING = 4e-3
"""A few roundings to 11 bits, relative to the largest element."""


def convert(
    text: str, weights: Mapping[str, Array | Weight] | None = None, *, opset: int = 18, io_fp16: bool = False
) -> Editor:
    """As the pipeline does it."""
    editor = edit(text, weights, opset)
    half.run(editor, io_fp16=io_fp16)
    while run_fold(editor):
        pass
    return editor


def check(
    text: str, weights: Mapping[str, Array] | None = None, feeds: Mapping[str, Array] | None = None
) -> tuple[Editor, list[Array]]:
    """The converted graph and its outputs, after a check that they are those of fp32 but for rounding."""
    editor, proto = convert(text, weights), parse(text, weights, 18)
    given = {name: rounded(value) for name, value in {**feeds_for(proto, SIZES), **(feeds or {})}.items()}
    outputs = stored.run(editor.model, given)
    for found, wanted in zip(outputs, run(proto, given), strict=True):
        assert found.dtype == wanted.dtype
        assert np.isfinite(found).all()
        assert np.abs(found - wanted).max() <= ROUNDING * np.abs(wanted).max()
    return editor, outputs


def rounded(values: Array) -> Array:
    """Floats that fp16 holds: what is lost of an input no conversion can bring back."""
    return values.astype(np.float16).astype(values.dtype) if values.dtype == np.float32 else values


def results(editor: Editor) -> dict[str, set[np.dtype[Any] | None]]:
    """The types that each operator computes in."""
    found: dict[str, set[np.dtype[Any] | None]] = {}
    for node in editor.graph.nodes:
        found.setdefault(node.op, set()).add(editor.dtype(node.outputs[0]))
    return found


def inputs_of(editor: Editor, op: str) -> list[np.dtype[Any] | None]:
    (node,) = (node for node in editor.graph.nodes if node.op == op)
    return [editor.dtype(tensor) if tensor.name else None for tensor in node.inputs]


def weights(**shapes: tuple[int, ...]) -> dict[str, Array]:
    return {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


# --- weights, inputs, outputs ---

PROJECTION = "g (float[B, 8] x) => (float[B, n] y) { y = MatMul (x, w) }"


def test_inputs_and_outputs_keep_their_types() -> None:
    made = weights(w=(8, 4))
    editor, (y,) = check(PROJECTION, made, {"x": np.eye(8, dtype=np.float32)})
    assert operators(editor) == {"Cast": 2, "MatMul": 1}
    assert inputs_of(editor, "MatMul") == [HALF, HALF]
    np.testing.assert_array_equal(y, made["w"].astype(np.float16).astype(np.float32))


def test_inputs_and_outputs_in_fp16_need_no_casts() -> None:
    editor = convert(PROJECTION, weights(w=(8, 4)), io_fp16=True)
    assert operators(editor) == {"MatMul": 1}
    ends = (*editor.graph.inputs, *editor.graph.outputs)
    assert [(tensor.name, np.dtype(tensor.dtype)) for tensor in ends] == [("x", HALF), ("y", HALF)]


def test_weights_are_rounded_later() -> None:
    editor = convert(PROJECTION, {"w": Described([8, 4], np.float32)})
    (matmul,) = (node for node in editor.graph.nodes if node.op == "MatMul")
    values = matmul.inputs[1]._values
    assert isinstance(values, Weight)
    assert (values.shape, values.dtype) == ((8, 4), HALF)
    assert [type(leaf) for leaf in values.leaves()] == [Described]


def test_integers_stay() -> None:
    text = """
    g (int64[B, H] i) => (float[B, H, n] y, int64[B, one] m) <int64[1] last = {-1}> {
        y = Gather (w, i)  m = ReduceSum (i, last)
    }"""
    editor, _ = check(text, weights(w=(4, 8)))
    assert results(editor) == {"Gather": {HALF}, "ReduceSum": {np.dtype(np.int64)}, "Cast": {FLOAT}}
    assert half.fp32_nodes(edit(text, weights(w=(4, 8)))) == []


def test_an_output_that_is_read_inside() -> None:
    body = "y = Neg (x)  z = Sigmoid (y)  v = Abs (y)"
    editor, _ = check(f"g (float[B, H] x) => (float[B, H] y, float[B, H] z, float[B, H] v) {{ {body} }}")
    assert {op: results(editor)[op] for op in ("Neg", "Sigmoid", "Abs")} == {
        "Neg": {HALF},
        "Sigmoid": {HALF},
        "Abs": {HALF},
    }
    assert [(tensor.name, np.dtype(tensor.dtype)) for tensor in editor.graph.outputs] == [(n, FLOAT) for n in "yzv"]


@pytest.mark.parametrize("io_fp16", [False, True])
def test_an_output_of_an_island_has_the_type_of_the_others(io_fp16: bool) -> None:
    text = "g (int64[B] t) => (float[B] y, float[B] s) { f = Cast <to = 1> (t)  y = Sin (f)  s = Neg (y) }"
    editor = convert(text, io_fp16=io_fp16)
    wanted = HALF if io_fp16 else FLOAT
    assert [np.dtype(tensor.dtype) for tensor in editor.graph.outputs] == [wanted] * 2
    t = np.array([999, 501])
    y, s = run(editor.model, {"t": t})
    assert y.dtype == s.dtype == wanted
    assert np.abs(y - np.sin(t)).max() < 1e-3
    assert np.abs(s + np.sin(t)).max() < 1e-3


def test_a_tensor_that_an_operator_leaves_out_stays_out() -> None:
    """SkipLayerNormalization's mean and variance have no names."""
    text = """
    g (float[B, H, 8] x, float[B, H, 8] s) => (float[B, H, 8] y, float[B, H, 8] sum) {
        y, , , sum = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (x, s, g, b)
    }"""
    editor, _ = check(text, weights(g=(8,), b=(8,)))
    assert inputs_of(editor, "SkipLayerNormalization") == [HALF] * 4
    assert operators(editor) == {"Cast": 4, "com.microsoft.SkipLayerNormalization": 1}
    (norm,) = (node for node in editor.graph.nodes if node.op == "SkipLayerNormalization")
    assert [bool(tensor.name) for tensor in norm.outputs] == [True, False, False, True]


# --- islands ---

TIME = """
g (int64[B] t) => (float[B, n] y) <int64[1] last = {-1}> {
    u = Unsqueeze (t, last)  f = Cast <to = 1> (u)
    a = Mul (f, rates)  s = Sin (a)  c = Cos (a)
    e = Concat <axis = -1> (c, s)  y = MatMul (e, w)
}"""


def test_the_timesteps_way_to_its_waves_is_fp32() -> None:
    """999 in fp16 times a rate is off by up to 0.25, a quarter of a wave's slope."""
    made = {"rates": np.exp(-np.arange(8) / 4).astype(np.float32)[None], **weights(w=(16, 4))}
    t = np.array([999, 501])
    editor, (y,) = check(TIME, made, {"t": t})
    assert {op: results(editor)[op] for op in ("Mul", "Sin", "Cos", "Concat", "MatMul")} == {
        "Mul": {FLOAT}, "Sin": {FLOAT}, "Cos": {FLOAT}, "Concat": {HALF}, "MatMul": {HALF},
    }  # fmt: skip
    assert half.fp32_nodes(edit(TIME, made)) == ["Cast.1", "Cos.4", "Mul.2", "Sin.3"]
    # The timestep to float, each wave to fp16, the output to float; none between the nodes of the island.
    assert operators(editor)["Cast"] == 4
    angles = t[:, None] * made["rates"].astype(np.float64)
    exact = np.concatenate([np.cos(angles), np.sin(angles)], -1) @ made["w"]
    assert np.abs(y - exact).max() < ROUNDING * np.abs(exact).max()


def test_a_cast_to_float_stays_one() -> None:
    text = "g (int64[B, H] i) => (float[B, H] y) { f = Cast <to = 1> (i)  y = Neg (f) }"
    assert half.fp32_nodes(edit(text)) == ["Cast.0"]
    editor, _ = check(text)
    (cast,) = editor.graph.inputs[0].outputs
    assert (cast.op, editor.dtype(cast.outputs[0])) == ("Cast", FLOAT)


def test_the_roundings_of_the_model_stay() -> None:
    """Only the converter's own detours between two nodes of an island are cut short."""
    body = "s = Sin (x)  h = Cast <to = 10> (s)  f = Cast <to = 1> (h)  y = Cos (f)"
    editor, _ = check(f"g (float[B] x) => (float[B] y) {{ {body} }}")
    assert results(editor)["Sin"] == results(editor)["Cos"] == {FLOAT}
    (widening,) = (node for node in editor.graph.nodes if node.name == "Cast.2")
    assert editor.dtype(widening.inputs[0]) == HALF


def test_what_reads_an_island_as_integers() -> None:
    body = "a = Abs (x)  s = Sqrt (a)  i = Cast <to = 7> (s)  y = Gather (w, i)"
    made = weights(w=(8, 4))
    editor, _ = check(f"g (float[B] x) => (float[B, n] y) {{ {body} }}", made, {"x": np.array([4.5, 40.0], np.float32)})
    assert results(editor)["Cast"] == {HALF, FLOAT, np.dtype(np.int64)}


def test_a_constant_of_both_worlds_has_both_types() -> None:
    text = "g (float[B] x) => (float[B] y) { a = Mul (x, k)  s = Sin (a)  y = Mul (s, k) }"
    editor, _ = check(text, {"k": np.array(3.7, np.float32)}, {"x": np.array([100.0, -7.0], np.float32)})
    assert results(editor)["Mul"] == {FLOAT, HALF}


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
def test_sums_over_an_image_are_fp32(op: str) -> None:
    """The sum of its elements is no fp16 number, though they and their mean are."""
    body = f"a = Neg (x)  r = {op} (a, axes)  c = Mul (r, k)  y = Abs (c)"
    text = f"g (float[2, 40, 50] x) => (float[2, i, j] y) <int64[2] axes = {{1, 2}}, float k = {{0.5}}> {{ {body} }}"
    x = np.full((2, 40, 50), 60.0, np.float32)
    x[:, 20:] *= -1 if op == "ReduceSum" else 1
    editor, _ = check(text, feeds={"x": x + np.float32(1 / 32)})
    assert results(editor)[op] == {FLOAT}
    assert results(editor)["Mul"] == {HALF if op == "ReduceMean" else FLOAT}  # a sum times a small number is a mean


VARIANCE = """
g (float[B, 64] x) => (float[B, 64] y) <int64[1] axis = {{-1}}, float two = {{2.0}}, float eps = {{0.00001}}> {{
    m = ReduceMean (x, axis)  d = Sub (x, m)  p = {square}  v = ReduceMean (p, axis)
    a = {add}  s = Sqrt (a)  y = Div (d, s)
}}"""


@pytest.mark.parametrize("add", ["Add (v, eps)", "Add (eps, v)"])
@pytest.mark.parametrize("square", ["Pow (d, two)", "Mul (d, d)"])
def test_a_variance_is_fp32_up_to_its_root(square: str, add: str) -> None:
    """Squares of what is farther than 256 from the mean are no fp16 numbers."""
    x = 400 * RNG.standard_normal((2, 64))
    editor, (y,) = check(VARIANCE.format(square=square, add=add), feeds={"x": x.astype(np.float32)})
    types = results(editor)
    assert [types[op] for op in (square.split()[0], "Add", "Sqrt", "ReduceMean")] == [{FLOAT}] * 4
    assert [types[op] for op in ("Sub", "Div")] == [{HALF}] * 2
    exact = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    assert np.abs(y - exact).max() < ROUNDING * np.abs(exact).max()


def test_what_follows_a_root_or_a_wave_is_fp16() -> None:
    editor, _ = check("g (float[B, H] x) => (float[B, H] y) { a = Abs (x)  s = Sqrt (a)  c = Cos (s)  y = Neg (c) }")
    assert results(editor) == {"Abs": {FLOAT}, "Sqrt": {FLOAT}, "Cos": {FLOAT}, "Neg": {HALF}, "Cast": {HALF, FLOAT}}
    editor, _ = check("g (float[B, H] x) => (float[B, H] y) { a = Abs (x)  s = Sqrt (a)  y = Neg (s) }")
    assert {op: results(editor)[op] for op in ("Abs", "Sqrt", "Neg")} == {"Abs": {HALF}, "Sqrt": {FLOAT}, "Neg": {HALF}}


# --- inputs that kernels read as fp32 ---


def test_the_scale_and_bias_of_group_norms_are_fp32() -> None:
    body = """
    n = com.microsoft.GroupNorm <groups = 2, epsilon = 0.00001, activation = 1, channels_last = 1> (x, g, b)
    y = com.microsoft.SkipGroupNorm <groups = 2, epsilon = 0.00001, activation = 0, channels_last = 1> (n, g, b, x, c)
    """
    text = f"g (float[B, H, W, 4] x) => (float[B, H, W, 4] y) {{ {body} }}"
    editor, _ = check(text, weights(g=(4,), b=(4,), c=(4,)))
    assert inputs_of(editor, "GroupNorm") == [HALF, FLOAT, FLOAT]
    assert inputs_of(editor, "SkipGroupNorm") == [HALF, FLOAT, FLOAT, HALF, HALF]


def test_scales_that_group_norm_shares_with_others_are_what_each_reads() -> None:
    norm = "com.microsoft.GroupNorm <groups = 2, epsilon = 0.00001, activation = 0, channels_last = 1>"
    text = f"g (float[B, H, W, 4] x) => (float[B, H, W, 4] y) {{ n = {norm} (x, g, g)  y = Add (n, g) }}"
    editor, _ = check(text, weights(g=(4,)))
    assert inputs_of(editor, "GroupNorm") == [HALF, FLOAT, FLOAT]
    assert inputs_of(editor, "Add") == [HALF, HALF]


def test_the_scales_of_a_resize_are_fp32() -> None:
    """Twice 2.4 is 4.8 pixels, in fp16 as well; a hundred times, not."""
    scales = np.array([1, 1, 2.4, 2.4], np.float32)
    text = 'g (float[1, 2, 5, 5] x) => (float[a, b, c, d] y) { r = Resize <mode = "nearest"> (x, , s)  y = Neg (r) }'
    editor, (y,) = check(text, {"s": scales})
    assert inputs_of(editor, "Resize") == [HALF, None, FLOAT]
    (resize,) = (node for node in editor.graph.nodes if node.op == "Resize")
    np.testing.assert_array_equal(np.asarray(resize.inputs[2].values), scales)
    assert y.shape == (1, 2, 12, 12)


COMPUTED = {
    "from integers": ("f = Cast <to = 1> (i)  s = Mul (f, k)", "int64[4] i"),
    "from a cast alone": ("s = Cast <to = 1> (i)", "int64[4] i"),
    "as an input": ("", "float[4] s"),
}


@pytest.mark.parametrize("io_fp16", [False, True])
@pytest.mark.parametrize("case", COMPUTED.values(), ids=COMPUTED)
def test_computed_scales_are_fp32_too(case: tuple[str, str], io_fp16: bool) -> None:
    made = weights(k=())
    made["k"][...] = 1.0
    body = f'{case[0]}  r = Resize <mode = "nearest"> (x, , s)  y = Neg (r)'
    text = f"g (float[1, 2, 5, 5] x, {case[1]}) => (float[a, b, c, d] y) {{ {body} }}"
    used = made if " k)" in body else {}
    editor = convert(text, used, io_fp16=io_fp16)
    assert inputs_of(editor, "Resize") == [HALF, None, FLOAT]
    x: Array = RNG.integers(-9, 9, (1, 2, 5, 5)).astype(HALF if io_fp16 else FLOAT)
    given = np.array([1, 1, 2, 3]).astype(np.int64 if "int64" in case[1] else x.dtype)
    (y,) = run(editor.model, {"x": x, case[1][-1]: given})
    np.testing.assert_array_equal(y, np.negative(x.repeat(2, 2).repeat(3, 3)))


# --- the rest ---


def test_fused_operators_of_a_model_that_had_none() -> None:
    editor = edit(PROJECTION.replace("y = MatMul", "m = MatMul").replace("}", " y = Neg (m) }"), weights(w=(8, 4)), 18)
    neg = editor.graph.nodes[1]
    neg.inputs[0] = editor.op("QuickGelu", [neg.inputs[0]], domain="com.microsoft")
    editor.finish()
    half.run(editor)
    assert operators(editor) == {"Cast": 2, "MatMul": 1, "Neg": 1, "com.microsoft.QuickGelu": 1}


def test_attributes_that_are_tensors() -> None:
    body = "s = Shape (x)  o = ConstantOfShape <value: tensor = float[1] {0.5}> (s)  y = Mul (x, o)"
    editor, _ = check(f"g (float[B, H] x) => (float[B, H] y) {{ {body} }}")
    assert results(editor)["ConstantOfShape"] == {HALF}


def test_a_model_in_fp16_stays_as_it_is() -> None:
    text = "g (float16[B, 8] x) => (float16[B, n] y) { a = MatMul (x, w)  s = Sqrt (a)  y = Cos (s) }"
    weight = {"w": RNG.standard_normal((8, 4)).astype(np.float16)}
    assert results(convert(text, weight)) == {"MatMul": {HALF}, "Sqrt": {HALF}, "Cos": {HALF}}
    assert half.run(edit(text, weight, 18)) == 0


def test_what_computes_in_another_type_is_counted() -> None:
    """A product, and the casts of what comes in and goes out."""
    assert half.run(edit(PROJECTION, weights(w=(8, 4)), 18)) == 3
    assert half.run(edit(PROJECTION, weights(w=(8, 4)), 18), io_fp16=True) == 1


def test_names_and_shapes_of_inputs_and_outputs_stay() -> None:
    editor = convert(PROJECTION, weights(w=(8, 4)))
    assert [(t.name, t.shape, np.dtype(t.dtype)) for t in editor.graph.inputs] == [("x", ["B", 8], FLOAT)]
    assert [(t.name, t.shape, np.dtype(t.dtype)) for t in editor.graph.outputs] == [("y", ["B", "n"], FLOAT)]
