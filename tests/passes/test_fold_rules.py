"""Folding, rule by rule: which results are short, which operands change nothing, what is known to be zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.rules import run_fold
from support.small_graphs import Described, edit

from sdort.passes import fold
from sdort.passes.fold import LARGEST_FOLDED
from sdort.rewrite.editor import Editor, array

RANGES: list[tuple[float, float, float, bool]] = [
    (0, LARGEST_FOLDED, 1, True), (0, LARGEST_FOLDED + 1, 1, False), (LARGEST_FOLDED, 0, -1, True),
    (LARGEST_FOLDED + 1, 0, -1, False), (10, LARGEST_FOLDED + 10, 1, True), (-10, LARGEST_FOLDED, 1, False),
    (0, 2 * LARGEST_FOLDED, 2, True), (0, LARGEST_FOLDED, 0.5, False), (0, 5, 0, False), (5, 5, 1, True),
]  # fmt: skip


@pytest.mark.parametrize(("start", "limit", "step", "short"), RANGES)
def test_a_range_is_short_by_its_count(start: float, limit: float, step: float, short: bool) -> None:
    editor = edit("g (float[2] x, float n) => (float[2] y) { y = Neg (x) }")
    inputs = [gs.Constant(f"c{index}", np.array(v, np.float64)) for index, v in enumerate((start, limit, step))]
    node = gs.Node("Range", "r", {}, list(inputs), [gs.Variable("r")])
    assert fold._short(editor, node) == short
    for index in range(3):
        node.inputs = [editor.graph.inputs[1] if i == index else tensor for i, tensor in enumerate(inputs)]
        assert not fold._short(editor, node), "a bound is not known"


SHORT: dict[str, tuple[str, bool]] = {
    "as many elements": (f"r = Expand (one, size{LARGEST_FOLDED})", True),
    "one more": (f"r = Expand (one, size{LARGEST_FOLDED + 1})", False),
    "of several axes": ("r = Expand (one, rows256)", True),
    "of several axes, one more": ("r = Expand (one, rows257)", False),
    **{
        op: (f"r = {body}", False)
        for op, body in {
            "Expand": "Expand (one, given)", "ConstantOfShape": "ConstantOfShape (given)", "Tile": "Tile (one, given1)",
            "Resize": "Resize (image, , , given4)", "Pad": "Pad (one, given2)",
            "OneHot": "OneHot (ints, count, values)",
        }.items()
    },
    "what does not grow": ("r = Reshape (one, given)", True),
    "what does not grow, of two": ("r = Add (x, one)", True),
}  # fmt: skip


@pytest.mark.parametrize("case", SHORT.values(), ids=SHORT)
def test_results_of_unknown_sizes_are_short_where_they_do_not_grow(case: tuple[str, bool]) -> None:
    body, short = case
    values: dict[str, Any] = {
        "one": np.ones(1, np.float32), "ints": np.array([1, 2]), "values": np.array([0.0, 1.0], np.float32),
        "image": np.ones((1, 1, 2, 2), np.float32), f"size{LARGEST_FOLDED}": np.array([LARGEST_FOLDED]),
        f"size{LARGEST_FOLDED + 1}": np.array([LARGEST_FOLDED + 1]), "rows256": np.array([256, 256]),
        "rows257": np.array([257, 256]),
    }  # fmt: skip
    used = {name: value for name, value in values.items() if f"{name})" in body or f"{name}," in body}
    inputs = "float[N] x, int64[2] given, int64[1] given1, int64[2] given2, int64[4] given4, int64 count"
    editor = edit(f"g ({inputs}) => (float[] r) {{ {body} }}", used)
    assert fold._short(editor, editor.graph.nodes[0]) == short


NEUTRAL: dict[str, tuple[str, str | None]] = {
    # what is left
    "plus zero": ("Add (x, zero)", "x"), "zero plus": ("Add (zero, x)", "x"), "minus zero": ("Sub (x, zero)", "x"),
    "zero minus": ("Sub (zero, x)", None), "times one": ("Mul (x, one)", "x"), "one times": ("Mul (one, x)", "x"),
    "over one": ("Div (x, one)", "x"), "one over": ("Div (one, x)", None), "plus one": ("Add (x, one)", None),
    "minus one": ("Sub (x, one)", None), "times zero": ("Mul (x, zero)", None), "over zero": ("Div (x, zero)", None),
    "times minus one": ("Mul (x, minus)", None), "times one of more axes": ("Mul (x, wide)", None),
    "a smaller one times": ("Mul (s, one4)", None), "plus zeros of fewer axes": ("Add (x, zero1)", "x"),
    "a smaller one plus": ("Add (s, x)", None), "of two": ("Add (x, x)", None), "a maximum": ("Max (x, zero)", None),
    "integers plus zero": ("Add (n, nothing)", None),
}  # fmt: skip


@pytest.mark.parametrize("case", NEUTRAL.values(), ids=NEUTRAL)
def test_an_operand_that_changes_nothing_is_dropped(case: tuple[str, str | None]) -> None:
    body, wanted = case
    values: dict[str, Any] = {
        "zero": np.float32(0).reshape(()), "zero1": np.zeros(1, np.float32), "one": np.float32(1).reshape(()),
        "minus": np.float32(-1).reshape(()), "wide": np.ones((1, 1, 1), np.float32),
        "one4": np.ones((3, 4), np.float32), "nothing": np.array(0),
    }  # fmt: skip
    used = {name: value for name, value in values.items() if f"{name})" in body or f"{name}," in body}
    editor = edit(f"g (float[3, 4] x, float[4] s, int64[3] n) => (float[] y) {{ y = {body} }}", used)
    found = fold._unchanged(editor, editor.graph.nodes[0])
    assert (None if found is None else found.name) == wanted


UNCHANGED: dict[str, tuple[str, bool]] = {
    "an identity": ("Identity (x)", True),
    "one that is joined": ("Concat <axis = 0> (x)", True),
    "two that are joined": ("Concat <axis = 0> (x, x)", False),
    "a dropout": ("Dropout (x)", True),
    "a dropout with a share": ("Dropout (x, half)", True),
    "a dropout that does not train": ("Dropout (x, half, no)", True),
    "a dropout that trains": ("Dropout (x, half, yes)", False),
    "a dropout that may train": ("Dropout (x, half, b)", False),
    "a cast to its type": ("Cast <to = 1> (x)", True),
    "a cast to another": ("Cast <to = 10> (x)", False),
    "a view of the same": ("Reshape (x, same)", True),
    "a view of others": ("Reshape (x, turned)", False),
    "an expansion to the same": ("Expand (x, same)", True),
    "an expansion": ("Expand (x, more)", False),
    "all of it": ("Slice (x, o, far, first)", True),
    "a part": ("Slice (x, one, far, first)", False),
    "all of it in steps of one": ("Slice (x, o, far, first, one)", True),
    "all of it backwards": ("Slice (x, last, before, first, last)", False),
    "all of it in computed steps": ("Slice (x, o, far, first, i)", False),
    "the same order": ("Transpose <perm = [0, 1]> (x)", True),
    "another order": ("Transpose <perm = [1, 0]> (x)", False),
    "no order": ("Transpose (x)", False),
    "a function": ("Relu (x)", False),
}


@pytest.mark.parametrize("case", UNCHANGED.values(), ids=UNCHANGED)
def test_a_node_that_does_nothing_is_its_input(case: tuple[str, bool]) -> None:
    body, nothing = case
    values: dict[str, Any] = {
        "half": np.float32(0.5).reshape(()), "yes": np.array(True), "no": np.array(False), "same": np.array([3, 3]),
        "turned": np.array([9, 1]), "more": np.array([2, 3, 3]), "o": np.array([0]), "one": np.array([1]),
        "far": np.array([9]), "first": np.array([0]), "last": np.array([-1]), "before": np.array([-9]),
    }  # fmt: skip
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in values.items() if name in words}
    editor = edit(f"g (float[3, 3] x, bool b, int64[1] i) => (float[] y) {{ y = {body} }}", used)
    found = fold._unchanged(editor, editor.graph.nodes[0])
    assert (found is editor.graph.inputs[0]) == nothing
    assert nothing or found is None


@pytest.mark.parametrize("to", [1, 10, 11, 7])
def test_a_cast_of_an_unknown_type_stays(to: int) -> None:
    """numpy holds None for float64."""
    editor = edit(f"g (float[3] x) => (float[] y) {{ y = Cast <to = {to}> (x) }}")
    (node,) = editor.graph.nodes
    assert editor.dtype(node.outputs[0]) is not None
    node.inputs[0] = gs.Variable("who_knows")
    assert fold._unchanged(editor, node) is None


ZEROS: dict[str, tuple[str, bool]] = {
    "a filling": ("ConstantOfShape (n)", True),
    "a filling with zero": ("ConstantOfShape <value: tensor = float[1] {0.0}> (n)", True),
    "a filling with a number": ("ConstantOfShape <value: tensor = float[1] {0.5}> (n)", False),
    "a repeated zero": ("Expand (zero, n)", True),
    "a repeated number": ("Expand (one, n)", False),
    "a view of zeros": ("Reshape (zero, n)", True),
    "a product with zero": ("Mul (x, zero)", True),
    "a product with zero in front": ("Mul (zero, x)", True),
    "a product": ("Mul (x, one)", False),
    "a sum": ("Add (zero, x)", False),
    "a quotient": ("Div (zero, x)", False),
    "a moved zero": ("Transpose (zeros3)", False),
}


@pytest.mark.parametrize("case", ZEROS.values(), ids=ZEROS)
def test_what_is_filled_repeated_or_multiplied_with_zeros_is_zero(case: tuple[str, bool]) -> None:
    body, zero = case
    values: dict[str, Any] = {"zero": np.zeros(1, np.float32), "one": np.ones(1, np.float32)}
    values["zeros3"] = np.zeros((2, 2, 2), np.float32)
    used = {name: value for name, value in values.items() if f"{name})" in body or f"{name}," in body}
    editor = edit(f"g (float[1] x, int64[1] n) => (float[] y) {{ y = {body} }}", used)
    assert fold.is_zero(editor.graph.nodes[0].outputs[0]) == zero
    assert not fold.is_zero(editor.graph.inputs[0])


@pytest.mark.parametrize(
    ("shape", "value", "zero"),
    [
        ((), 0, True), ((1,), 0, True), ((), 1e-30, False), ((4,), 0, False), ((2, 4), 0, False), ((2, 3, 4), 0, True),
        ((2, 3, 4), 1e-30, False), ((1, 3, 4), 0, False), ((2, 3, 4, 5), 0, True), ((2, 3, 4, 1), 0, False),
    ],
)  # fmt: skip
def test_a_constant_of_zeros_counts_where_it_is_one_number_or_has_the_scores_axes(
    shape: tuple[int, ...], value: float, zero: bool
) -> None:
    assert fold.is_zero(gs.Constant("c", np.full(shape, value, np.float32))) == zero


def constants(editor: Editor) -> list[list[Any]]:
    run_fold(editor)
    ends = [output.inputs[0].inputs[0] for output in editor.graph.outputs]
    return [np.asarray(array(tensor)).tolist() for tensor in ends]


REMEMBERED: dict[str, tuple[str, list[Any]]] = {
    "shape": ("a = ReduceSum <keepdims = 0> (w, one)  b = ReduceSum <keepdims = 0> (h, one)", [[3, 12], [1, 5, 9]]),
    "attributes": (
        "a = ReduceMax <keepdims = 1> (w, one)  b = ReduceMax <keepdims = 0> (w, one)",
        [[[2], [5]], [2, 5]],
    ),
    "order": ("a = Sub (u, v)  b = Sub (v, u)", [-3, 3]),
}


@pytest.mark.parametrize("case", REMEMBERED.values(), ids=REMEMBERED)
def test_what_is_remembered_of_a_node_is_not_taken_for_another(case: tuple[str, list[Any]]) -> None:
    body, wanted = case
    values: dict[str, Any] = {
        "one": np.array([1]), "w": np.arange(6).reshape(2, 3), "h": np.arange(6).reshape(3, 2),
        "u": np.array(2, np.float32), "v": np.array(5, np.float32),
    }  # fmt: skip
    used = {name: value for name, value in values.items() if f"({name}," in body or f" {name})" in body}
    text = f"g () => (float[] ya, float[] yb) {{ {body}  ya = Identity (a)  yb = Identity (b) }}"
    assert constants(edit(text, used)) == wanted


QUANTIZED: dict[str, tuple[str, tuple[int, ...], str, Any]] = {
    # type of the weight, the scale's shape, attributes, the axis; None where it is not described
    "one scale": ("int8", (), "", 1), "a scale for each": ("uint8", (4,), "<axis = 0>", 0),
    "a scale for each of the last": ("int8", (6,), "<axis = -1>", 1), "no axis": ("int8", (6,), "", 1),
    "blocks": ("int8", (4, 3), "<axis = 1, block_size = 2>", None),
}  # fmt: skip


@pytest.mark.parametrize("case", QUANTIZED.values(), ids=QUANTIZED)
@pytest.mark.parametrize("zero_point", [False, True])
def test_stored_integers_keep_their_scale_zero_point_and_axis(
    case: tuple[str, tuple[int, ...], str, Any], zero_point: bool
) -> None:
    kind, shape, attrs, axis = case
    scale, point = Described(shape, np.float32), Described(shape, np.dtype(kind))
    weights = {"w": Described([4, 6], np.dtype(kind)), "s": scale, **({"z": point} if zero_point else {})}
    text = f"g () => (float[] y) {{ y = DequantizeLinear {attrs} (w, s{', z' if zero_point else ''}) }}"
    node = edit(text, weights).graph.nodes[0]
    found = fold._dequantized(node, weights["w"])
    assert (found is None) == (axis is None)
    if found is not None:
        assert (found.axis, found.dtype, found.shape) == (axis, np.dtype(np.float32), (4, 6))
        assert list(found.leaves()) == list(weights.values())
