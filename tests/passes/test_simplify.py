"""Simplifications: what exporters write in several ways is written in one, and computes the same."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.rules import run_simplify
from support.small_graphs import Array, Described, check_step, edit, operators

from sdort.graph.weights import Weight
from sdort.passes import simplify
from sdort.rewrite.editor import Editor

SIZES = {"B": 2, "H": 3, "W": 5}


def rounds(editor: Editor) -> None:
    """As the pipeline runs it: until nothing changes."""
    while run_simplify(editor):
        pass


def attributes(editor: Editor, op: str) -> dict[str, object]:
    (node,) = (node for node in editor.graph.nodes if node.op == op)
    return dict(node.attrs)


# --- names of the same thing ---

LAST = {
    "Concat": ("y = Concat <axis = 2> (x, x)", "[B, H, W2]"),
    "Softmax": ("y = Softmax <axis = 2> (x)", "[B, H, 4]"),
    "LayerNormalization": ("y = LayerNormalization <axis = 2> (x, g)", "[B, H, 4]"),
    "Gather": ("y = Gather <axis = 2> (x, i)", "[B, H]"),
    "Split": ("y, z = Split <axis = 2, num_outputs = 2> (x)", "[B, H, 2]"),
}
CONSTANTS = "<float[4] g = {1.0, 2.0, 3.0, 4.0}, int64 i = {1}>"


@pytest.mark.parametrize("case", LAST.values(), ids=LAST)
def test_the_last_axis_is_called_minus_one(case: tuple[str, str]) -> None:
    text = f"g (float[B, H, 4] x) => (float{case[1]} y) {CONSTANTS} {{ {case[0]} }}"
    (op,) = check_step(text, run_simplify, SIZES)
    editor = edit(text)
    assert run_simplify(editor) == 1
    assert attributes(editor, op)["axis"] == -1
    assert run_simplify(editor) == 0


RESIZES = {
    "scales": ("axes = [3, 1]", "(x, , scales)", {}),
    "scales, the axes from behind": ("axes = [-1, 1]", "(x, , scales)", {}),
    "sizes": ('axes = [-1, 2], mode = "linear"', "(x, , , sizes)", {"ScatterND": 1, "Shape": 1}),
}
RESIZE = "<float[2] scales = {2.0, 3.0}, int64[2] sizes = {7, 4}, float[4] roi = {0.0, 0.1, 0.9, 0.8}>"


@pytest.mark.parametrize("case", RESIZES.values(), ids=RESIZES)
def test_a_resize_of_named_axes_is_one_of_all(case: tuple[str, str, dict[str, int]]) -> None:
    text = f"g (float[B, 2, H, W] x) => (float[a, b, c, d] y) {RESIZE} {{ y = Resize <{case[0]}> {case[1]} }}"
    assert check_step(text, rounds, SIZES) == {"Resize": 1, **case[2]}
    editor = edit(text)
    rounds(editor)
    assert "axes" not in attributes(editor, "Resize")


@pytest.mark.parametrize(
    "settings",
    [
        'coordinate_transformation_mode = "tf_crop_and_resize"> (x, roi, , sizes)',
        'keep_aspect_ratio_policy = "not_larger"> (x, , , sizes)',
        'keep_aspect_ratio_policy = "not_smaller"> (x, , , sizes)',
    ],
)
def test_a_resize_of_a_region_or_in_proportion_keeps_its_axes(settings: str) -> None:
    editor = edit(f"g (float[B, 2, H, W] x) => (float[] y) {RESIZE} {{ y = Resize <axes = [2, 3], {settings} }}")
    assert run_simplify(editor) == 0


@pytest.mark.parametrize("node", ["Concat <axis = 1> (x, x)", "Softmax <axis = 0> (x)", "Softmax <axis = -1> (x)"])
def test_other_axes_keep_their_numbers(node: str) -> None:
    editor = edit(f"g (float[B, H, 4] x) => (float[] y) {{ y = {node} }}")
    assert run_simplify(editor) == 0


def test_the_only_axis_is_called_0() -> None:
    editor = edit("g (float[B] x) => (float[] y) { y = Concat <axis = 0> (x, x) }")
    assert run_simplify(editor) == 0


@pytest.mark.parametrize(
    ("flag", "target", "left"), [(0, "{0, -1}", {}), (1, "{2, -1}", {}), (1, "{0, 12}", {"allowzero": 1})]
)
def test_a_target_without_zeros_means_the_same_whatever_allowzero_says(
    flag: int, target: str, left: dict[str, int]
) -> None:
    rows = 0 if "12" in target else 2
    body = f"y = Reshape <allowzero = {flag}> (x, s)"
    text = f"g (float[{rows}, H, 4] x) => (float[] y) <int64[2] s = {target}> {{ {body} }}"
    check_step(text, run_simplify, SIZES)
    editor = edit(text)
    assert run_simplify(editor) == (not left)
    assert attributes(editor, "Reshape") == left


@pytest.mark.parametrize(
    ("scale", "shift", "inputs"),
    [("1, 1, 1, 1", "0, 0, 0, 0", 2), ("1, 1, 1, 2", "0, 0, 0, 0", 3), ("1, 1, 1, 1", "0, 0, 0, 1", 3)],
)
def test_a_layer_norm_of_ones_and_zeros_has_no_affine(scale: str, shift: str, inputs: int) -> None:
    text = f"""
    g (float[B, 4] x) => (float[B, 4] y) <float[4] w = {{{scale}}}, float[4] b = {{{shift}}}> {{
        y = LayerNormalization <axis = -1> (x, w, b)
    }}"""
    check_step(text, run_simplify, SIZES)
    editor = edit(text)
    assert run_simplify(editor) == (inputs == 2)
    assert len(editor.graph.nodes[0].inputs) == inputs


def test_cast_like_is_a_cast() -> None:
    text = "g (float[B] x, int64[H] i) => (float[H] y) { c = CastLike (i, x)  y = Neg (c) }"
    assert check_step(text, run_simplify, SIZES) == {"Cast": 1, "Neg": 1}


def test_cast_like_something_of_unknown_type_stays() -> None:
    editor = edit("g (float[B] x, int64[H] i) => (float[H] y) { c = CastLike (i, x)  y = Neg (c) }")
    editor.graph.nodes[0].inputs[1] = gs.Variable("who_knows")
    assert run_simplify(editor) == 0


# --- scalars ---

HALF = "<float two = {2.0}, float[1] four = {4.0}, float[1, 1, 1] half = {0.5}, float[4] row = {1.0, 2.0, 3.0, 4.0}>"


def test_division_by_a_power_of_two_is_multiplication() -> None:
    text = f"g (float[B, 4] x) => (float[B, 4] y) {HALF} {{ y = Div (x, four) }}"
    assert check_step(text, run_simplify, SIZES) == {"Mul": 1}
    text = "g (float16[B, 4] x) => (float16[B, 4] y) <float16 eight = {18432}> { y = Div (x, eight) }"
    assert check_step(text, run_simplify, SIZES) == {"Mul": 1}


DIVISIONS = {
    "by a row": ("float[B, 4] x", "y = Div (x, row)"),
    "by data": ("float[B, 4] x", "n = Neg (x)  y = Div (x, n)"),
    "of a scalar": ("float[B, 4] x", "y = Div (two, x)"),
    "by what has a rounded reciprocal": ("float[B, 4] x", "y = Div (x, ten)"),
    "by zero": ("float[B, 4] x", "y = Div (x, nothing)"),
    "by what has no reciprocal": ("float[B, 4] x", "y = Div (x, tiny)"),
    "to a larger shape": ("float[B, 4] x", "y = Div (x, half)"),
    "of integers": ("int64[B, 4] x", "y = Div (x, three)"),
}


@pytest.mark.parametrize("case", DIVISIONS.values(), ids=DIVISIONS)
def test_other_divisions_stay(case: tuple[str, str]) -> None:
    more = HALF.replace(">", ", float nothing = {0.0}, float ten = {10.0}, int64 three = {3}>")
    tiny: dict[str, Array | Weight] = {"tiny": np.array(2.0**-140, np.float32)}
    editor = edit(f"g ({case[0]}) => (float[] y) {more} {{ {case[1]} }}", tiny)
    before = operators(editor)
    assert run_simplify(editor) == 0
    assert operators(editor) == before


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_automatic_pads_are_those_that_onnx_runtime_takes(mode: str) -> None:
    """Where strides leave more than a kernel out they would be negative, and stay what the model says."""
    for kernel, stride, size in product((1, 2, 3), (1, 2, 3, 5), (4, 5, 7)):
        text = f"""g (float[1, 1, {size}, 6] x) => (float[a, b, c, d] y) {{
            y = Conv <auto_pad = "{mode}", strides = [{stride}, 1]> (x, w) }}"""
        weights = {"w": np.arange(1, kernel + 1, dtype=np.float32).reshape(1, 1, kernel, 1)}
        check_step(text, run_simplify, weights=weights)
        editor = edit(text, weights)
        run_simplify(editor)
        negative = (-(-size // stride) - 1) * stride + kernel < size
        assert ("auto_pad" in attributes(editor, "Conv")) == negative


def test_transposes_in_a_row_are_one() -> None:
    body = """a = Transpose <perm = [2, 0, 1, 3]> (x)
    b = Transpose <perm = [0, 3, 1, 2]> (a)  y = Transpose <perm = [1, 2, 3, 0]> (b)"""
    text = f"g (float[B, H, W, 4] x) => (float[p, q, r, s] y) {{ {body} }}"
    assert check_step(text, rounds, SIZES) == {"Transpose": 1}


def test_a_transpose_that_others_read_stays_for_them() -> None:
    body = "a = Transpose <perm = [2, 0, 1]> (x)  y = Transpose <perm = [2, 0, 1]> (a)  z = Neg (a)"
    text = f"g (float[B, H, W] x) => (float[p, q, r] y, float[s, t, u] z) {{ {body} }}"
    assert check_step(text, rounds, SIZES) == {"Neg": 1, "Transpose": 2}


def test_transposes_of_unstated_order_are_left() -> None:
    text = "g (float[B, H] x) => (float[B, H] y) { a = Transpose (x)  y = Transpose <perm = [1, 0]> (a) }"
    assert check_step(text, rounds, SIZES) == {"Transpose": 2}


# --- pieces ---

BOUNDS = """<int64[1] o = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] six = {6}, int64[1] ax = {1},
int64[1] three = {3}, int64[1] minus2 = {-2}, int64[1] minus4 = {-4}, int64[1] one = {1},
int64[1] far = {9223372036854775807}>"""
THIRDS = {
    "in order": "a = Slice (x, o, two, ax)  b = Slice (x, two, four, ax)  c = Slice (x, four, six, ax)",
    "out of order": "c = Slice (x, four, far, ax)  a = Slice (x, o, two, ax, one)  b = Slice (x, two, four, ax)",
    "from the end": "a = Slice (x, o, minus4, ax)  b = Slice (x, minus4, minus2, ax)  c = Slice (x, minus2, far, ax)",
}


@pytest.mark.parametrize("slices", THIRDS.values(), ids=THIRDS)
def test_equal_slices_of_all_of_a_tensor_are_a_split(slices: str) -> None:
    text = f"g (float[B, 6, H] x) => (float[B, 2, H] y) {BOUNDS} {{ {slices}  d = Sub (a, b)  y = Div (d, c) }}"
    assert check_step(text, run_simplify, SIZES) == {"Div": 1, "Split": 1, "Sub": 1}
    editor = edit(text)
    run_simplify(editor)
    assert attributes(editor, "Split") == {"axis": 1, "num_outputs": 3}


def test_unequal_slices_of_all_of_a_tensor_are_a_split_into_their_sizes() -> None:
    slices = "a = Slice (x, o, two, ax)  b = Slice (x, two, far, ax)"
    text = f"g (float[B, 6, H] x) => (float[B, 2, H] a, float[B, n, H] c) {BOUNDS} {{ {slices}  c = Neg (b) }}"
    assert check_step(text, run_simplify, SIZES) == {"Neg": 1, "Split": 1}
    editor = edit(text)
    run_simplify(editor)
    (split,) = (node for node in editor.graph.nodes if node.op == "Split")
    assert (split.attrs, split.inputs[1].values.tolist()) == ({"axis": 1}, [2, 4])


_PAIR = "n = Shape <start = 1, end = 2> (z)  a = Slice (x, o, n, ax)  b = Slice (x, n, far, ax)"
REJOINED = {
    "slices": "a = Slice (x, o, two, ax)  b = Slice (x, two, far, ax)  c = Concat <axis = 1> (a, b)",
    "slices at a size": f"{_PAIR}  c = Concat <axis = 1> (a, b)",
    "slices at a size, from the end": f"{_PAIR}  c = Concat <axis = -2> (a, b)",
    "three slices": f"{THIRDS['in order']}  d = Neg (a)  c0 = Concat <axis = 1> (a, b, c)  c1 = Identity (c0)",
    "a split": "a, b = Split <axis = 1, num_outputs = 2> (x)  c = Concat <axis = 1> (a, b)",
}


@pytest.mark.parametrize("body", REJOINED.values(), ids=REJOINED)
def test_pieces_that_are_joined_again_are_the_whole(body: str) -> None:
    last = "c1" if "c1" in body else "c"
    text = f"g (float[B, 6, H] x, float[B, T, H] z) => (float[B, 6, H] y) {BOUNDS} {{ {body}  y = Neg ({last}) }}"
    left = check_step(text, run_simplify, {**SIZES, "T": 4})
    assert {op: left.get(op, 0) for op in ("Concat", "Slice", "Split", "Neg")} == {
        "Concat": 0, "Slice": 0, "Split": 0, "Neg": 1,
    }  # fmt: skip


APART = {
    "in another order": f"{_PAIR}  c = Concat <axis = 1> (b, a)",
    "along another axis": f"{_PAIR}  c = Concat <axis = 0> (a, a)",
    "of two tensors": "a = Slice (x, o, two, ax)  b = Slice (z, two, far, ax)  c = Concat <axis = 1> (a, b)",
    "with a gap": "a = Slice (x, o, two, ax)  b = Slice (x, three, far, ax)  c = Concat <axis = 1> (a, b)",
    "not from the start": "a = Slice (x, one, two, ax)  b = Slice (x, two, far, ax)  c = Concat <axis = 1> (a, b)",
    "not to the end": f"{_PAIR.replace('far', 'four')}  c = Concat <axis = 1> (a, b)",
    "in steps": "a = Slice (x, o, two, ax)  b = Slice (x, two, far, ax, two)  c = Concat <axis = 1> (a, b)",
    "three, perhaps not in order": f"{_PAIR.replace('far', 'two')}  d = Slice (x, two, far, ax)  "
    "c = Concat <axis = 1> (a, b, d)",
    "not all of a split": "a, b, d = Split <axis = 1, num_outputs = 3> (x)  c = Concat <axis = 1> (a, b)",
    "a split along another axis": "a, b = Split <axis = 1, num_outputs = 2> (x)  c = Concat <axis = 2> (a, b)",
}


@pytest.mark.parametrize("body", APART.values(), ids=APART)
def test_pieces_that_are_not_the_whole_stay_joined(body: str) -> None:
    text = f"g (float[B, 6, H] x, float[B, T, H] z) => (float[] y) {BOUNDS} {{ {body}  y = Neg (c) }}"
    assert check_step(text, run_simplify, {**SIZES, "T": 4})["Concat"] == 1


UNEVEN = {
    "a gap": "a = Slice (x, o, two, ax)  b = Slice (x, four, six, ax)",
    "not to the end": "a = Slice (x, o, two, ax)  b = Slice (x, two, four, ax)",
    "not from the start": "a = Slice (x, two, four, ax)  b = Slice (x, four, six, ax)",
    "overlapping": "a = Slice (x, o, four, ax)  b = Slice (x, two, six, ax)",
    "one alone": "a = Slice (x, o, six, ax)  b = Neg (x)",
    "with steps": "a = Slice (x, o, six, ax, two)  b = Slice (x, one, six, ax, two)",
    "with steps, side by side": "a = Slice (x, o, three, ax, two)  b = Slice (x, three, six, ax, two)",
    "of several axes": "a = Slice (x, zz, t4, ax2)  b = Slice (x, t4, s9, ax2)",
    "of an axis of unknown size": "a = Slice (x, o, two, two)  b = Slice (x, two, four, two)",
}


@pytest.mark.parametrize("slices", UNEVEN.values(), ids=UNEVEN)
def test_other_slices_stay(slices: str) -> None:
    more = BOUNDS.replace(
        ">", ", int64[2] zz = {0, 0}, int64[2] t4 = {3, 2}, int64[2] s9 = {6, 9}, int64[2] ax2 = {1, 2}>"
    )
    editor = edit(f"g (float[B, 6, H] x) => (float[] a, float[] b) {more} {{ {slices} }}")
    assert run_simplify(editor) == 0


@pytest.mark.parametrize("slice_", ["Slice (c, o, two, ax)", "Slice (c, minus4, far, ax)", "Slice (c, two, four, ax)"])
def test_the_slice_that_is_a_part_of_a_concat_is_that_part(slice_: str) -> None:
    body = f"c = Concat <axis = 1> (x, z, v)  s = {slice_}  y = Neg (s)"
    text = f"g (float[B, 2] x, float[B, 2] z, float[B, 4] v) => (float[B, n] y) {BOUNDS} {{ {body} }}"
    assert check_step(text, run_simplify, SIZES) == {"Neg": 1}


@pytest.mark.parametrize(
    ("concat", "slice_"),
    [
        ("Concat <axis = 1> (x, z)", "Slice (c, one, two, ax)"),
        ("Concat <axis = 1> (x, z)", "Slice (c, o, six, ax)"),
        ("Concat <axis = 0> (x, x)", "Slice (c, o, two, ax)"),
        ("Concat <axis = 1> (open, x)", "Slice (c, two, four, ax)"),
    ],
)
def test_other_slices_of_a_concat_stay(concat: str, slice_: str) -> None:
    inputs = "float[2, 2, 1] x, float[2, 6, 1] z, float[2, N, 1] open"
    editor = edit(f"g ({inputs}) => (float[] y) {BOUNDS} {{ c = {concat}  y = {slice_} }}")
    assert run_simplify(editor) == 0


SEQUENCE = """g (float[B, {length}] x) => (float[B, n] y, float[B, m] z)
<int64 size = {{{size}}}, int64 i = {{0}}, int64 j = {{{last}}}> {{
    parts = SplitToSequence <axis = 1> (x, size)
    a = SequenceAt (parts, i)  b = SequenceAt (parts, j)
    y = Neg (a)  z = Sqrt (b)
}}"""


@pytest.mark.parametrize(("length", "size", "last"), [(6, 3, 1), (6, 3, -1), (8, 3, 2), (9, 4, -1), (9, 4, 0)])
def test_chunks_are_a_split(length: int, size: int, last: int) -> None:
    text = SEQUENCE.format(length=length, size=size, last=last).replace("Sqrt", "Abs")
    assert check_step(text, run_simplify, SIZES) == {"Abs": 1, "Neg": 1, "Split": 1}


LISTED = """
g (float[B, 6, H] x) => (float[B, a, H] y, float[B, b, H] z)
<int64[2] sizes = {{{sizes}}}, int64 i = {{0}}, int64 j = {{1}}> {{
    {lines}
    y = Neg (a)  z = Abs (b)
}}"""
_SEQUENCE = "parts = SplitToSequence <axis = 1> (x, sizes)  a = SequenceAt (parts, i)  b = SequenceAt (parts, j)"
_SPLIT = "a, b = Split <axis = 1> (x, sizes)"


@pytest.mark.parametrize("lines", [_SEQUENCE, _SPLIT])
@pytest.mark.parametrize(("sizes", "even"), [("3, 3", True), ("2, 4", False), ("4, 2", False)])
def test_pieces_of_listed_sizes_are_a_split(lines: str, sizes: str, even: bool) -> None:
    """With as many pieces as there are where all are alike."""
    text = LISTED.format(sizes=sizes, lines=lines)
    assert check_step(text, run_simplify, SIZES) == {"Abs": 1, "Neg": 1, "Split": 1}
    editor = edit(text)
    run_simplify(editor)
    assert attributes(editor, "Split") == ({"axis": 1, "num_outputs": 2} if even else {"axis": 1})


@pytest.mark.parametrize("sizes", ["3, 4", "2, 2", "6, 0"])
def test_pieces_that_are_not_the_whole_stay_a_sequence(sizes: str) -> None:
    editor = edit(LISTED.format(sizes=sizes, lines=_SEQUENCE))
    run_simplify(editor)
    assert operators(editor)["SplitToSequence"] == 1


def test_pieces_of_computed_sizes_are_a_split() -> None:
    """As diffusers parts a text's and an image's tokens again, of which neither number is known."""
    text = """
    g (float[B, T, 4] x, float[B, L, 4] t) => (float[B, b, 4] y, float[B, a, 4] z)
    <int64 i = {0}, int64 j = {1}> {
        all = Concat <axis = 1> (t, x)
        m = Shape <start = 1, end = 2> (t)  n = Shape <start = 1, end = 2> (x)  sizes = Concat <axis = 0> (m, n)
        parts = SplitToSequence <axis = 1> (all, sizes)  a = SequenceAt (parts, i)  b = SequenceAt (parts, j)
        y = Neg (b)  z = Abs (a)
    }"""
    sizes = {"B": 2, "T": 5, "L": 3}
    assert check_step(text, run_simplify, sizes) == {"Abs": 1, "Concat": 2, "Neg": 1, "Shape": 2, "Split": 1}


def test_a_split_that_hands_on_fewer_pieces_stays() -> None:
    editor = edit("g (float[B, 6, H] x) => (float[] y) <int64[3] s = {2, 2, 2}> { y, z = Split <axis = 1> (x, s) }")
    assert run_simplify(editor) == 0


def test_other_sequences_stay() -> None:
    for text in (
        SEQUENCE.format(length="N", size=3, last=1),
        SEQUENCE.format(length=6, size=3, last=1).replace(
            "b = SequenceAt (parts, j)", "b = ConcatFromSequence <axis = 0> (parts)"
        ),
        SEQUENCE.format(length=6, size=3, last=1)
        .replace("x, size", "x")
        .replace("<axis = 1>", "<axis = 1, keepdims = 1>"),
    ):
        assert run_simplify(edit(text)) == 0


# --- equal nodes ---


def test_equal_nodes_are_one() -> None:
    body = """
    s = Shape (x)  t = Shape (x)  a = ConstantOfShape <value: tensor = float[1] {2.0}> (s)
    b = ConstantOfShape <value: tensor = float[1] {2.0}> (t)
    c = Add (x, one)  d = Add (x, uno)  e = Mul (a, c)  f = Mul (b, d)  g = Exp (f)  y = Sub (e, g)"""
    text = f"g (float[B] x) => (float[B] y) <float one = {{1.0}}, float uno = {{1.0}}> {{ {body} }}"
    left = check_step(text, simplify.merge_equal_nodes, SIZES)
    assert left == {"Add": 1, "ConstantOfShape": 1, "Exp": 1, "Mul": 1, "Shape": 1, "Sub": 1}


DIFFERENT = {
    "inputs": "a = Neg (x)  b = Neg (z)",
    "order": "a = Sub (x, z)  b = Sub (z, x)",
    "operators": "a = Neg (x)  b = Abs (x)",
    "attributes": "a = Softmax <axis = 0> (x)  b = Softmax <axis = 1> (x)",
    "tensor attributes": "s = Shape (x)  a = ConstantOfShape <value: tensor = float[1] {1.0}> (s)  "
    "b = ConstantOfShape <value: tensor = float[1] {2.0}> (s)",
    "constants": "a = Add (x, one)  b = Add (x, two)",
    "constants of another shape": "a = Add (x, one)  b = Add (x, ones)",
    "domains": "a = Gelu (x)  b = com.microsoft.Gelu (x)",
    "projections": "a = MatMul (x, w)  b = MatMul (x, w)",
    "random numbers": "a = RandomNormalLike (x)  b = RandomNormalLike (x)",
}


@pytest.mark.parametrize("body", DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_stays_apart(body: str) -> None:
    constants = "<float one = {1.0}, float two = {2.0}, float[1] ones = {1.0}>"
    text = f"g (float[4, 4] x, float[4, 4] z) => (float[] y) {constants} {{ {body}  y = Sub (a, b) }}"
    editor = edit(text, {"w": Described([4, 4], np.float32)})
    assert simplify.merge_equal_nodes(editor) == 0


def test_described_weights_are_equal_if_they_are_the_same() -> None:
    body = "a = Add (x, u)  b = Add (x, v)  c = Add (x, w)  d = Add (a, b)  y = Add (d, c)"
    shared = Described([4, 4], np.float32)
    weights: dict[str, Array | Weight] = {"u": shared, "v": Described([4, 4], np.float32), "w": shared}
    editor = edit(f"g (float[4, 4] x) => (float[] y) {{ {body} }}", weights)
    assert simplify.merge_equal_nodes(editor) == 1
    assert operators(editor) == {"Add": 4}


def test_outputs_stay_apart() -> None:
    text = "g (float[B] x) => (float[B] y, float[B] z) { y = Neg (x)  z = Neg (x) }"
    assert check_step(text, simplify.merge_equal_nodes, SIZES) == {"Neg": 2}
