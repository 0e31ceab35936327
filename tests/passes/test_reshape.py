"""Reshape targets: constants where one says it, sizes read off another tensor where not."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.rules import run_constant_views, run_fold
from support.small_graphs import check_step, edit, operators

from sdort.graph.symbolic import Shape, symbol, unknown
from sdort.passes import borrow_shapes
from sdort.passes.reshape import constant_target
from sdort.rewrite.editor import Editor

B, H, W = (symbol(name) for name in "BHW")


@pytest.mark.parametrize(
    ("target", "before", "spec"),
    [
        ((2, 3), (6,), [2, 3]),
        ((B, 4), (B, 2, 2), [0, 4]),
        ((B, H * W, 4), (B, H, W, 4), [0, -1, 4]),
        ((B, H, W, 4), (B, H, W, 4), [0, 0, 0, 4]),
        ((H * B, 4), (B, H, 4), [-1, 4]),
        ((4, B), (B, 4), [4, -1]),
        ((unknown(), 4), (B, 4), [-1, 4]),
        ((), (1,), []),
    ],
)
def test_targets_that_a_constant_can_say(target: Shape, before: Shape, spec: list[int]) -> None:
    assert constant_target(target, before) == spec


@pytest.mark.parametrize(
    ("target", "before"),
    [((B, H, W, 4), (B, H * W, 4)), ((H, B), (B, H)), ((0, 4), (4, 0)), ((B, 0), (B, 0)), ((H, W), (H * W,))],
)
def test_targets_that_it_cannot(target: Shape, before: Shape) -> None:
    assert constant_target(target, before) is None


def targets(editor: Editor) -> list[list[int] | None]:
    found = []
    for node in editor.graph.nodes:
        if node.op == "Reshape":
            shape = node.inputs[1]
            found.append(np.asarray(shape.values).tolist() if isinstance(shape, gs.Constant) else None)
    return found


VIEWS = {
    "computed": (
        "float[B, H, W, 8] x",
        "s = Shape (x)  b = Slice (s, zero, one)  t = Concat <axis = 0> (b, rest)  y = Reshape (x, t)",
        [[0, -1, 8]],
    ),
    "Flatten": ("float[B, 4, H] x", "y = Flatten (x)", [[0, -1]]),
    "Flatten in the middle": ("float[2, 3, H] x", "y = Flatten <axis = 2> (x)", [[6, -1]]),
    "Squeeze": ("float[B, 1, H, 1] x", "y = Squeeze (x, odd)", [[0, -1]]),
    "Unsqueeze": ("float[B, H] x", "y = Unsqueeze (x, odd)", [[0, 1, -1, 1]]),
    "a chain": ("float[B, H, 4] x", "u = Unsqueeze (x, one)  f = Flatten (u)  y = Reshape (f, heads)", [[0, -1, 2]]),
    "allowzero": ("float[B, H] x", "y = Reshape <allowzero = 1> (x, back)", [[-1, 2]]),
}
CONSTANTS = """<int64[1] zero = {0}, int64[1] one = {1}, int64[2] odd = {1, 3}, int64[2] rest = {-1, 8},
int64[3] heads = {0, -1, 2}, int64[2] back = {-1, 2}>"""


@pytest.mark.parametrize(
    "body", ["y = Squeeze (x, zero)", "y = Reshape (x, none)", "u = Squeeze (x)  y = Reshape (u, none)"]
)
def test_a_scalar_is_squeezed(body: str) -> None:
    """MIGraphX takes a Reshape to no dims for one to no elements."""
    text = f"g (float[1] x) => (float y) <int64[1] zero = {{0}}, int64[0] none = {{}}> {{ {body} }}"
    check_step(text, run_constant_views, {})
    editor = edit(text)
    run_constant_views(editor)
    assert operators(editor) == {"Squeeze": 1}
    assert run_constant_views(editor) == 0


@pytest.mark.parametrize("case", VIEWS.values(), ids=VIEWS)
def test_views_get_constant_targets(case: tuple[str, str, list[list[int]]]) -> None:
    inputs, body, specs = case
    text = f"g ({inputs}) => (float[] y) {CONSTANTS} {{ {body} }}"
    check_step(text, run_constant_views, {"B": 3, "H": 4, "W": 5})
    editor = edit(text)
    assert run_constant_views(editor) > 0
    assert targets(editor) == specs
    assert set(operators(editor)) == {"Reshape"}
    assert run_constant_views(editor) == 0


def test_views_in_between_stay_for_their_other_readers() -> None:
    nodes = "u = Flatten (x)  z = Neg (u)  y = Reshape (u, heads)"
    text = f"g (float[B, 4, H] x) => (float[] y, float[] z) {CONSTANTS} {{ {nodes} }}"
    assert check_step(text, run_constant_views, {"B": 3, "H": 4}) == {"Neg": 1, "Reshape": 2}


def test_views_to_several_unknown_sizes_stay() -> None:
    text = "g (float[B, C] x, int64[3] s) => (float[] y) { y = Reshape (x, s) }"
    editor = edit(text)
    assert run_constant_views(editor) == 0


def test_empty_tensors_keep_their_target() -> None:
    editor = edit("g (float[B, 0] x) => (float[] y) { y = Flatten (x) }")
    assert run_constant_views(editor) == 0


# --- borrowed sizes ---

BACK = """
g (float[B, 320, H, W] x) => (float[] y) <int64 zero = {0}, int64 two = {2}, int64 three = {3}, int64[1] at = {0},
int64[1] width = {320}, int64[3] flat = {0, 320, -1}> {
    s = Shape (x)
    b = Gather (s, zero)  h = Gather (s, two)  w = Gather (s, three)
    f = Reshape (x, flat)
    t = Transpose <perm = [0, 2, 1]> (f)
    b1 = Unsqueeze (b, at)  h1 = Unsqueeze (h, at)  w1 = Unsqueeze (w, at)
    to = Concat <axis = 0> (b1, h1, w1, width)
    y = Reshape (t, to)
}"""


def borrow(editor: Editor) -> None:
    borrow_shapes.run(editor)
    run_fold(editor)


def test_a_run_of_axes_is_read_off_a_tensor_that_has_it() -> None:
    left = check_step(BACK, borrow, {"B": 2, "H": 3, "W": 5})
    assert left == {"Concat": 1, "Reshape": 2, "Shape": 2, "Slice": 2, "Transpose": 1}


WHOLE = """
g (float[{dims}] x) => (float[] y) <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
int64[1] far = {{99}}, int64[1] rest = {{-1}}, int64[1] four = {{4}}, int64[2] flat = {{0, -1}}> {{
    s = Shape (x)
    b = Slice (s, zero, one)  h = Slice (s, one, two)  w = Slice (s, two, far)
    f = Reshape (x, flat)
    to = Concat <axis = 0> ({sizes})
    y = Reshape (f, to)
}}"""


@pytest.mark.parametrize(
    ("dims", "sizes"),
    [("B, H, W", "b, h, w"), ("B, H, W", "rest, h, w"), ("B, H, 4", "b, h, four"), ("B, ?, ?", "b, h, w")],
    ids=["named", "one left open", "a number at the end", "without names"],
)
def test_the_whole_shape_needs_no_slice(dims: str, sizes: str) -> None:
    text = WHOLE.format(dims=dims, sizes=sizes)
    left = check_step(text, borrow_shapes.run, {"B": 2, "H": 3, "W": 5, "": 3})
    assert left == {"Reshape": 2, "Shape": 1}


def test_sizes_are_read_off_the_first_tensor_that_has_them() -> None:
    editor = edit(WHOLE.format(dims="B, H, W", sizes="b, h, w").replace("Reshape (x, flat)", "Neg (x)"))
    borrow_shapes.run(editor)
    (shape,) = (node for node in editor.graph.nodes if node.op == "Shape")
    assert shape.inputs[0].name == "x"


@pytest.mark.parametrize(
    ("places", "left"),
    [("int64[2] at = {1, 0}", {"Shape": 1, "Sub": 1}), ("int64 at = {1}", {"Gather": 1, "Shape": 1, "Sub": 1})],
    ids=["sizes", "a scalar"],
)
def test_sizes_that_are_subtracted_are_read_where_they_are_a_vector(places: str, left: dict[str, int]) -> None:
    text = f"""
    g (float[B, H] x, float[H, B] z) => (int64[] y) <int64[2] two = {{2, 2}}, {places}> {{
        s = Shape (x)  t = Gather (s, at)
        y = Sub (two, t)
    }}"""
    assert check_step(text, borrow_shapes.run, {"B": 2, "H": 3}) == left


def test_sizes_of_intermediate_tensors_are_read() -> None:
    text = WHOLE.format(dims="B, H, W", sizes="b, h, w").replace(
        "s = Shape (x)", "q = Concat <axis = 1> (x, x)  s = Shape (q)"
    )
    text = text.replace("Reshape (x, flat)", "Reshape (q, flat)")
    left = check_step(text, borrow_shapes.run, {"B": 2, "H": 3, "W": 5})
    assert left == {"Concat": 1, "Reshape": 2, "Shape": 1}


def test_numbers_between_sizes_stay_constant() -> None:
    text = """
    g (float[B, 6, H, 4] x, float[S] z) => (float[] y) <int64[1] two = {2}, int64[1] three = {3}, int64[1] four = {4}> {
        s = Shape (x)  t = Shape (z)
        h = Slice (s, two, three)
        to = Concat <axis = 0> (h, four, t)
        y = ConstantOfShape (to)
    }"""
    editor = edit(text)
    borrow_shapes.run(editor)
    (concat,) = (node for node in editor.graph.nodes if node.op == "Concat")
    assert [editor.dims(tensor) for tensor in concat.inputs] == [(H,), (4,), (symbol("S"),)]


def test_operators_of_other_domains_are_left() -> None:
    text = """
    g (float[B, 4] x, float[S] z) => (float[] y, float[] e) <int64[2] two = {-1, 2}> {
        f = Flatten <axis = 0> (x)  y = Reshape (f, two)
        s = Shape (x)  t = Shape (z)  to = Concat <axis = 0> (t, s)  e = Expand (x, to)
    }"""
    editor = edit(text)
    for node in editor.graph.nodes:
        node.domain = "elsewhere" if node.op in ("Flatten", "Expand") else None
    assert run_constant_views(editor) == 0
    borrow_shapes.run(editor)
    assert operators(editor) == {"Concat": 1, "Reshape": 1, "Shape": 2, "elsewhere.Expand": 1, "elsewhere.Flatten": 1}


def test_equal_sizes_are_read_once() -> None:
    twice = BACK.replace("y = Reshape (t, to)", "u = Reshape (t, to)  n = Exp (t)  v = Reshape (n, to)  y = Add (u, v)")
    editor = edit(twice)
    borrow_shapes.run(editor)
    readers = {
        node.inputs[1].name
        for node in editor.graph.nodes
        if node.op == "Reshape" and isinstance(node.inputs[1], gs.Variable)
    }
    assert len(readers) == 1
    check_step(twice, borrow, {"B": 2, "H": 3, "W": 5})


SIZED = {
    "Expand": ("e = Expand (one, to)  y = Neg (e)", {"Expand": 1, "Neg": 1}),
    "ConstantOfShape": ("y = ConstantOfShape (to)", {"ConstantOfShape": 1}),
    "Resize": ('y = Resize <mode = "nearest"> (x, , , to)', {"Resize": 1}),
}


@pytest.mark.parametrize("case", SIZED.values(), ids=SIZED)
def test_other_operators_that_take_sizes(case: tuple[str, dict[str, int]]) -> None:
    text = f"""
    g (float[B, 4, H, W] x, float[S, W] z) => (float[] y)
    <float[1, 1, 1, 1] one = {{1.0}}, int64 j = {{0}}, int64[1] at = {{0}}, int64[2] mid = {{4, 6}}> {{
        s = Shape (x)  t = Shape (z)
        h = Gather (s, j)  w = Gather (t, j)
        h1 = Unsqueeze (h, at)  w1 = Unsqueeze (w, at)
        to = Concat <axis = 0> (h1, mid, w1)
        {case[0]}
    }}"""
    left = check_step(text, borrow, {"B": 2, "H": 3, "W": 5, "S": 7}, constant="Resize" not in case[1])
    assert left == {**case[1], "Concat": 1, "Shape": 2, "Slice": 2}


def test_sizes_that_no_tensor_has_stay_computed() -> None:
    text = """
    g (float[B, H] x) => (float[] y) <int64[1] two = {2}, int64 one = {1}, int64[1] at = {0}, int64[1] half = {2}> {
        s = Shape (x)
        h = Gather (s, one)
        twice = Mul (h, two)
        y = ConstantOfShape (twice)
    }"""
    left = check_step(text, borrow, {"B": 2, "H": 3}, constant=True)
    assert left == {"ConstantOfShape": 1, "Gather": 1, "Mul": 1, "Shape": 1}
