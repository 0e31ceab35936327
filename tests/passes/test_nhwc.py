"""Channels-last: the region turns as a whole, transposes are left at its border only, and it computes the same."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
from support.rules import run_fold, run_simplify
from support.small_graphs import Array, Described, check_step, edit, operators, to_proto

from sdort.graph.weights import Weight
from sdort.passes import nhwc
from sdort.passes.layout_rules import TO_LAST, Layout, is_turning
from sdort.providers import load_target
from sdort.rewrite.editor import Editor, producer

SIZES = {"B": 2, "H": 6, "W": 5}
RNG = np.random.default_rng(0)
WEIGHTS: dict[str, Array | Weight] = {
    "w": RNG.standard_normal((4, 4, 3, 3)).astype(np.float32),
    "down": RNG.standard_normal((8, 4, 3, 3)).astype(np.float32),
    "each": RNG.standard_normal((4, 1, 1, 3)).astype(np.float32),
    "b": RNG.standard_normal(4).astype(np.float32),
    "column": RNG.standard_normal((4, 1, 1)).astype(np.float32),
    "image": RNG.standard_normal((1, 4, 1, 5)).astype(np.float32),
    "g": RNG.standard_normal(4).astype(np.float32),
}
CONV = "Conv <pads = [1, 1, 1, 1]>"
NORM = "GroupNormalization <num_groups = 2, epsilon = 0.001>"
TOLERANCE = 1e-5
"""The same sums in another order."""


def turn(editor: Editor) -> None:
    """Turn every node behind a kernel, whether that pays or not."""
    layout = Layout(editor, TO_LAST)
    turns = nhwc.plans(layout, load_target("cuda"))
    chosen: set[int] = set()
    for node in editor.graph.nodes:
        behind = any(id(maker) in chosen for tensor in node.inputs for maker in tensor.inputs)
        behind |= any(is_turning(maker, layout.back) for tensor in node.inputs for maker in tensor.inputs)
        if id(node) in turns and (behind or node.op in ("Conv", "GroupNormalization")):
            chosen.add(id(node))
    nhwc.turn(layout, turns, chosen)


def check(body: str, inputs: str = "float[B, 4, H, W] x", result: str = "float[n, c, h, w] y") -> dict[str, int]:
    text = f"g ({inputs}) => ({result}) {CONSTANTS} {{ {body} }}"
    return check_step(text, turn, SIZES, {k: v for k, v in WEIGHTS.items() if k in body}, rtol=TOLERANCE)


CONSTANTS = """<float two = {2.0}, float low = {-0.5}, float[1, 1, 1] three = {3.0},
float[4] scales = {1.0, 1.0, 2.0, 3.0}, int64[4] sizes = {2, 4, 12, 5},
float[5] v = {1.0, 2.0, 3.0, 4.0, 5.0}, int64[1] first = {2}, int64[1] second = {9},
int64[8] pads = {0, 0, 1, 0, 0, 0, 2, 1}, int64[8] deep = {0, 1, 0, 0, 0, 2, 0, 0}>"""

# --- kernels ---


def test_a_convolution_between_two_transposes() -> None:
    assert check(f"y = {CONV} (x, w, b)") == {"Transpose": 2, "com.microsoft.NhwcConv": 1}


def test_weights_turn_without_being_read() -> None:
    text = f"g (float[B, 4, H, W] x) => (float[n, c, h, w] y) {{ y = {CONV} (x, w) }}"
    editor = edit(text, {"w": Described([8, 4, 3, 1], np.float32)})
    turn(editor)
    (conv,) = (node for node in editor.graph.nodes if node.op == "NhwcConv")
    assert conv.inputs[1].shape == (8, 3, 1, 4)
    assert conv.attrs == {"pads": [1, 1, 1, 1], "kernel_shape": [3, 1]}
    assert editor.shape(conv.outputs[0]) is not None


CONVOLUTIONS = {
    "strides": "y = Conv <strides = [2, 1], pads = [0, 1, 1, 0]> (x, down)",
    "groups and dilations": "y = Conv <group = 4, dilations = [1, 2], pads = [0, 2, 0, 2]> (x, each, b)",
    "padding that is said not to be automatic": 'y = Conv <auto_pad = "NOTSET", pads = [1, 0, 0, 1]> (x, w)',
}


@pytest.mark.parametrize("body", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions_keep_their_settings(body: str) -> None:
    assert check(body) == {"Transpose": 2, "com.microsoft.NhwcConv": 1}


def test_a_group_normalization() -> None:
    assert check(f"y = {NORM} (x, g, b)") == {"Transpose": 2, "com.microsoft.GroupNorm": 1}


def test_a_group_normalization_that_no_kernel_takes_turns_all_the_same() -> None:
    """It is spelled out later, in channels-last: one channel a group is no kernel's form."""
    body = f"c = {CONV} (x, w)  y = GroupNormalization <num_groups = 4> (c, g, b)"
    assert check(body) == {"Transpose": 2, "com.microsoft.GroupNorm": 1, "com.microsoft.NhwcConv": 1}


def test_the_epsilon_that_is_not_stated_is_onnxs() -> None:
    editor = edit(
        "g (float[B, 4, H, W] x) => (float[n, c, h, w] y) { y = GroupNormalization <num_groups = 2> (x, g, b) }",
        {name: WEIGHTS[name] for name in "gb"},
    )
    turn(editor)
    (norm,) = (node for node in editor.graph.nodes if node.op == "GroupNorm")
    assert norm.attrs == {"groups": 2, "epsilon": 1e-5, "activation": 0, "channels_last": 1}


LEFT = {
    "padding that hangs on the size": ("float[B, 4, H, W] x", 'y = Conv <auto_pad = "SAME_UPPER"> (x, w)'),
    "a sequence": ("float[B, 4, W] x", "y = Conv (x, thin)"),
    "a volume": ("float[B, 4, H, W, D] x", f"y = {NORM} (x, g, b)"),
    "a sequence's norm": ("float[B, 4, W] x", f"y = {NORM} (x, g, b)"),
    "computed weights": (
        "float[B, 4, H, W] x, float[4, 4, 3, 3] v",
        "c = Conv <pads = [1, 1, 1, 1]> (x, v)  s = Sigmoid (x)  y = Mul (c, s)",
    ),
    "no convolution at all": ("float[B, 4, H, W] x", "a = Neg (x)  c = Sigmoid (a)  y = Mul (a, c)"),
}


@pytest.mark.parametrize("case", LEFT.values(), ids=LEFT)
def test_what_is_no_image_is_left(case: tuple[str, str]) -> None:
    weights = {**WEIGHTS, "thin": np.ones((4, 4, 3), np.float32)}
    used = {name: value for name, value in weights.items() if f"{name}," in case[1] or f"{name})" in case[1]}
    editor = edit(f"g ({case[0]}) => (float[] y) {{ {case[1]} }}", used)
    before = operators(editor)
    turn(editor)
    assert operators(editor) == before


def test_a_target_without_the_kernel_keeps_the_convolution() -> None:
    text = f"g (float[B, 4, H, W] x) => (float[n, c, h, w] y) {{ y = {CONV} (x, w) }}"
    step = partial(nhwc.run, support=load_target("cpu"))
    assert check_step(text, step, SIZES, {"w": WEIGHTS["w"]}) == {"Conv": 1}


# --- what lies between ---

BETWEEN = {
    "Sigmoid": "m = Sigmoid (a)",
    "Relu": "m = Relu (a)",
    "SiLU": "s = Sigmoid (a)  m = Mul (a, s)",
    "Clip": "m = Clip (a, low, two)",
    "Cast": "d = Cast <to = 11> (a)  m = Cast <to = 1> (d)",
    "a residual": "n = Sigmoid (a)  m = Add (n, a)",
    "the image that came in": "m = Sub (x, a)",
    "a scalar": "m = Mul (two, a)",
    "a scalar of rank 3": "m = Div (a, three)",
    "one number a channel": "m = Add (a, column)",
    "a constant image": "m = Mul (image, a)",
    "Pad": "m = Pad (a, pads)",
    "Pad with a value": "m = Pad (a, pads, two)",
    "Resize by scales": 'm = Resize <mode = "nearest"> (a, , scales)',
    "Resize to sizes": "m = Resize (a, , , sizes)",
    "Softmax over the channels": "m = Softmax <axis = 1> (a)",
    "ONNX Runtime's own activations": "m = com.microsoft.Gelu (a)",
    "Concat of rows": "q = Concat <axis = 2> (a, a)  m = Slice (q, first, second, first)",
    "a vector of one number a column": "m = Add (a, v)",
    "Concat": "n = Neg (a)  q = Concat <axis = 1> (n, a)  m = Conv (q, narrow)",
}


@pytest.mark.parametrize("body", BETWEEN.values(), ids=BETWEEN)
def test_what_lies_between_turns_too(body: str) -> None:
    weights = {**WEIGHTS, "narrow": RNG.standard_normal((4, 8, 1, 1)).astype(np.float32)}
    body = f"a = {CONV} (x, w, b)  {body}  y = {CONV} (m, w)"
    text = f"g (float[B, 4, H, W] x) => (float[n, c, h, wide] y) {CONSTANTS} {{ {body} }}"
    left = check_step(text, turn, SIZES, {k: v for k, v in weights.items() if k in body}, rtol=TOLERANCE)
    assert left["Transpose"] == 2
    assert not {"Conv", "Relu"} & set(left)


def test_sizes_of_a_resize_may_be_computed() -> None:
    body = f"""a = {CONV} (x, w)  s = Shape (like)
    r = Resize <mode = "nearest"> (a, , , s)  y = {CONV} (r, w)"""
    left = check(body, "float[B, 4, H, W] x, float[B, 4, 11, 9] like")
    assert left == {"Gather": 1, "Resize": 1, "Shape": 1, "Transpose": 2, "com.microsoft.NhwcConv": 2}


def test_one_pixel_for_each_channel_is_a_view() -> None:
    body = f"a = {CONV} (x, w)  m = Add (a, t)  y = {CONV} (m, w)"
    left = check(body, "float[B, 4, H, W] x, float[B, 4, 1, 1] t")
    assert left == {"Add": 1, "Reshape": 1, "Transpose": 2, "com.microsoft.NhwcConv": 2}


OUTSIDE = {
    "operators without a channels-last form": "m = InstanceNormalization (a, g, b)",
    "reductions of all axes": "m = ReduceMax <keepdims = 1> (a)",
    "computed values of a lower rank": "m = Add (a, u)",
    "images of a higher rank": "q = Add (a, deep)  m = Squeeze (q, first)",
    "another domain's operators": "m = com.microsoft.BiasGelu (a, v)",
    "Resize of named axes": 'm = Resize <axes = [2, 3], mode = "nearest"> (a, , , two2)',
    "Resize by computed scales": "s = Shape <end = 4> (x)  c = Cast <to = 1> (s)  o = Div (c, c)  "
    'm = Resize <mode = "nearest"> (a, , o)',
    "Resize by computed scales before sizes that are left out": "s = Shape <end = 4> (x)  c = Cast <to = 1> (s)  "
    'o = Div (c, c)  m = Resize <mode = "nearest"> (a, "", o, "")',
    "cropping Resize": 'm = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (a, roi, scales)',
    "linear Resize, whose kernels take the last axes for the image's": 'm = Resize <mode = "linear"> (a, , scales)',
    "cubic Resize": 'm = Resize <mode = "cubic"> (a, , scales)',
    "Pad of named axes": "m = Pad (a, turned, , order)",
    "Pad of computed sizes": "n = Abs (given)  m = Pad (a, n)",
    "Pad of symbolic sizes": "s = Shape (x)  n = Concat <axis = 0> (s, s)  m = Pad (a, n)",
}
MORE = """<float[5] v = {1.0, 2.0, 3.0, 4.0, 5.0}, float[1, 1, 1, 1, 1] deep = {1.0},
int64[1] first = {0}, int64[2] two2 = {12, 10}, float[8] roi = {0.0, 0.0, 0.2, 0.3, 1.0, 1.0, 0.8, 0.9},
float[4] scales = {1.0, 1.0, 2.0, 3.0}, int64[8] turned = {1, 0, 0, 0, 1, 0, 0, 0}, int64[4] order = {3, 2, 1, 0}>"""


@pytest.mark.parametrize("body", OUTSIDE.values(), ids=OUTSIDE)
def test_what_has_no_channels_last_form_gets_its_image_back(body: str) -> None:
    body = f"a = {CONV} (x, w)  {body}  y = Neg (m)"
    inputs = "float[B, 4, H, W] x, float[W] u, int64[8] given"
    text = f"g ({inputs}) => (float[n, c, h, wide] y) {MORE} {{ {body} }}"
    weights = {name: WEIGHTS[name] for name in "wgb" if f"{name})" in body or f"{name}," in body}
    left = check_step(text, turn, SIZES, weights, rtol=TOLERANCE)
    editor = edit(text, weights)
    wanted = {**operators(editor), "Transpose": 2, "com.microsoft.NhwcConv": 1}
    del wanted["Conv"]
    assert left == wanted
    turn(editor)
    assert editor.graph.outputs[0].inputs[0].op == "Neg"  # it reads the image as it was


def test_an_image_that_is_read_inside_and_outside_is_turned_once_each_way() -> None:
    body = f"a = {CONV} (x, w)  y = {CONV} (a, w)  z = Neg (a)"
    left = check(body, result="float[n, c, h, wide] y, float[p, q, r, s] z")
    assert left == {"Neg": 1, "Transpose": 3, "com.microsoft.NhwcConv": 2}


def test_outputs_keep_their_layout_and_their_name() -> None:
    body = f"a = {CONV} (x, w)  y = Sigmoid (a)"
    left = check(body, result="float[n, c, h, wide] y, float[p, q, r, s] a")
    assert left == {"Sigmoid": 1, "Transpose": 3, "com.microsoft.NhwcConv": 1}


# --- transposes that are there already ---


def test_transposes_at_the_border_are_a_change_of_name() -> None:
    """As in a model that was channels-last before: what comes in turned needs no turning."""
    body = f"""p = Transpose <perm = [0, 3, 1, 2]> (x)  a = {CONV} (p, w)
    y = Transpose <perm = [0, 2, 3, 1]> (a)"""
    left = check(body, "float[B, H, W, 4] x")
    assert left == {"Identity": 1, "com.microsoft.NhwcConv": 1}


def test_attention_in_the_middle_reads_the_twin() -> None:
    """Image to sequence and back, as in every transformer block: no transpose is left but the border's."""
    body = f"""a = {CONV} (x, w)
    t = Transpose <perm = [0, 2, 3, 1]> (a)  s = Reshape (t, flat)
    m = Softmax <axis = -1> (s)
    i = Reshape (m, square)  c = Transpose <perm = [0, 3, 1, 2]> (i)  y = Add (c, a)"""
    text = f"""g (float[2, 4, 6, 5] x) => (float[n, c, h, wide] y)
    <int64[3] flat = {{2, 30, 4}}, int64[4] square = {{2, 6, 5, 4}}> {{ {body} }}"""
    left = check_step(text, turn, {}, {"w": WEIGHTS["w"]}, rtol=TOLERANCE)
    assert left == {"Add": 1, "Reshape": 2, "Softmax": 1, "Transpose": 2, "com.microsoft.NhwcConv": 1}


def test_another_transpose_reads_what_is_there() -> None:
    body = f"a = {CONV} (x, w)  t = Transpose <perm = [0, 1, 3, 2]> (a)  y = {CONV} (t, w)"
    left = check(body)
    assert left == {"Transpose": 4, "com.microsoft.NhwcConv": 2}  # it reads the twin


def test_the_region_is_turned_once() -> None:
    body = f"a = {CONV} (x, w)  s = Sigmoid (a)  y = {CONV} (s, w)"
    editor = edit(f"g (float[B, 4, H, W] x) => (float[n, c, h, wide] y) {{ {body} }}", {"w": WEIGHTS["w"]})
    turn(editor)
    once = to_proto(editor.model).graph
    turn(editor)
    run_simplify(editor)
    run_fold(editor)
    assert [node.op_type for node in to_proto(editor.model).graph.node] == [node.op_type for node in once.node]
    assert producer(editor.graph.outputs[0], "Transpose") is not None


# --- back to channels-first ---

CHAINS = ("Neg", "Sigmoid", "Tanh", "Abs")


@pytest.mark.parametrize("sizes", list(product((1, 3), (1, 4), (1, 5))), ids=str)
@pytest.mark.parametrize("count", [1, 3])
def test_images_of_any_sizes_turn_to_channels_first(sizes: tuple[int, int, int], count: int) -> None:
    """What is one row of one channel is no pixel."""
    lines = [f"t{i} = {CHAINS[i]} ({f't{i - 1}' if i else 'x'})" for i in range(count)]
    text = f"""g (float[2, {", ".join(map(str, sizes))}] x) => (float[a, b, c, d] y, float[e, f, g, h] z)
        <int64 across = {{3}}> {{
        {"  ".join(lines)}  first = Transpose <perm = [0, 3, 1, 2]> (t{count - 1})  y = CumSum (first, across)
        s = Exp (first)  z = Transpose <perm = [0, 2, 3, 1]> (s) }}"""
    left = check_step(text, nhwc.to_first, rtol=TOLERANCE)
    assert left.get("Transpose", 0) <= 2
