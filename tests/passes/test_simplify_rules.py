"""Each rule of the simplification by itself: where it holds, what it writes, and where it does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import Array, Described, edit, operators

from sdort.passes import simplify
from sdort.rewrite.editor import Editor

INTEGERS: dict[str, Any] = {
    "o": [0], "one": [1], "two": [2], "three": [3], "five": [5], "six": [6], "far": [2**62], "minus1": [-1],
    "minus4": [-4], "minus9": [-9], "scalar": 1, "oo": [0, 0], "ax2": [2], "zero4": [0, 4], "flat": [2, -1],
    "fill": [0, -1], "shift": [[1]],
}  # fmt: skip


def built(
    body: str,
    weights: dict[str, Any] | None = None,
    inputs: str = "float[2, 6, 4] x",
    outputs: Sequence[str] = ("y",),
) -> Editor:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: np.array(values) for name, values in INTEGERS.items() if name in words}
    given = {name: values for name, values in (weights or {}).items() if name in words}
    ends = ", ".join(f"float[] {name}" for name in outputs)
    return edit(f"g ({inputs}) => ({ends}) {{ {body} }}", {**used, **given})


# --- axes ---


@pytest.mark.parametrize("axis", [None, -3, -1, 0, 1, 2])
@pytest.mark.parametrize("op", ["Concat", "Split", "Softmax", "LayerNormalization", "Gather", "ReduceMax", "Hardmax"])
def test_the_last_of_three_axes_is_renamed_and_no_other(op: str, axis: int | None) -> None:
    editor = built("y = Neg (x)")
    (node,) = editor.graph.nodes
    assert editor.shape(node.inputs[0]) == (2, 6, 4)
    node.op, node.attrs = op, {} if axis is None else {"axis": axis}
    changed = axis == 2 and op not in ("ReduceMax", "Hardmax")
    assert simplify._last_axis(editor, node) == changed
    assert node.attrs.get("axis") == (-1 if changed else axis)
    node.inputs[0] = gs.Variable("who_knows")
    assert not simplify._last_axis(editor, node)


ALLOWED: dict[str, tuple[int, str, bool]] = {
    "no zero": (1, "flat", True),
    "no zero, not allowed": (0, "flat", True),
    "a zero": (1, "fill", False),
    "a zero that copies": (0, "fill", True),
    "what is computed": (1, "shape", False),
    "what is computed, not allowed": (0, "shape", True),
}


@pytest.mark.parametrize("case", ALLOWED.values(), ids=ALLOWED)
def test_allowzero_goes_where_it_says_nothing(case: tuple[int, str, bool]) -> None:
    flag, target, gone = case
    editor = built(f"y = Reshape <allowzero = {flag}> (x, {target})", None, "float[2, 6, 4] x, int64[2] shape")
    (node,) = editor.graph.nodes
    assert simplify._allow_zero(editor, node) == gone
    assert node.attrs == ({} if gone else {"allowzero": flag})
    assert not gone or not simplify._allow_zero(editor, node)


@pytest.mark.parametrize(
    ("op", "policy", "gone"),
    [
        ("Resize", "stretch", True),
        ("Resize", "not_larger", False),
        ("Resize", None, False),
        ("Upsample", "stretch", False),
    ],
)
def test_the_policy_that_is_the_default_is_not_said(op: str, policy: str | None, gone: bool) -> None:
    attrs = {"mode": "linear"} | ({} if policy is None else {"keep_aspect_ratio_policy": policy})
    node = gs.Node(op, "n", dict(attrs), [gs.Variable("x")], [gs.Variable("y")])
    assert simplify._plain_resize(built("y = Neg (x)"), node) == gone
    assert node.attrs == ({"mode": "linear"} if gone else attrs)


@pytest.mark.parametrize("axes", [[2], [0, 2], [2, 1], [-1, 0], [1, 2, 0]])
def test_scales_of_named_axes_are_put_to_their_axes(axes: list[int]) -> None:
    scales = np.arange(2, 2 + len(axes)).astype(np.float32)
    settings = f'axes = [{", ".join(map(str, axes))}], mode = "linear", coordinate_transformation_mode = "asymmetric"'
    editor = built(f"y = Resize <{settings}> (x, , s)", {"s": scales})
    assert simplify._all_axes(editor, editor.graph.nodes[0])
    editor.finish()
    (node,) = editor.graph.nodes
    wanted = [1.0, 1.0, 1.0]
    for axis, scale in zip(axes, scales, strict=True):
        wanted[axis % 3] = float(scale)
    assert np.asarray(node.inputs[2].values).tolist() == wanted
    assert (node.inputs[0].name, node.inputs[1].name, len(node.inputs)) == ("x", "", 3)
    assert node.attrs == {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}


RESIZES_LEFT = {
    "no axes": ("Resize (x, , s3)", True),
    "computed scales": ("Resize <axes = [1, 2]> (x, , given)", True),
    "a region": ('Resize <axes = [1, 2], coordinate_transformation_mode = "tf_crop_and_resize"> (x, roi, s2)', True),
    "proportions": ('Resize <axes = [1, 2], keep_aspect_ratio_policy = "not_larger"> (x, , , two2)', True),
    "the default of proportions": ('Resize <axes = [1, 2], keep_aspect_ratio_policy = "stretch"> (x, , s2)', False),
    "sizes": ("Resize <axes = [1, 2]> (x, , , two2)", False),
    "sizes that are computed": ("Resize <axes = [1, 2]> (x, , , sizes)", False),
}


@pytest.mark.parametrize("case", RESIZES_LEFT.values(), ids=RESIZES_LEFT)
def test_a_resize_that_cannot_name_all_axes_stays(case: tuple[str, bool]) -> None:
    body, stays = case
    weights = {"s3": np.ones(3, np.float32), "s2": np.full(2, 2, np.float32), "roi": np.zeros(4, np.float32)}
    editor = built(
        f"y = {body}", {**weights, "two2": np.array([7, 5])}, "float[2, 6, 4] x, float[2] given, int64[2] sizes"
    )
    assert simplify._all_axes(editor, editor.graph.nodes[0]) != stays


# --- pads ---


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_pads_of_each_axis_follow_the_specification(mode: str) -> None:
    """https://onnx.ai/onnx/operators/onnx__Conv.html: ceil(size / stride) elements, the odd one behind or before."""
    for kernel, dilation, stride, size in product((1, 2, 3, 5), (1, 2, 3), (1, 2, 3), (5, 8, 9)):
        strides, dilations = [stride, 1], [1, dilation]
        node = gs.Node("Conv", "n", {"auto_pad": mode, "strides": strides, "dilations": dilations})
        for axis, (length, width) in enumerate(((size, kernel), (size + 1, 3))):
            reach = (width - 1) * dilations[axis] + 1
            count = int(np.ceil(length / strides[axis]))
            total = (count - 1) * strides[axis] + reach - length
            short = total // 2
            pair = (short, total - short) if mode == "SAME_UPPER" else (total - short, short)
            found = simplify._same_pads(node, (size, size + 1), [kernel, 3], axis)
            assert found == (None if total < 0 else pair)
    plain = gs.Node("Conv", "n", {"auto_pad": mode})
    assert simplify._same_pads(plain, (7,), [4], 0) == ((1, 2) if mode == "SAME_UPPER" else (2, 1))


PADS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "nothing said": ("pads = [1, 2, 3, 4]", None),
    "nothing automatic": ('auto_pad = "NOTSET", pads = [1, 2, 3, 4]', {"pads": [1, 2, 3, 4]}),
    "none": ('auto_pad = "VALID"', {"pads": [0, 0, 0, 0]}),
    "as large": ('auto_pad = "SAME_UPPER"', {"pads": [0, 1, 1, 1]}),
    "as large, before": ('auto_pad = "SAME_LOWER"', {"pads": [1, 1, 0, 1]}),
    "as large of unknown sizes": ('auto_pad = "SAME_UPPER", strides = [1, 1]', {"pads": [0, 1, 1, 1]}),
    "in steps of unknown sizes": ('auto_pad = "SAME_UPPER", strides = [2, 1]', None),
    "in steps of known sizes": ('auto_pad = "SAME_UPPER", strides = [1, 2]', {"pads": [0, 0, 1, 1]}),
}


@pytest.mark.parametrize("case", PADS.values(), ids=PADS)
def test_pads_are_said_where_they_are_known(case: tuple[str, dict[str, Any] | None]) -> None:
    settings, wanted = case
    editor = built(f"y = Conv <{settings}> (x, w)", {"w": np.ones((1, 1, 2, 3), np.float32)}, "float[1, 1, H, 6] x")
    (node,) = editor.graph.nodes
    before = dict(node.attrs)
    assert simplify._explicit_pads(editor, node) == (wanted is not None)
    found = {key: value for key, value in node.attrs.items() if key != "strides"}
    assert found == ({k: v for k, v in before.items() if k != "strides"} if wanted is None else wanted)


# --- numbers ---

NUMBERS: list[tuple[Any, float, bool]] = [
    (np.float16, 2.0**-14, True), (np.float16, 2.0**-15, False), (np.float16, 65504.0, True),
    (np.float16, 65536.0, False), (np.float16, -65536.0, False), (np.float16, -1.5, True), (np.float16, 0.0, False),
    (np.float32, 2.0**-126, True), (np.float32, 2.0**-127, False), (np.float32, 3e38, True), (np.float32, 4e38, False),
    (np.float64, 4e38, True), (np.float64, 2.0**-127, True),
    (ml_dtypes.bfloat16, 2.0**-126, True), (ml_dtypes.bfloat16, 2.0**-130, False), (ml_dtypes.bfloat16, 1e38, True),
    (np.float32, float("inf"), False), (np.float32, float("nan"), False),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "value", "normal"), NUMBERS, ids=[f"{np.dtype(d)} {v}" for d, v, _ in NUMBERS])
def test_a_number_is_normal_in_its_type_or_none(dtype: Any, value: float, normal: bool) -> None:
    found = simplify.normal_number(value, np.dtype(dtype))
    assert (found is not None) == normal
    assert found is None or (found.dtype, found.shape, float(found)) == (dtype, (), float(np.array(value, dtype)))


DIVISIONS: dict[str, tuple[str, str, float, float | None]] = {
    "by four": ("float", "Div (x, c)", 4.0, 0.25),
    "by minus eight": ("float", "Div (x, c)", -8.0, -0.125),
    "by a half": ("float", "Div (x, c)", 0.5, 2.0),
    "by one": ("float", "Div (x, c)", 1.0, 1.0),
    "by three": ("float", "Div (x, c)", 3.0, None),
    "by six": ("float", "Div (x, c)", 6.0, None),
    "by nothing": ("float", "Div (x, c)", 0.0, None),
    "in half by the largest": ("float16", "Div (x, c)", 2.0**14, 2.0**-14),
    "in half by more": ("float16", "Div (x, c)", 2.0**15, None),
    "in half by the smallest": ("float16", "Div (x, c)", 2.0**-15, 2.0**15),
    "in half by less": ("float16", "Div (x, c)", 2.0**-16, None),
    "in double": ("double", "Div (x, c)", 2.0**200, 2.0**-200),
    "of integers": ("int64", "Div (x, c)", 4, None),
    "of a number": ("float", "Div (c, x)", 4.0, None),
    "to more axes": ("float", "Div (x, wide)", 4.0, None),
    "a product": ("float", "Mul (x, c)", 4.0, None),
}


@pytest.mark.parametrize("case", DIVISIONS.values(), ids=DIVISIONS)
def test_a_division_that_is_exact_is_a_product(case: tuple[str, str, float, float | None]) -> None:
    kind, body, value, factor = case
    dtype = {"float": np.float32, "float16": np.float16, "double": np.float64, "int64": np.int64}[kind]
    values: Array = np.array(value, dtype)
    editor = built(f"y = {body}", {"c": values, "wide": values.reshape(1, 1, 1)}, f"{kind}[3, 5] x")
    assert simplify._divide_to_multiply(editor, editor.graph.nodes[0]) == (factor is not None)
    editor.finish()
    (node,) = editor.graph.nodes
    if factor is not None:
        assert (node.op, node.inputs[0].name, node.inputs[1].dtype) == ("Mul", "x", dtype)
        assert float(node.inputs[1].values) == factor
        assert [tensor.name for tensor in node.outputs] == ["y"]


# --- pieces ---

BOUNDS: dict[str, tuple[str, tuple[int, int, int] | None]] = {
    "from the start": ("Slice (x, o, two, one)", (1, 0, 2)),
    "to the end": ("Slice (x, two, far, one)", (1, 2, 6)),
    "to one behind the end": ("Slice (x, one, six, ax2)", (2, 1, 4)),
    "from the end": ("Slice (x, minus4, minus1, one)", (1, 2, 5)),
    "from before the start": ("Slice (x, minus9, three, one)", (1, 0, 3)),
    "of nothing": ("Slice (x, six, far, ax2)", (2, 4, 4)),
    "of an axis from the end": ("Slice (x, o, two, minus1)", (2, 0, 2)),
    "in steps of one": ("Slice (x, o, two, one, one)", (1, 0, 2)),
    "in steps": ("Slice (x, o, six, one, two)", None),
    "backwards": ("Slice (x, five, o, one, minus1)", None),
    "in computed steps": ("Slice (x, o, two, one, given)", None),
    "from what is computed": ("Slice (x, given, two, one)", None),
    "to what is computed": ("Slice (x, o, given, one)", None),
    "of a computed axis": ("Slice (x, o, two, given)", None),
    "of the first axes": ("Slice (x, o, one)", None),
    "of two axes": ("Slice (x, oo, zero4, fill)", None),
    "of an unknown size": ("Slice (open, o, two, one)", None),
    "of an unknown shape": ("Slice (r, o, two, one)", None),
    "another operator": ("Pad (x, pads)", None),
}


@pytest.mark.parametrize("case", BOUNDS.values(), ids=BOUNDS)
def test_bounds_are_counted_from_the_start_and_end_with_the_tensor(
    case: tuple[str, tuple[int, int, int] | None],
) -> None:
    body, wanted = case
    before = "r = Reshape (x, sizes)  " if "(r," in body else ""
    inputs = "float[2, 6, 4] x, float[2, N, 4] open, int64[1] given, int64[S] sizes"
    editor = built(f"{before}y = {body}", {"pads": np.zeros(6, np.int64)}, inputs)
    assert simplify._bounds(editor, editor.graph.nodes[-1]) == wanted
    editor.graph.nodes[-1].domain = "elsewhere"
    assert simplify._bounds(editor, editor.graph.nodes[-1]) is None


PIECES: list[tuple[Any, Any, list[int] | None]] = [
    (3, 9, [3, 3, 3]), (4, 9, [4, 4, 1]), (9, 9, [9]), (20, 9, [9]), (1, 3, [1, 1, 1]), (0, 9, None), (-1, 9, None),
    ([4, 5], 9, [4, 5]), ([2, 3, 4], 9, [2, 3, 4]), ([4, 4], 9, None), ([5, 5], 9, None), ([9, 0], 9, None),
    ([-1, 10], 9, None), ([4], 9, [4, 4, 1]), ([4, 5], "N", None), (3, "N", None), (None, 9, None),
]  # fmt: skip


@pytest.mark.parametrize(("split", "length", "wanted"), PIECES, ids=[f"{s} of {n}" for s, n, _ in PIECES])
def test_pieces_have_the_sizes_that_are_listed_or_one_for_all(
    split: Any, length: Any, wanted: list[int] | None
) -> None:
    editor = built("y = Neg (x)")
    tensor = gs.Variable("who_knows") if split is None else gs.Constant("split", np.array(split))
    assert simplify._piece_sizes(editor, tensor, length) == wanted


SEQUENCES: dict[str, tuple[str, int | None]] = {
    # what reads the sequence; pieces of the Split that it becomes
    "one": ("y = SequenceAt (p, o)", 3),
    "the last": ("y = SequenceAt (p, minus1)", 3),
    "one of the pieces that are given": ("y = SequenceAt (p, given)", None),
    "its length": ("y = SequenceLength (p)", None),
    "one, and its length": ("a = SequenceAt (p, o)  y = SequenceLength (p)", None),
}


@pytest.mark.parametrize("case", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("axis", [1, -2])
def test_a_sequence_whose_pieces_are_taken_is_a_split(case: tuple[str, int | None], axis: int) -> None:
    body, pieces = case
    weights = {"o": np.array(0), "minus1": np.array(-1)}
    text = f"p = SplitToSequence <axis = {axis}> (x, two)  {body}"
    editor = built(text, weights, "float[2, 6, 4] x, int64 given")
    changed = simplify._split_sequence(editor, editor.graph.nodes[0])
    assert changed == (pieces is not None)
    if pieces is not None:
        (node,) = (node for node in editor.graph.nodes if node.op == "Split")
        assert (node.attrs, len(node.outputs)) == ({"axis": axis, "num_outputs": pieces}, pieces)
        index = 0 if " o)" in body else pieces - 1
        assert [
            i for i, t in enumerate(node.outputs) if any(t is end for end in editor.graph.outputs) or t.outputs
        ] == [index]


SPLITS: dict[str, tuple[Any, int, bool]] = {
    "alike": ([2, 2, 2], 3, True),
    "unlike": ([2, 1, 3], 3, False),
    "one alone": ([6], 1, True),
    "fewer that are handed on": ([2, 2, 2], 2, False),
}


@pytest.mark.parametrize("case", SPLITS.values(), ids=SPLITS)
def test_pieces_that_are_alike_are_counted(case: tuple[Any, int, bool]) -> None:
    sizes, count, even = case
    editor = built("y = Neg (x)")
    outputs = [gs.Variable(f"o{index}") for index in range(count)]
    node = gs.Node("Split", "n", {"axis": 1}, [editor.graph.inputs[0], editor.ints(sizes)], outputs)
    assert simplify._even_split(editor, node) == even
    assert (len(node.inputs), node.attrs) == ((1, {"axis": 1, "num_outputs": count}) if even else (2, {"axis": 1}))
    assert not simplify._even_split(
        editor, gs.Node("Split", "n", {"num_outputs": 2}, [editor.graph.inputs[0]], outputs)
    )


# --- equal nodes ---

EQUAL: dict[str, tuple[str, int]] = {
    "the same": ("a = Neg (x)  b = Neg (x)", 1),
    "three": ("a = Neg (x)  b = Neg (x)  c = Neg (x)", 2),
    "one behind another": ("a = Neg (x)  b = Neg (x)  c = Abs (a)  d = Abs (b)", 2),
    "equal constants": ("a = Add (x, u)  b = Add (x, v)", 1),
    "constants of another type": ("a = Cast <to = 7> (zero32)  b = Cast <to = 7> (zerof)", 0),
    "constants of another shape": ("a = Add (x, u)  b = Add (x, uu)", 0),
    "another input that is left out": ("a = Clip (x, u)  b = Clip (x, , u)", 0),
    "the same input that is left out": ("a = Clip (x, , u)  b = Clip (x, , v)", 1),
    "a default that is said": ("a = Softmax (x)  b = Softmax <axis = -1> (x)", 0),
    "an attribute of three": (
        "a = LeakyRelu <alpha = 0.5> (x)  b = LeakyRelu <alpha = 0.5> (x)  c = LeakyRelu <alpha = 0.25> (x)", 1,
    ),
    "described weights": ("a = Add (x, w)  b = Add (x, w)", 1),
    "weights that are described alike": ("a = Add (x, w)  b = Add (x, w2)", 0),
    "products of weights": ("a = MatMul (x, m)  b = MatMul (x, m)", 0),
    "products of data": ("t = Transpose <perm = [0, 2, 1]> (x)  a = MatMul (x, t)  b = MatMul (x, t)", 0),
    "layers": ("f = Reshape (x, flat)  a = Gemm (f, k)  b = Gemm (f, k)", 0),
    "random numbers": ("a = RandomUniformLike (x)  b = RandomUniformLike (x)", 0),
    "draws": ("h = Sigmoid (x)  a = Bernoulli (h)  b = Bernoulli (h)", 0),
}  # fmt: skip


@pytest.mark.parametrize("case", EQUAL.values(), ids=EQUAL)
def test_nodes_that_compute_the_same_are_merged(case: tuple[str, int]) -> None:
    body, merged = case
    weights: dict[str, Any] = {
        **{name: np.float32(2).reshape(()) for name in ("u", "v")}, "uu": np.full(1, 2, np.float32),
        "zero32": np.zeros(2, np.int32), "zerof": np.zeros(2, np.float32), "m": np.ones((4, 4), np.float32),
        "k": np.ones((24, 3), np.float32), "w": Described([4], np.float32), "w2": Described([4], np.float32),
    }  # fmt: skip
    made = [name for name in "abcd" if f"{name} = " in body]
    readers = "  ".join(
        f"r{name} = {op} ({name})" for name, op in zip(made, ("Abs", "Neg", "Sign", "Exp"), strict=False)
    )
    editor = built(f"{body}  {readers}", weights, outputs=[f"r{name}" for name in made])
    before = sum(operators(editor).values())
    assert simplify.merge_equal_nodes(editor) == merged
    assert sum(operators(editor).values()) == before - merged
