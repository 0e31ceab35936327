"""Biases move into what reads a tensor, only where every reader takes them, and the graph computes the same."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.small_graphs import Array, check_step, edit

from sdort.passes import channel_biases
from sdort.providers import load_target
from sdort.rewrite.editor import Editor

SIZES = {"B": 2, "H": 4, "W": 3}
RNG = np.random.default_rng(0)
WEIGHTS: dict[str, Array] = {
    "w": RNG.standard_normal((8, 3, 3, 8)).astype(np.float32),
    "v": RNG.standard_normal((8, 1, 1, 8)).astype(np.float32),
    "m": RNG.standard_normal((8, 8)).astype(np.float32),
    **{name: RNG.standard_normal(8).astype(np.float32) for name in ("b", "c", "d", "e", "gamma", "beta")},
    "wide": RNG.standard_normal((12, 8)).astype(np.float32),
    **{name: RNG.standard_normal(4).astype(np.float32) for name in ("gamma4", "beta4")},
    **{name: RNG.standard_normal(16).astype(np.float32) for name in ("gamma2", "beta2")},
}
CONV = "com.microsoft.NhwcConv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]>"
POINT = "com.microsoft.NhwcConv <kernel_shape = [1, 1]>"
NORM = "com.microsoft.GroupNorm <groups = 2, activation = 1, channels_last = 1>"
SKIP = "com.microsoft.SkipGroupNorm <groups = 2, activation = 1, channels_last = 1>"
JOINED = "sdort.GroupNorm <groups = 2, activation = 1, channels_last = 1>"
LAYER = "com.microsoft.SkipLayerNormalization"
IMAGE = "float[B, H, W, 8]"
OWN = ("sdort.GroupNorm", "sdort.BiasGroupNorm", "sdort.BiasLayerNormalization")
TOLERANCE = 1e-5
"""The same sums in another order."""


def text(body: str, outputs: str = f"{IMAGE} y") -> str:
    constants = """<float[4] twice = {1.0, 2.0, 2.0, 1.0}, float[4] half = {1.0, 0.5, 0.5, 1.0}, float[1] one = {1.0},
        int64[3] rows = {0, -1, 8}, int64[3] rows2 = {0, -1, 16}, int64[3] rows4 = {0, -1, 4}, int64[1] last = {3},
        int64[3] pixels = {0, 1, 2}>"""
    control = "mid_block_additional_residual" if "mid_block" in body else "mid"
    return f"g ({IMAGE} x, {IMAGE} s, {IMAGE} {control}, float[B, 8] t) => ({outputs}) {constants} {{ {body} }}"


def weights_of(body: str) -> dict[str, Array]:
    return {key: value for key, value in WEIGHTS.items() if key in re.findall(r"\w+", body)}


def biased(body: str, outputs: str = f"{IMAGE} y", own: bool = True) -> tuple[list[bool], dict[str, int]]:
    """Whether each convolution has a bias after the pass, and the operators; it computes the same."""

    def move(editor: Editor) -> None:
        channel_biases.run(editor, load_target("cuda").without(*([] if own else OWN)))
        found.extend(len(node.inputs) > 2 for node in editor.graph.nodes if node.op == "NhwcConv")

    found: list[bool] = []
    counts = check_step(text(body, outputs), move, SIZES, weights_of(body), rtol=TOLERANCE, opset=18)
    return found, counts


def test_the_projection_of_a_time_embedding_takes_the_bias() -> None:
    """conv1 of a residual block; the SkipGroupNorm needs no bias then."""
    body = f"p = Gemm (t, m, c)  i = {CONV} (x, w, b)  y = {SKIP} (i, gamma, beta, p)"
    editor = edit(text(body), weights_of(body), opset=18)
    assert channel_biases.run(editor, load_target("cuda").without(*OWN)) == 1
    norm = next(node for node in editor.graph.nodes if node.op == "SkipGroupNorm")
    assert len(norm.inputs) == 4
    assert biased(body)[0] == [False]


@pytest.mark.parametrize(
    "body",
    [
        f"p = Gemm <beta = 0.5> (t, m, c)  i = {CONV} (x, w, b)  y = {SKIP} (i, gamma, beta, p)",
        f"p = Gemm (t, m, c)  i = {CONV} (x, w, b)  n = {SKIP} (i, gamma, beta, p)  y = {SKIP} (n, gamma, beta, p)",
        f"p = Gemm (t, m)  i = {CONV} (x, w, b)  y = {SKIP} (i, gamma, beta, p)",
    ],
)
def test_another_projection_does_not_and_the_norm_does(body: str) -> None:
    assert biased(body)[0] == [False]


def test_what_takes_a_bias_takes_those_of_both_summands() -> None:
    """A residual block with its shortcut, and then also with a bias that is there already."""
    both = f"i = {CONV} (x, w, b)  j = {POINT} (s, v, c)"
    for end in (
        f"y, z = {SKIP} (i, gamma, beta, j)",
        f"y, z = {SKIP} (i, gamma, beta, j, d)",
        f"sum = Add (i, j)  z = Identity (x)  y, q = {SKIP} (sum, gamma, beta, s)",
    ):
        assert biased(f"{both}  {end}", f"{IMAGE} y, {IMAGE} z")[0] == [False, False]


def test_a_residual_sum_that_others_need_adds_the_bias() -> None:
    found, counts = biased(f"i = {CONV} (x, w, b)  sum = Add (s, i)  y = {CONV} (sum, w)")
    assert (found, counts["com.microsoft.BiasAdd"], counts.get("Add", 0)) == ([False, False], 1, 0)


def test_what_a_control_adds_stays_a_sum() -> None:
    """It is taken out of graphs that nothing steers."""
    body = f"i = {CONV} (x, w, b)  sum = Add (mid_block_additional_residual, i)  y = {CONV} (sum, w)"
    found, counts = biased(body.replace("mid_block_additional_residual", "mid"))
    assert (found, counts.get("Add")) == ([False, False], None)
    found, counts = biased(body)
    assert (found, counts["Add"]) == ([True, False], 1)
    handed = body.replace(f"y = {CONV} (sum, w)", f"y, z = {SKIP} (sum, gamma, beta, s)")
    assert biased(handed, f"{IMAGE} y, {IMAGE} z")[0] == [False]


def test_sequences() -> None:
    rows, views = "float[B, S, 8] y", "r = Reshape (x, rows)  q = Reshape (s, rows)  i = MatMul (r, m)  k = Add (i, b)"
    for end, count in (
        ("y = Add (k, q)", {"com.microsoft.BiasAdd": 1}),
        ("y = com.microsoft.BiasAdd (k, d, q)", {"com.microsoft.BiasAdd": 1}),
        (f"y = {LAYER} (k, q, gamma, beta)", {"com.microsoft.SkipLayerNormalization": 1}),
        (f"y = {LAYER} (q, k, gamma, beta, d)", {"com.microsoft.SkipLayerNormalization": 1}),
    ):
        counts = biased(f"{views}  {end}", rows)[1]
        assert {name: counts.get(name, 0) for name in (*count, "Add")} == {**count, "Add": 0}


def test_a_norm_alone_takes_it_with_sdorts_operator() -> None:
    body = f"i = {CONV} (x, w, b)  y = {NORM} (i, gamma, beta)"
    found, counts = biased(body)
    assert (found, counts["sdort.BiasGroupNorm"]) == ([False], 1)
    assert biased(body, own=False)[0] == [True]


def test_the_first_norm_of_a_transformer_takes_it_with_sdorts_operator() -> None:
    """proj_in: its sum is read by a layer normalization, and by the residual sum behind the attention."""
    body = f"""i = {CONV} (x, w, b)  r = Reshape (i, rows)
        n = LayerNormalization <axis = -1, epsilon = 0.001> (r, gamma, beta)
        y = {LAYER} (n, r, gamma, beta)"""
    found, counts = biased(body, "float[B, S, 8] y")
    assert (found, counts["sdort.BiasLayerNormalization"]) == ([False], 1)
    assert biased(body, "float[B, S, 8] y", own=False)[0] == [True]


@pytest.mark.parametrize("form", ["<axis = 1> (r, wide, wide)", "(r, gamma)"])
def test_another_form_of_layer_normalization_does_not(form: str) -> None:
    body = f"i = {CONV} (x, w, b)  r = Reshape (i, rows)  y = LayerNormalization {form}"
    assert biased(body, "float[B, 12, 8] y")[0] == [True]


def test_a_norm_writes_the_sum_where_others_need_it() -> None:
    body = f"i = {CONV} (x, w, b)  z = {CONV} (i, w)  n = {NORM} (i, gamma, beta)  y = Add (n, i)"
    found, counts = biased(body, f"{IMAGE} y, {IMAGE} z")
    assert (found, counts["sdort.BiasGroupNorm"]) == ([False, False], 1)
    assert biased(body, f"{IMAGE} y, {IMAGE} z", own=False)[0] == [True, False]


def test_a_norm_that_waits_for_the_tensor_cannot_write_it() -> None:
    body = f"""i = {CONV} (x, w, b)  z = {CONV} (i, w)  r = ReduceMax <keepdims = 0> (i, pixels)
        n = {NORM} (i, r, beta)  y = Add (n, i)"""
    assert biased(body, f"{IMAGE} y, {IMAGE} z")[0] == [True, False]


def test_a_skip_connection_lacks_it_too() -> None:
    """The downsampling of a UNet: its own norm, the residual sum and the norm of the decoder each add the bias."""
    body = f"""i = {CONV} (x, w, b)  n = {NORM} (i, gamma, beta)  k = {CONV} (n, w, c)
        f, z = {SKIP} (k, gamma, beta, i)  y, joined = {JOINED} (f, i, gamma2, beta2)"""
    wide = "float[B, H, W, 16]"
    found, counts = biased(body, f"{wide} y, {IMAGE} z, {wide} joined")
    assert found == [False, False]
    assert (counts["sdort.BiasGroupNorm"], counts["sdort.GroupNorm"]) == (1, 1)


def test_through_views_upsampling_and_concatenation() -> None:
    body = f"""i = {CONV} (x, w, b)  u = Resize <mode = "nearest"> (i, , twice)  k = {CONV} (u, w)
        j = Concat <axis = 3> (u, k)  r = Reshape (j, rows2)  q = Reshape (j, rows2)
        y = {LAYER} (r, q, gamma2, beta2)"""
    found, _ = biased(body, "float[B, S, 16] y")
    assert found == [True, False]  # the second convolution pads what it reads with zeros
    body = body.replace(f"k = {CONV} (u, w)", 'k = Resize <mode = "nearest"> (s, , twice)')
    assert biased(body, "float[B, S, 16] y")[0] == [False]


def test_all_joined_norms_have_a_bias_if_one_has() -> None:
    """A model has one form of each of sdort's operators."""
    body = f"""i = {CONV} (x, w, b)  n, p = {JOINED} (i, s, gamma2, beta2)
        y, q = {JOINED} (x, s, gamma2, beta2)  z = Add (n, q)"""
    wide = "float[B, H, W, 16]"
    assert biased(body, f"{wide} y, {wide} z")[0] == [False]


@pytest.mark.parametrize(
    "body",
    [
        f"y = {CONV} (x, w, b)",
        f"i = {CONV} (x, w, b)  y = Sigmoid (i)",
        f"i = {CONV} (x, w, b)  y = Mul (i, i)",
        f"i = {CONV} (x, w, b)  y, j = {SKIP} (i, gamma, beta, s)  z = Relu (i)",
        f'i = {CONV} (x, w, b)  u = Resize <mode = "linear"> (i, , half)  y, j = {SKIP} (u, gamma, beta, u)',
        f"i = {CONV} (x, w, b)  y = Add (i, b)",
        f"i = {CONV} (x, w, b)  k = ReduceMax (i, last)  p = Add (k, c)  y, j = {SKIP} (p, gamma, beta, p)",
        f"i = {CONV} (x, w, b)  k = Add (i, one)  y, j = {SKIP} (k, gamma, beta, s)",
        f"i = {CONV} (x, w, b)  k = Reshape (i, rows4)  y = {LAYER} (k, k, gamma4, beta4)",
    ],
)
def test_what_needs_the_tensor_itself_gets_it(body: str) -> None:
    shape = "B, S, 4" if "rows4" in body else "B, h, w, 8"
    outputs = f"{IMAGE} y, {IMAGE} z" if "z =" in body else f"float[{shape}] y"
    assert biased(body, outputs)[0] == [True]
