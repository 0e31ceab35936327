"""Every operator that has a form in another layout computes the same there, in both directions, of images that are not
square; the others have none."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from support.small_graphs import Array, edit, parse, to_proto

from sdort.passes import nhwc
from sdort.passes.layout_rules import TO_FIRST, TO_LAST, Layout, Perm, is_turning, plan
from sdort.rewrite.editor import Editor

LAYOUTS = {"last": TO_LAST, "first": TO_FIRST}
SHAPE = (2, 4, 6, 5)
CONSTANTS = """<float two = {2.0}, float low = {-0.5}, float[1, 1, 1, 1] three = {3.0},
float[5] row = {1.0, -2.0, 3.0, 4.0, 5.0}, float[6, 1] column = {1.0, 2.0, 3.0, 4.0, -5.0, 6.0},
int64[1] ax1 = {1}, int64[1] ax2 = {-2}, int64[1] ax3 = {3}, int64[2] ax23 = {3, 2}, int64[2] ax13 = {-1, 1},
int64[3] ax123 = {1, 2, 3}, int64[1] o = {0}, int64[1] one = {1}, int64[1] end = {4}, int64[1] step = {2},
int64[2] from2 = {1, 0}, int64[2] to2 = {5, 3}, int64[4] from4 = {0, 1, 2, 0}, int64[4] to4 = {2, 4, 5, 3},
int64[8] pads = {0, 1, 2, 0, 0, 0, 1, 3}, int64[2] parts = {1, 3}, float[4] scales = {1.0, 1.0, 2.0, 3.0},
int64[4] sizes = {2, 4, 9, 11}, uint8 shift = {1}, float[2] little = {0.1, 0.2}>"""

UNARY = """
    Abs Acosh Asinh Atan Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu
    Mish Neg Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Tan Tanh ThresholdedRelu
""".split()  # noqa: SIM905
BROADCAST = ("Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul",
             "PRelu", "Sub", "Sum")  # fmt: skip
REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
              "ReduceProd", "ReduceSum", "ReduceSumSquare")  # fmt: skip
BOTH: dict[str, str] = {
    **{f"{op} of its magnitude": f"a = Abs (x)  y = {op} (a)" for op in ("Log", "Sqrt")},
    **{f"{op} of a sigmoid": f"a = Sigmoid (x)  y = {op} (a)" for op in ("Acos", "Asin", "Atanh")},
    "Clip": "y = Clip (x, low, two)",
    "Clip from above": "y = Clip (x, , two)",
    "Cast": "y = Cast <to = 7> (x)",
    "Not": "b = Greater (x, z)  y = Not (b)",
    "BitwiseNot": "b = Cast <to = 6> (x)  y = BitwiseNot (b)",
    **{f"{op} of images": f"y = {op} (x, z)" for op in BROADCAST},
    **{f"Sub with a {what}": f"y = Sub (x, {what})" for what in ("pixel", "row", "column")},
    **{f"{op} of a number": f"y = {op} (two, x)" for op in ("Sub", "Div", "Less", "Max", "Sum")},
    "Sub of a number of four axes": "y = Sub (three, x)",
    "Sub of a row": "y = Sub (row, x)",
    "Pow": "a = Abs (x)  y = Pow (a, z)",
    "Mod": "y = Mod <fmod = 1> (x, two)",
    **{f"{op} of booleans": f"a = Less (x, z)  b = Less (z, low)  y = {op} (a, b)" for op in ("And", "Or", "Xor")},
    **{
        f"{op} of integers": f"a = Cast <to = 6> (x)  b = Cast <to = 6> (z)  y = {op} (a, b)"
        for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    },
    "BitShift": 'a = Abs (x)  b = Cast <to = 2> (a)  y = BitShift <direction = "LEFT"> (b, shift)',
    "Where": "a = Less (x, z)  y = Where (a, x, pixel)",
    "Max of three": "y = Max (x, z, row)",
    **{f"{op} of the {ax}" : f"a = Abs (x)  y = {op} <keepdims = {keep}> (a, {ax})" for op in REDUCTIONS
       for ax, keep in (("ax1", 1), ("ax23", 1), ("ax13", 1), ("ax123", 0)) if ax == "ax13" or op == "ReduceMean"},
    "ReduceMean without its axes": "y = ReduceMean <keepdims = 0> (x, ax123)",
    **{
        f"{op} {axis}": f"y = {op} <axis = {axis}, keepdims = 1> (x)"
        for op, axes in (("ArgMax", (0, 1, 2, 3, -1)), ("ArgMin", (-3,))) for axis in axes
    },
    "ArgMax of the first": "y = ArgMax <keepdims = 1> (x)",
    **{
        f"{op} {axis}": f"y = {op} <axis = {axis}> (x)"
        for op in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
        for axis in ((0, 1, 2, 3, -1, -2) if op == "Softmax" else (1, -2))
    },
    "Softmax of the last": "y = Softmax (x)",
    **{f"Concat {axis}": f"y = Concat <axis = {axis}> (x, z, x)" for axis in (0, 1, 2, 3, -1, -3)},
    **{f"Split {axis}": f"y, b = Split <axis = {axis}, num_outputs = 2> (x)" for axis in (0, 1, 2, -2)},
    "Split of the first": "b, y = Split <num_outputs = 2> (x)",
    "Split by sizes": "b, y = Split <axis = 1> (x, parts)",
    "GlobalAveragePool": "y = GlobalAveragePool (x)",
    "GlobalMaxPool": "y = GlobalMaxPool (x)",
    "Pad": "y = Pad (x, pads)",
    "Pad with a number": "y = Pad (x, pads, two)",
    **{f"Pad by {mode}": f'y = Pad <mode = "{mode}"> (x, pads)' for mode in ("edge", "reflect")},
    "Slice of one axis": "y = Slice (x, one, end, ax2)",
    "Slice in steps": "y = Slice (x, one, end, ax2, step)",
    "Slice of two axes": "y = Slice (x, from2, to2, ax23)",
    "Slice of the first axes": "y = Slice (x, from2, to2)",
    "Slice of all axes": "y = Slice (x, from4, to4)",
    "Slice of the first axes in steps": "y = Slice (x, from2, to2, , parts)",
    "Resize by scales": "y = Resize (x, , scales)",
    "Resize to sizes": "y = Resize (x, , , sizes)",
    "Resize with settings":
        'y = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , , sizes)',
    **{f"Shape from {start} to {end}": f"y = Shape <start = {start}, end = {end}> (x)"
       for start, end in ((0, 4), (1, 3), (2, 4), (-2, 4), (0, -1), (3, 3))},
    "Shape": "y = Shape (x)",
    **{
        f"Transpose {perm}": f"y = Transpose <perm = {perm}> (x)"
        for perm in ([0, 1, 3, 2], [3, 1, 0, 2], [1, 0, 2, 3])
    },
    "Transpose of all axes": "y = Transpose (x)",
}  # fmt: skip
ONE_WAY: dict[str, tuple[str, str]] = {
    **{f"{op} {mode}": ("last", f"y = {op} <blocksize = 2{setting}> ({x})") for op, mode, setting, x in (
        ("DepthToSpace", "DCR", "", "x"), ("DepthToSpace", "CRD", ', mode = "CRD"', "x"),
        ("DepthToSpace", "of pixels", ', mode = "DCR"', "deep"),
        ("DepthToSpace", "of pixels, CRD", ', mode = "CRD"', "deep"),
        ("SpaceToDepth", "", "", "wide"))},
    **{f"Resize {mode}": ("first", f'y = Resize <mode = "{mode}"> (x, , scales)') for mode in ("linear", "cubic")},
    "ReduceMax without a channel": ("first", "y = ReduceMax <keepdims = 0> (x, ax3)"),
    "ReduceMax without channels": ("last", "y = ReduceMax <keepdims = 0> (x, ax1)"),
    "ArgMax without channels": ("last", "y = ArgMax <axis = 1, keepdims = 0> (x)"),
    "ArgMax without the last": ("first", "y = ArgMax <axis = -1, keepdims = 0> (x)"),
}  # fmt: skip
CASES = {
    **{f"{name}, {layout}": (layout, body) for name, body in BOTH.items() for layout in LAYOUTS},
    **{op: ("last", f"y = {op} (x)") for op in UNARY},
    **{
        f"{op} with {what}": (layout, f"y = {op} (x, {what})")
        for op in BROADCAST
        for what, layout in (("pixel", "last"), ("column", "first"))
    },
    **ONE_WAY,
}
NONE: dict[str, tuple[str, str]] = {
    "an axis that leaves an order behind": ("last", "y = ReduceMax <keepdims = 0> (x, ax2)"),
    "the last axis, which leaves an order behind": ("last", "y = ReduceMax <keepdims = 0> (x, ax3)"),
    "channels, which leave an order behind": ("first", "y = ReduceMax <keepdims = 0> (x, ax1)"),
    "ArgMax that leaves an order behind": ("last", "y = ArgMax <axis = 2, keepdims = 0> (x)"),
    "reductions of all axes": ("last", "y = ReduceMax (x)"),
    "reductions of axes that are computed": ("last", "y = ReduceMax (x, given)"),
    "Resize linear": ("last", 'y = Resize <mode = "linear"> (x, , scales)'),
    "Resize cubic": ("last", 'y = Resize <mode = "cubic"> (x, , scales)'),
    "Resize of named axes": ("first", "y = Resize <axes = [2, 3]> (x, , little)"),
    "Resize of a region": (
        "first",
        'y = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, regions, scales)',
    ),
    "Pad of computed sizes": ("last", "y = Pad (x, given8)"),
    "Pad of named axes": ("last", "y = Pad (x, to4, , ax23)"),
    "Slice of computed axes": ("last", "y = Slice (x, from2, to2, given)"),
    "Slice of computed many": ("last", "y = Slice (x, many, many)"),
    "DepthToSpace": ("first", "y = DepthToSpace <blocksize = 2> (x)"),
    "SpaceToDepth": ("first", "y = SpaceToDepth <blocksize = 2> (wide)"),
    "a Transpose to the layout": ("last", "y = Transpose <perm = [0, 2, 3, 1]> (x)"),
    "a Transpose from the layout": ("last", "y = Transpose <perm = [0, 3, 1, 2]> (x)"),
    "computed rows": ("last", "y = Add (x, some)"),
    "sequences": ("last", "y = Softmax (flat)"),
    "sequences, element by element": ("last", "y = Relu (flat)"),
    "volumes": ("last", "y = Concat <axis = 1> (volume, volume)"),
    "of constants alone": ("last", "y = Add (image, image)"),
    "other operators": ("last", "y = CumSum (x, o)"),
    "other domains": ("last", "y = com.microsoft.BiasGelu (x, row)"),
    "another domain's name": ("last", "y = com.microsoft.Range (x, x)"),
}
INPUTS = """float[2, 4, 6, 5] x, float[2, 4, 6, 5] z, float[2, 8, 3, 5] deep, float[2, 3, 6, 4] wide, int64[1] given,
int64[8] given8, float[5] some, int64[N] many, float[2, 4, 5] flat, float[2, 4, 3, 6, 5] volume, float[8] regions"""
RNG = np.random.default_rng(0)
WEIGHTS: dict[str, Array] = {
    "pixel": RNG.standard_normal((1, 4, 1, 1)).astype(np.float32),
    "image": RNG.standard_normal(SHAPE).astype(np.float32),
}


def graph(body: str) -> tuple[str, dict[str, Array]]:
    weights = {name: values for name, values in WEIGHTS.items() if f"{name})" in body}
    return f"g ({INPUTS}) => (float[] y) {CONSTANTS} {{ {body} }}", weights


def feeds() -> dict[str, Array]:
    proto, rng = parse(graph("y = Neg (x)")[0]), np.random.default_rng(1)
    found: dict[str, Array] = {}
    for info in proto.graph.input:
        kind = info.type.tensor_type
        shape = [dim.dim_value or 1 for dim in kind.shape.dim]
        whole = kind.elem_type == onnx.TensorProto.INT64
        found[info.name] = rng.integers(1, 2, shape) if whole else rng.standard_normal(shape).astype(np.float32)
    return found


FEEDS = feeds()


def outputs(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Array:
    (value,) = ReferenceEvaluator(model).run(None, dict(feeds))
    return np.asarray(value)


def turned(editor: Editor, to: Perm) -> Layout:
    """All nodes in the other layout that have a form there."""
    layout = Layout(editor, to)
    turns = nhwc.plans(layout, None)
    assert len(turns) == len(editor.graph.nodes), "a node has no form"
    nhwc.turn(layout, turns, set(turns))
    return layout


@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_same_in_the_other_layout(name: str) -> None:
    layout, body = CASES[name]
    text, weights = graph(body)
    proto, editor = parse(text, weights), edit(text, weights)
    kind = editor.dtype(editor.graph.outputs[0])
    editor.graph.outputs[0].dtype = kind
    turned(editor, LAYOUTS[layout])
    with np.errstate(all="ignore"):
        wanted, found = outputs(proto, FEEDS), outputs(to_proto(editor.model), FEEDS)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)
    readers = [node for tensor in editor.graph.inputs for node in tensor.outputs]
    assert all(is_turning(node, LAYOUTS[layout]) for node in readers), "a node reads the image as it was"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_reduction_leaves_behind_turns_where_it_has_one_order(layout: str) -> None:
    """Of all sets of axes: the same numbers where the others stand in one order in both layouts, else no form."""
    turning = set[tuple[int, ...]]()
    for axes in (axes for count in (1, 2, 3) for axes in combinations(range(4), count)):
        own = f"<int64[{len(axes)}] axes = {{{', '.join(map(str, axes))}}}>"
        text = f"g (float[2, 4, 6, 5] x) => (float[] y) {own} {{ y = ReduceMax <keepdims = 0> (x, axes) }}"
        proto, editor = parse(text), edit(text)
        (node,) = editor.graph.nodes
        if plan(Layout(editor, LAYOUTS[layout]), node) is not None:
            turning.add(axes)
            turned(editor, LAYOUTS[layout])
            given = {"x": FEEDS["x"]}
            np.testing.assert_array_equal(outputs(to_proto(editor.model), given), outputs(proto, given))
    # Without channels, or with nothing beside them; turned, the last axis is that of the channels.
    moved = 1 if layout == "last" else 3
    alone = {tuple(sorted({1, 2, 3} - {kept})) for kept in (1, 2, 3)}
    rest = {axes for count in (1, 2, 3) for axes in combinations(range(4), count) if moved in axes}
    assert turning == rest | alone | {(0, *axes) for axes in alone}


@pytest.mark.parametrize("name", NONE)
def test_what_has_no_form_is_left(name: str) -> None:
    layout, body = NONE[name]
    editor = edit(*graph(body))
    (node,) = editor.graph.nodes
    assert plan(Layout(editor, LAYOUTS[layout]), node) is None


def test_axes_are_counted_from_both_ends() -> None:
    editor = edit(*graph("y = Neg (x)"))
    last, first = Layout(editor, TO_LAST), Layout(editor, TO_FIRST)
    assert [last.axis(axis) for axis in range(-4, 4)] == [0, 3, 1, 2] * 2
    assert [first.axis(axis) for axis in range(-4, 4)] == [0, 2, 3, 1] * 2
    assert (last.last, first.last, last.back, first.back) == (True, False, TO_FIRST, TO_LAST)


@pytest.mark.parametrize(
    ("shape", "last", "first"),
    [
        ("2, 4, 1, 1", True, False), ("2, 1, 1, 4", False, True), ("2, C, 1, 1", True, False),
        ("2, 1, 1, 1", True, True),
        ("1, 1, 4, 1", False, False), ("2, 4, 1, 5", False, False), ("2, 4, 6, 1", False, False),
        ("2, 4, H, 1", False, False), ("4, 1, 1", False, False), ("2, 2, 4, 1, 1", False, False),
    ],
)  # fmt: skip
def test_pixels_are_views(shape: str, last: bool, first: bool) -> None:
    editor = edit(f"g (float[{shape}] x) => (float[] y) {{ y = Neg (x) }}")
    (x,) = editor.graph.inputs
    assert [Layout(editor, to).is_pixel(x) for to in (TO_LAST, TO_FIRST)] == [last, first]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pixel_turns_by_a_reshape(layout: str) -> None:
    shape = "2, 4, 1, 1" if layout == "last" else "2, 1, 1, 4"
    text = f"g (float[{shape}] x) => (float[a, b, c, d] y) {{ s = Sigmoid (x)  y = Concat <axis = 0> (s, x) }}"
    editor = edit(text)
    turned(editor, LAYOUTS[layout])
    assert sorted(node.op for node in editor.graph.nodes) == ["Concat", "Reshape", "Reshape", "Sigmoid"]
    x = np.arange(8, dtype=np.float32).reshape([int(size) for size in shape.split(",")])
    np.testing.assert_array_equal(outputs(to_proto(editor.model), {"x": x}), outputs(parse(text), {"x": x}))
