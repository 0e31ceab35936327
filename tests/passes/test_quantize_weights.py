"""Linear layers whose weights are integers: which ones are, and that they compute what their integers say."""

from __future__ import annotations

import numpy as np
import pytest
from support.small_graphs import Array, edit, feeds_for, operators, parse, run, to_proto

from sdort.families.component_names import DECODER
from sdort.graph.group_quantized import GroupFormat, quantize
from sdort.passes import quantize_weights
from sdort.passes.quantize_weights import FIRST, LAST, SMALL, STEERING, QuantizedWeights

RNG = np.random.default_rng(0)
SIZES = {"B": 2, "S": 5}
EIGHT, FOUR = GroupFormat(8, 32), GroupFormat(4, 16)

LAYERS = """g (float[B, S, 40] x) => (float[B, S, 48] y) {
    a = MatMul (x, first)  s = Relu (a)  b = MatMul (s, second)  t = Relu (b)  y = MatMul (t, last)
}"""


def matrix(*shape: int, dtype: type = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def rounded(values: Array, form: GroupFormat) -> Array:
    """What is left of a matrix [columns, rows] in integers."""
    groups = quantize(values.T, form, values.dtype)
    found = (groups.integers.astype(np.float32) - groups.zeros[..., None]) * groups.scales[..., None].astype(np.float32)
    return found.reshape(values.shape[1], -1)[:, : values.shape[0]].T.astype(values.dtype)


@pytest.mark.parametrize("form", [EIGHT, FOUR], ids=str)
def test_a_layer_computes_what_its_integers_say(form: GroupFormat) -> None:
    """In a group that does not fill a row, too."""
    weights = {"first": matrix(40, 64), "second": matrix(64, 64), "last": matrix(64, 48)}
    editor = edit(LAYERS, weights, 18)
    done = quantize_weights.run(editor, form)
    assert operators(editor) == {"MatMul": 1, "Relu": 2, "com.microsoft.MatMulNBits": 2}
    assert (done.layers, done.kept) == (2, {LAST: 1})
    assert done.bytes_before == 4 * (40 * 64 + 64 * 64)
    assert done.bytes_after == sum(form.stored_bytes(64, columns, 4) for columns in (40, 64))
    stored = {name: rounded(values, form) if name != "last" else values for name, values in weights.items()}
    feeds = feeds_for(parse(LAYERS, weights, 18), SIZES)
    (found,), (expected,) = run(to_proto(editor.model), feeds), run(parse(LAYERS, stored, 18), feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_a_gemm_keeps_its_bias_and_its_layout() -> None:
    text = """g (float[B, 64] x) => (float[B, 32] y) {
        a = Gemm <transB = 1> (x, one, bias)  b = Gemm (a, two)  c = Relu (b)  y = MatMul (c, last)
    }"""
    weights = {"one": matrix(48, 64), "bias": matrix(48), "two": matrix(48, 32), "last": matrix(32, 32)}
    editor = edit(text, weights, 18)
    assert quantize_weights.run(editor, EIGHT).layers == 2
    stored = {**weights, "one": rounded(weights["one"].T, EIGHT).T, "two": rounded(weights["two"], EIGHT)}
    feeds = feeds_for(parse(text, weights, 18), SIZES)
    (found,), (expected,) = run(to_proto(editor.model), feeds), run(parse(text, stored, 18), feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("product", [
    "Gemm <transA = 1> (x, w)", "Gemm <alpha = 0.5> (x, w)", "MatMul (w, x)", "MatMul (x, three)", "MatMul (x, x)",
])  # fmt: skip
def test_other_products_stay(product: str) -> None:
    text = f"g (float[64, 64] x) => (float[n, 64, 64] z) {{ y = {product}  z = MatMul (y, three) }}"
    editor = edit(text, {"w": matrix(64, 64), "three": matrix(2, 64, 64)}, 18)
    before = operators(editor)
    assert quantize_weights.run(editor, EIGHT).layers == 0
    assert operators(editor) == before


DENOISER = """g (float[B, S, 64] sample, float[B] timestep, float[B, T, 64] encoder_hidden_states)
    => (float[B, S, 64] out) {
    size = Shape <start = 0, end = 1> (sample)
    times = Expand (timestep, size)
    axes = Constant <value_ints = [1, 2]> ()
    column = Unsqueeze (times, axes)
    scale = MatMul (column, waves)
    steering = MatMul (scale, modulation)
    inner = MatMul (sample, first)
    states = MatMul (encoder_hidden_states, context)
    mean = ReduceMean <keepdims = 1> (states, middle)
    moved = Mul (inner, steering)
    steered = Add (moved, mean)
    again = MatMul (steered, second)
    small = MatMul (again, narrow)
    wide = MatMul (small, back)
    out = MatMul (wide, last)
}"""


def test_what_steers_and_the_ends_keep_their_weights() -> None:
    """How large the sample is, which the timestep is repeated by, says nothing of it."""
    weights = {
        "waves": matrix(1, 320), "modulation": matrix(320, 64), "first": matrix(64, 64), "context": matrix(64, 64),
        "second": matrix(64, 64), "narrow": matrix(64, 8), "back": matrix(8, 64), "last": matrix(64, 64),
        "middle": np.array([1]),
    }  # fmt: skip
    editor = edit(DENOISER, weights, 18)
    done = quantize_weights.run(editor, EIGHT)
    assert done.kept == {STEERING: 2, FIRST: 1, SMALL: 1, LAST: 1}
    assert done.layers == 3  # the context's, the second one, and the one to a few columns
    left = {node.inputs[1].name for node in editor.graph.nodes if node.op == "MatMul"}
    assert left == {"waves", "modulation", "first", "back", "last"}


def test_a_matrix_of_two_layers_is_stored_once() -> None:
    text = """g (float[B, S, 64] x) => (float[B, S, 64] y) {
        a = MatMul (x, w)  s = Relu (a)  b = MatMul (s, w)  t = Relu (b)  y = MatMul (t, last)
    }"""
    editor = edit(text, {"w": matrix(64, 64), "last": matrix(64, 64)}, 18)
    done = quantize_weights.run(editor, EIGHT)
    assert (done.layers, done.bytes_before) == (2, 4 * 64 * 64)
    assert len(to_proto(editor.model).graph.initializer) == 3


def test_a_decoder_is_no_place_for_integers() -> None:
    editor = edit(LAYERS, {"first": matrix(40, 64), "second": matrix(64, 64), "last": matrix(64, 48)}, 18)
    assert quantize_weights.has_integers(editor.model)
    editor.model.component = DECODER
    assert not quantize_weights.has_integers(editor.model)
    assert quantize_weights.run(editor, EIGHT) == QuantizedWeights("int8, groups of 32", 0, 0, 0, {})


@pytest.mark.parametrize("half", [False, True])
def test_what_is_saved_is_known_before(half: bool) -> None:
    weights = {"first": matrix(40, 64), "second": matrix(64, 64), "last": matrix(64, 48)}
    editor = edit(LAYERS, weights, 18)
    saved = quantize_weights.saved_bytes(editor.model, FOUR, half=half)
    if half:
        editor = edit(LAYERS.replace("float[", "float16["), {n: w.astype(np.float16) for n, w in weights.items()}, 18)
    done = quantize_weights.run(editor, FOUR)
    assert saved == done.bytes_before - done.bytes_after > 0
