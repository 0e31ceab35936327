"""What the rules of products, scales and borrowed sizes ask of a node, question by question."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import Described, edit

from sdort.passes import borrow_shapes, products, scales
from sdort.rewrite.editor import Editor

VALUES: dict[str, Any] = {
    "w": Described([6, 8], np.float32), "wt": Described([8, 6], np.float32), "w3": Described([2, 6, 8], np.float32),
    **{name: Described(shape, np.float32) for name, shape in (("b", [8]), ("b2", [1, 8]), ("b5", [5, 8]), ("b1", [1]))},
    "two": np.array(2, np.float32), "half": np.array(0.5, np.float32), "minus": np.array(-4, np.float32),
    "one": np.array(1, np.float32), "zero": np.array(0, np.float32), "row": np.array([0.5, 2], np.float32),
    "half4": np.array([[[[0.5]]]], np.float32), "split": np.array([1, 5, 8]), "merge": np.array([10, 6]),
}  # fmt: skip


def built(body: str, inputs: str, outputs: str = "float[] y") -> Editor:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: value for name, value in VALUES.items() if name in words}
    return edit(f"g ({inputs}) => ({outputs}) {{ {body} }}", used)


LINEAR: dict[str, tuple[str, bool]] = {
    "a product": ("MatMul (x, w)", True),
    "a product of data": ("MatMul (x, v)", True),
    "a product of stacks": ("MatMul (x, w3)", False),
    "a layer": ("Gemm (x, w)", True),
    "a layer with a bias": ("Gemm (x, w, b)", True),
    "a layer with a bias of one row": ("Gemm (x, w, b2)", True),
    "a layer with a number": ("Gemm (x, w, b1)", True),
    "a layer with a bias for each row": ("Gemm (x, w, b5)", False),
    "a turned layer": ("Gemm <transB = 1> (x, wt, b)", True),
    "turned rows": ("Gemm <transA = 1> (t, w, b)", False),
    "scaled rows": ("Gemm <alpha = 0.5> (x, w)", False),
    "a scaled bias": ("Gemm <beta = 0.5> (x, w, b)", False),
    "scales of one": ("Gemm <alpha = 1.0, beta = 1.0, transA = 0> (x, w, b)", True),
    "a sum": ("Add (x, x)", False),
    "data of unknown axes": ("MatMul (x, u)", False),
}


@pytest.mark.parametrize("case", LINEAR.values(), ids=LINEAR)
def test_a_linear_has_one_matrix_and_one_bias_for_all_rows(case: tuple[str, bool]) -> None:
    body, linear = case
    before = "u = Reshape (v, s)  " if " u)" in body else ""
    editor = built(f"{before}y = {body}", "float[5, 6] x, float[6, 5] t, float[6, 8] v, int64[S] s")
    assert products._is_linear(editor, editor.graph.nodes[-1]) == linear


@pytest.mark.parametrize(
    ("before", "after", "kept", "found"),
    [
        ("2, 5, 6", "10, 6", 1, True), ("2, 5, 6", "10, 6", 2, False), ("2, 5, 6", "20, 3", 1, False),
        ("2, 3, 5, 6", "6, 5, 6", 2, True), ("2, 3, 5, 6", "6, 5, 6", 1, True), ("2, 3, 5, 6", "2, 15, 6", 2, False),
        ("10, 6", "2, 5, 6", 1, False), ("10, 6", "10, 6", 1, False), ("2, 5, 6", "5, 2, 6", 1, False),
    ],
)  # fmt: skip
def test_axes_that_were_merged_are_none_of_the_last(before: str, after: str, kept: int, found: bool) -> None:
    target = np.array([int(size) for size in after.split(",")])
    editor = edit(f"g (float[{before}] x) => (float[] y) {{ y = Reshape (x, s) }}", {"s": target})
    inner = products._unmerged(editor, editor.graph.outputs[0], kept)
    assert (inner is editor.graph.inputs[0]) == found
    assert found or inner is None
    assert products._unmerged(editor, editor.graph.inputs[0], kept) is None


VIEWS: dict[str, tuple[str, str, tuple[int, ...], bool]] = {
    "one": ("m = MatMul (x, w)  y = Reshape (m, split)", "float[] y", (1, 5), True),
    "other axes": ("m = MatMul (x, w)  y = Reshape (m, split)", "float[] y", (5, 1), False),
    "two": ("m = MatMul (x, w)  y = Reshape (m, split)  z = Reshape (m, split)", "float[] y, float[] z", (1, 5), True),
    "a view and a function": ("m = MatMul (x, w)  y = Reshape (m, split)  z = Neg (m)", "float[] y, float[] z", (1, 5),
                              False),
    "a function": ("m = MatMul (x, w)  y = Neg (m)", "float[] y", (5,), False),
    "an output": ("m = MatMul (x, w)  y = Reshape (m, split)", "float[] y, float[] m", (1, 5), False),
}  # fmt: skip


@pytest.mark.parametrize("case", VIEWS.values(), ids=VIEWS)
def test_all_readers_give_the_axes_again(case: tuple[str, str, tuple[int, ...], bool]) -> None:
    body, outputs, axes, found = case
    editor = built(body, "float[5, 6] x", outputs)
    views = products._views(editor, editor.graph.nodes[0], axes)
    assert views == (editor.graph.nodes[1:] if found else None)


SHAPES: list[tuple[Any, Any, Any]] = [
    ((5, 6), (6, 8), (5, 8)), ((2, 5, 6), (6, 8), (2, 5, 8)), ((5, 6), (2, 6, 8), (2, 5, 8)),
    ((1, 5, 6), (4, 6, 8), (4, 5, 8)), ((3, 1, 5, 6), (4, 6, 8), (3, 4, 5, 8)),
    ((6,), (6, 8), None), ((5, 6), (6,), None),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right", "wanted"), SHAPES)
def test_batches_of_a_product_are_broadcast(left: Any, right: Any, wanted: Any) -> None:
    assert products._product_shape(left, right) == wanted


STACKS: list[tuple[Any, bool, Any]] = [
    # a constant; whether it is one matrix again and again; the element that it holds alone
    (np.ones((2, 3, 4)), True, 1.0), (np.arange(24).reshape(2, 3, 4), False, None),
    (np.tile(np.arange(12).reshape(1, 3, 4), (2, 1, 1)), True, None), (np.arange(12).reshape(1, 3, 4), True, None),
    (np.full((1, 1, 1), 5), True, None), (np.full((1, 2, 1), 5), True, 5.0), (np.full((2, 2, 2, 2), -3), True, -3.0),
    (np.tile(np.arange(12).reshape(1, 1, 3, 4), (2, 2, 1, 1)), True, None),
]  # fmt: skip


@pytest.mark.parametrize(("values", "repeats", "element"), STACKS, ids=[f"case {i}" for i in range(len(STACKS))])
def test_a_stack_of_one_matrix_is_that_matrix(values: Any, repeats: bool, element: float | None) -> None:
    editor = edit("g (float[2] x) => (float[] y) { y = Neg (x) }")
    constant = gs.Constant("c", values.astype(np.float32))
    assert products._once(editor, constant) == (values.shape[-2:] if repeats else None)
    assert products._once(editor, gs.Constant("flat", np.ones((3, 4), np.float32))) is None
    found = products._element(editor, constant)
    assert (None if found is None else (found.shape, float(np.asarray(found.values)))) == (
        None if element is None else ((), element)
    )
    assert products._element(editor, gs.Constant("flat", np.ones((3, 4), np.float32))) is None
    if repeats:
        once = products._taken_once(editor, constant, ())
        assert isinstance(once, gs.Constant)
        np.testing.assert_array_equal(once.values, values.reshape(-1, *values.shape[-2:])[0])


FACTORS: dict[str, tuple[str, float | None]] = {
    "a product": ("y = Mul (p, half)", 0.5), "a product in front": ("y = Mul (half, p)", 0.5),
    "a quotient": ("y = Div (p, two)", 0.5), "a negative quotient": ("y = Div (p, minus)", -0.25),
    "a number that it divides": ("y = Div (two, p)", None), "a product by more": ("y = Mul (p, two)", None),
    "a product by one": ("y = Mul (p, one)", None), "a quotient by one": ("y = Div (p, one)", None),
    "a quotient by less": ("y = Div (p, half)", None), "a product by nothing": ("y = Mul (p, zero)", None),
    "a quotient by nothing": ("y = Div (p, zero)", None), "a factor for each": ("y = Mul (p, row)", None),
    "a factor of more axes": ("y = Mul (p, half4)", None), "a negative product": ("y = Mul (p, minus)", None),
    "a sum": ("y = Add (p, half)", None), "its square": ("y = Mul (p, p)", None),
    "two readers": ("a = Mul (p, half)  c = Neg (p)  y = Add (a, c)", None),
}  # fmt: skip


@pytest.mark.parametrize("case", FACTORS.values(), ids=FACTORS)
def test_the_factor_behind_a_product_is_below_one_and_one_for_all(case: tuple[str, float | None]) -> None:
    body, factor = case
    inputs = "float[3, 5, 4] q, float[3, 4, 2] k"
    editor = built(f"p = MatMul (q, k)  {body}", inputs)
    assert scales._factor_behind(editor, editor.graph.nodes[0]) == factor
    editor.graph.outputs.append(editor.graph.nodes[0].outputs[0])
    assert scales._factor_behind(editor, editor.graph.nodes[0]) is None


SHARES: dict[str, tuple[str, bool]] = {
    "shares": ("y = Softmax (x)", True),
    "an input": ("y = Identity (x)", False),
    "gates": ("y = Sigmoid (x)", False),
    **{op: (f"s = Softmax (x)  y = {op} (s)", True) for op in ("Identity", "Transpose", "Flatten", "Squeeze")},
    "cast shares": ("s = Softmax (x)  c = Cast <to = 10> (s)  y = Transpose (c)", True),
    "scaled shares": ("s = Softmax (x)  y = Mul (s, half)", False),
    "logarithms of shares": ("y = LogSoftmax (x)", False),
}


@pytest.mark.parametrize("case", SHARES.values(), ids=SHARES)
def test_views_of_shares_are_shares(case: tuple[str, bool]) -> None:
    editor = built(case[0], "float[3, 5] x")
    assert scales._is_shares(editor.graph.outputs[0]) == case[1]


def test_runs_of_axes_are_lent_by_the_first_tensor_that_has_them() -> None:
    editor = edit("g (float[B, 4, H] x, float[H, 4, B] z) => (float[] y) { y = Neg (x) }")
    x, z = editor.graph.inputs
    b, four, h = editor.shape(x) or ()
    lenders: dict[Any, Any] = {}
    borrow_shapes._remember(editor, lenders, x)
    borrow_shapes._remember(editor, lenders, z)
    borrow_shapes._remember(editor, lenders, gs.Variable("who_knows"))
    first = {(b,): (0, 1), (b, four): (0, 2), (b, four, h): (0, 3), (four,): (1, 2), (four, h): (1, 3), (h,): (2, 3)}
    second = {(h, four): (0, 2), (h, four, b): (0, 3), (four, b): (1, 3)}
    assert lenders == {
        **{sizes: (x, *run) for sizes, run in first.items()}, **{sizes: (z, *run) for sizes, run in second.items()},
    }  # fmt: skip

    def cover(*sizes: Any) -> Any:
        found = borrow_shapes._cover(sizes, lenders)
        return (
            found if found is None else [item if isinstance(item, int) else (item[0].name, *item[1:]) for item in found]
        )

    assert cover(b, four, h) == [("x", 0, 3)]
    assert cover(four) == [("x", 1, 2)]
    assert cover(b, four) == [("x", 0, 2)]
    assert cover(b, four, 7) == [("x", 0, 1), 4, 7]
    assert cover(7, h, four, b) == [7, ("z", 0, 3)]
    assert cover(b, h) == [("x", 0, 1), ("x", 2, 3)]
    assert cover(h, h, four) == [("x", 2, 3), ("x", 2, 3), 4]
    assert cover(7, 9) == [7, 9]
    assert cover(b, b + 1) is None
