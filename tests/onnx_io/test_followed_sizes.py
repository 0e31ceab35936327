"""What is followed of sizes to the condition of an If, and the names of inlined branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from support.small_graphs import parse

from sdort.onnx_io.branches import LARGEST, _inner, _Walk, inline_branches

INPUTS = "float[N, 4, 5] x, float[2, 3] k, int64[3] d"
CONSTANTS = """<int64[2] c = {7, -3}, int64[2] e = {2, 2}, int64[1] one = {1}, int64[1] zero = {0},
int64[1] last = {-1}, int64[2] swap = {1, 0}, int64[3] to = {1, 3, 1}, float[2] f = {4.0, 2.5}, bool[2] t = {1, 0},
bool[2] u = {1, 1}, int64[1] many = {65}, int64 i = {2}>"""


def walked(body: str) -> _Walk:
    walk = _Walk(parse(f"g ({INPUTS}) => (float[] out) {CONSTANTS} {{ {body} }}"), "unet")
    list(walk.run())
    return walk


def told(walk: _Walk, name: str = "y") -> list[Any] | None:
    """The elements that are known of a tensor, None for an open one."""
    if name not in walk.values:
        return None
    first, second = (value.reshape(-1).tolist() for value in walk.values[name])
    return [a if a == b else None for a, b in zip(first, second, strict=True)]


COMPUTED: dict[str, list[Any]] = {
    "Abs (c)": [7, 3], "Add (c, e)": [9, -1], "And (t, u)": [True, False], "Cast <to = 1> (c)": [7.0, -3.0],
    "Ceil (f)": [4.0, 3.0], "ConstantOfShape <value: tensor = int64[1] {5}> (e)": [5] * 4, "Div (c, e)": [3, -1],
    "Equal (c, e)": [False, False], "Floor (f)": [4.0, 2.0], "Greater (c, e)": [True, False],
    "GreaterOrEqual (e, e)": [True, True], "Less (c, e)": [False, True], "LessOrEqual (e, e)": [True, True],
    "Max (c, e)": [7, 2], "Min (c, e)": [2, -3], "Mod (c, e)": [1, 1], "Mul (c, e)": [14, -6], "Neg (c)": [-7, 3],
    "Not (t)": [False, True], "Or (t, u)": [True, True], "Pow (c, e)": [49, 9], "ReduceMax <keepdims = 0> (c)": [7],
    "ReduceMin <keepdims = 0> (c)": [-3], "ReduceProd <keepdims = 0> (c)": [-21], "ReduceSum <keepdims = 0> (c)": [4],
    "Sqrt (f)": [2.0, 2.5**0.5], "Sub (c, e)": [5, -5], "Where (t, c, e)": [7, 2], "Xor (t, u)": [False, True],
    "Constant <value_ints = [4, 6]> ()": [4, 6],
}  # fmt: skip


@pytest.mark.parametrize("node", COMPUTED)
def test_operators_of_conditions_are_computed(node: str) -> None:
    walk = walked(f"y = {node}")
    assert told(walk) == pytest.approx(COMPUTED[node])
    first = walk.values["y"][0]
    kind = walk.types["y"].tensor_type
    assert kind.elem_type == onnx.helper.np_dtype_to_tensor_dtype(first.dtype)
    assert [d.dim_value for d in kind.shape.dim] == list(first.shape)


@pytest.mark.parametrize(
    "node",
    ["Exp (f)", "Add (c, d)", "ConstantOfShape (many)", "Relu (x)", "com.microsoft.QuickGelu (f)", "Expand (c, many)"],
)
def test_nothing_else_is(node: str) -> None:
    assert told(walked(f"y = {node}")) is None


SIZES = "s = Shape (x)  "
MOVED: dict[str, list[Any] | None] = {
    "Shape (x)": [None, 4, 5], "Shape <start = 1> (x)": [4, 5], "Shape <end = 1> (x)": [None],
    "Shape <start = -2, end = -1> (x)": [4], "Size (x)": None, "Size (k)": [6], "Shape (k)": [2, 3],
    "Gather (s, swap)": [4, None], "Gather (s, i)": [5], "Slice (s, one, many)": [4, 5], "Slice (s, zero, one)": [None],
    "Unsqueeze (s, zero)": [None, 4, 5], "Concat <axis = 0> (c, s, one)": [7, -3, None, 4, 5, 1],
    "Concat <axis = 0> (s, d)": None, "Identity (s)": [None, 4, 5], "Reshape (s, to)": [None, 4, 5],
    "Add (s, one)": None, "Equal (s, s)": None, "Cast <to = 1> (s)": None, "Neg (s)": None, "Gather (c, s)": None,
    "Reshape (c, d)": None, "Gather (d, zero)": None, "ReduceMax (s)": None, "Where (t, s, s)": None,
}  # fmt: skip


@pytest.mark.parametrize("node", MOVED)
def test_open_sizes_are_moved_and_nothing_is_computed_of_them(node: str) -> None:
    assert told(walked(f"{SIZES}y = {node}")) == MOVED[node]


def test_open_sizes_in_two_axes_are_moved_too() -> None:
    walk = walked(f"{SIZES}r = Reshape (s, to)  y = Transpose <perm = [1, 0, 2]> (r)  z = Squeeze (r, zero)")
    assert (told(walk), told(walk, "z")) == ([None, 4, 5], [None, 4, 5])
    assert [value.shape for value in walk.values["y"]] == [(3, 1, 1)] * 2
    assert [value.shape for value in walk.values["z"]] == [(3, 1)] * 2


@pytest.mark.parametrize("node", ["Expand (o, s)", "ConstantOfShape (s)", "Tile (v, s)", "Reshape (x, s)"])
def test_what_is_filled_by_open_sizes_has_no_closed_ones_in_their_place(node: str) -> None:
    """The numbers that stand for an open size never become one."""
    walk = walked(f"{SIZES}o = Constant <value_ints = [1]> ()  v = Reshape (o, to)  y = {node}  z = Shape (y)")
    assert (told(walk, "z") or [None])[0] is None
    known = [d.dim_value for kind in walk.types.values() for d in kind.tensor_type.shape.dim]
    assert max(known) <= 65


def test_sizes_of_what_has_no_shape_are_not_known() -> None:
    walk = walked("a = Reshape (x, d)  b = Relu (a)  y = Shape (b)  z = Shape (nowhere)")
    assert (told(walk), told(walk, "z")) == ([None] * 3, None)  # as many axes as the target has elements


@pytest.mark.parametrize(
    ("target", "shape"),
    [("p", ["?", "?", 4]), ("q", [7, "?"]), ("to", [1, 3, 1]), ("d", ["?"] * 3)],
)
def test_a_view_by_open_sizes_keeps_the_closed_ones(target: str, shape: list[Any]) -> None:
    """Of ``p`` an element is -1, which is no size."""
    body = f"{SIZES}n = Gather (s, zero)  m = Gather (s, one)  p = Concat <axis = 0> (n, last, m)"
    walk = walked(
        f"{body}  j = Gather (c, zero)  q = Concat <axis = 0> (j, n)  y = Reshape (x, {target})  z = Shape (y)"
    )
    dims = walk.types["y"].tensor_type.shape.dim
    assert [d.dim_value if d.HasField("dim_value") else "?" for d in dims] == shape
    assert walk.types["y"].tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert told(walk, "z") == [None if size == "?" else size for size in shape]


@pytest.mark.parametrize(("count", "followed"), [(1, True), (LARGEST, True), (LARGEST + 1, False), (0, False)])
def test_constants_are_followed_up_to_a_size(count: int, followed: bool) -> None:
    proto = parse(f"g ({INPUTS}) => (float[] out) {{ out = Relu (x) }}", {"w": np.arange(count)})
    assert ("w" in _Walk(proto, "unet").values) is followed
    assert _Walk(proto, "unet").types["w"].tensor_type.shape.dim[0].dim_value == count


def test_defaults_and_values_in_other_files_are_not_followed() -> None:
    proto = parse(f"g ({INPUTS}) => (float[] out) {{ out = Relu (x) }}", {"w": np.arange(3), "v": np.arange(3)})
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.INT64, ["M"]))
    stored = proto.graph.initializer[1]
    stored.ClearField("raw_data")
    stored.data_location = onnx.TensorProto.EXTERNAL
    stored.external_data.add(key="location", value="v")
    walk = _Walk(proto, "unet")
    assert walk.values == {}
    assert walk.types["w"].tensor_type.shape.dim[0].dim_param == "M"  # the declared type stays
    assert walk.types["v"].tensor_type.shape.dim[0].dim_value == 3


def test_a_result_of_more_elements_is_not_followed() -> None:
    walk = walked("a = ConstantOfShape <value: tensor = int64[1] {5}> (e)  b = Concat <axis = 0> (a, a, a, a, a, a, a)")
    assert told(walk, "b") == [5] * 28
    many = "  ".join(f"b{i + 1} = Concat <axis = 0> (b{i}, b{i})" for i in range(6))
    walk = walked(f"b0 = Identity (c)  {many}")
    assert [len(told(walk, f"b{i}") or []) for i in range(7)] == [2, 4, 8, 16, 32, 64, 0]


NAMES = """<ir_version: 10, opset_import: ["" : 18]>
g (float[4] x, float[4] big) => (float[4] y, float[4] z) {
    yes = Constant <value: tensor = bool {1}> ()
    r = Neg (x)
    p, q = If (yes) <then_branch = th () => (float[4] a, float[4] b) {
        r = Abs (x)
        n = Constant <value: tensor = bool {0}> ()
        a = If (n) <then_branch = c () => (float[4] a1) { a1 = Sin (r) },
                    else_branch = d () => (float[4] a2) { w = Cos (r)  a2 = Add (w, big) }>
        b = Exp (r)
    }, else_branch = el () => (float[4] e, float[4] f) { e = Tan (x)  f = Tan (big) }>
    y = Add (p, r)
    z = Sub (q, r)
}"""


def test_names_of_a_branch_do_not_meet_those_of_the_graph() -> None:
    feeds = {"x": np.linspace(-1, 1, 4, dtype=np.float32), "big": np.arange(4, dtype=np.float32)}
    made = inline_branches(parser.parse_model(NAMES), "unet")
    onnx.checker.check_model(made)
    assert [node.op_type for node in made.graph.node if node.op_type in ("If", "Tan", "Sin")] == []
    written = [name for node in made.graph.node for name in node.output]
    assert len(set(written)) == len(written)
    evaluator: Any = onnx.reference.ReferenceEvaluator(made)
    y, z = evaluator.run(None, feeds)
    r, inner = -feeds["x"], np.abs(feeds["x"])
    np.testing.assert_allclose(y, np.cos(inner) + feeds["big"] + r, rtol=1e-6)
    np.testing.assert_allclose(z, np.exp(inner) - r, rtol=1e-6)


LOOP = """<ir_version: 10, opset_import: ["" : 18]>
g (float[4] x, bool open) => (float[4] y) {
    yes = Constant <value: tensor = bool {0}> ()
    h = Neg (x)
    p = If (yes) <then_branch = th () => (float[4] t) { t = Tan (x) },
                  else_branch = el () => (float[4] e) {
        h = Abs (x)
        k = Sin (x)
        e = If (open) <then_branch = i () => (float[4] h) { },
                       else_branch = j () => (float[4] o) { k = Cos (h)  o = Add (k, h) }>
    }>
    y = Add (p, h)
}"""


@pytest.mark.parametrize("opened", [True, False])
def test_branches_that_stay_capture_what_was_renamed(opened: bool) -> None:
    """The inner ``k`` is its own; ``h`` is the one of the outer branch, and where it is handed on, too."""
    made = inline_branches(parser.parse_model(LOOP), "unet")
    (kept,) = [node for node in made.graph.node if node.op_type == "If"]
    renamed = next(node.output[0] for node in made.graph.node if node.op_type == "Abs")
    assert renamed != "h"
    then, otherwise = _inner(kept)
    assert then.output[0].name == renamed
    assert [list(node.input) for node in otherwise.node] == [[renamed], ["k", renamed]]
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    evaluator: Any = onnx.reference.ReferenceEvaluator(made)
    (y,) = evaluator.run(None, {"x": x, "open": np.array(opened)})
    h = np.abs(x)
    np.testing.assert_allclose(y, (h if opened else np.cos(h) + h) - x, rtol=1e-6)


@pytest.mark.parametrize("change", ["no else", "an input", "outputs", "two conditions", "sparse", "another domain"])
def test_an_if_of_another_form_stays(change: str) -> None:
    proto = parser.parse_model(LOOP)
    node = proto.graph.node[2]
    branch = next(a.g for a in node.attribute if a.name == "else_branch")
    if change == "no else":
        del node.attribute[1]
    elif change == "an input":
        branch.input.add(name="i")
    elif change == "outputs":
        branch.output.add(name="k")
    elif change == "two conditions":
        proto.graph.initializer.append(numpy_helper.from_array(np.array([False, False]), "both"))
        node.input[0] = "both"
    elif change == "sparse":
        branch.sparse_initializer.add()
    else:
        node.domain = "elsewhere"
        assert inline_branches(proto, "unet").graph.node[2].domain == "elsewhere"
        return
    made = inline_branches(proto, "unet")
    assert [n.op_type for n in made.graph.node] == ["Constant", "Neg", "If", "Add"]
