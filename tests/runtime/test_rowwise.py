"""Each rule of rows, held against the operator itself: the rows' shape, and that no row depends on another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from sdort.runtime.step.rowwise import Rows, free_rows, same_rows

COUNT = 3
Shape = tuple[int, ...]


def constants(values: dict[str, Any]) -> dict[str, onnx.TensorProto]:
    rng = np.random.default_rng(0)
    made = {}
    for name, value in values.items():
        array = np.array(value, np.int64) if isinstance(value, list) else rng.normal(size=value).astype(np.float32)
        made[name] = numpy_helper.from_array(array, name)
    return made


def run(node: onnx.NodeProto, rows: dict[str, np.ndarray[Any, Any]], known: dict[str, onnx.TensorProto]) -> Any:
    inputs = [helper.make_tensor_value_info(name, 1, list(value.shape)) for name, value in rows.items()]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("out")], list(known.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    results: Any = ReferenceEvaluator(model).run(None, rows)
    return results[0]


def node(op_type: str, inputs: str, **attributes: Any) -> onnx.NodeProto:
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op_type, names, ["out"], **attributes)


def skip_norm(inputs: str, outputs: str = "out - - sum") -> onnx.NodeProto:
    names = ["" if name == "-" else name for name in outputs.split()]
    return helper.make_node("SkipSimplifiedLayerNormalization", inputs.split(), names, domain="com.microsoft")


# Node, rows by name, constants by name: a shape of numbers, or a list of integers.
TAKEN: dict[str, tuple[onnx.NodeProto, dict[str, Shape], dict[str, Any]]] = {
    "unary": (node("Sin", "a"), {"a": (4, 5)}, {}),
    "cast": (node("Cast", "a", to=1), {"a": (4,)}, {}),
    "a number": (node("Add", "a k"), {"a": (4,)}, {"k": ()}),
    "a vector": (node("Mul", "k a"), {"a": (2, 4)}, {"k": (4,)}),
    "one row for all": (node("Add", "a k"), {"a": (2, 4)}, {"k": (1, 2, 4)}),
    "widened": (node("Mul", "a k"), {"a": (1,)}, {"k": (1, 5)}),
    "two rows": (node("Add", "a b"), {"a": (2, 1), "b": (1, 4)}, {}),
    "rows of numbers": (node("Add", "a b"), {"a": (), "b": ()}, {}),
    "rows and a number": (node("Mul", "a k"), {"a": ()}, {"k": ()}),
    "rows and one number": (node("Mul", "a k"), {"a": ()}, {"k": (1,)}),
    "gemm": (node("Gemm", "a w"), {"a": (4,)}, {"w": (4, 6)}),
    "gemm turned": (node("Gemm", "a w", transB=1), {"a": (4,)}, {"w": (6, 4)}),
    "gemm with a bias": (node("Gemm", "a w b"), {"a": (4,)}, {"w": (4, 6), "b": (6,)}),
    "gemm with one bias": (node("Gemm", "a w b", transB=1), {"a": (4,)}, {"w": (6, 4), "b": (1, 6)}),
    "matmul": (node("MatMul", "a w"), {"a": (4,)}, {"w": (4, 6)}),
    "matmul of more": (node("MatMul", "a w"), {"a": (2, 4)}, {"w": (4, 6)}),
    "joined": (node("Concat", "a b", axis=1), {"a": (4,), "b": (5,)}, {}),
    "joined at the end": (node("Concat", "a b", axis=-1), {"a": (2, 4), "b": (2, 5)}, {}),
    "joined inside": (node("Concat", "a b a", axis=1), {"a": (2, 4), "b": (3, 4)}, {}),
    "joined inside from the end": (node("Concat", "a b", axis=-2), {"a": (2, 4), "b": (3, 4)}, {}),
    "normalized": (node("LayerNormalization", "a k b"), {"a": (2, 4)}, {"k": (4,), "b": (4,)}),
    "normalized inside": (node("LayerNormalization", "a k", axis=1), {"a": (2, 4)}, {"k": (2, 4)}),
    "normalized from the end": (node("LayerNormalization", "a k", axis=-2), {"a": (2, 4)}, {"k": (2, 4)}),
    "reshaped": (node("Reshape", "a s"), {"a": (6,)}, {"s": [-1, 2, 3]}),
    "reshaped to as many": (node("Reshape", "a s"), {"a": (6,)}, {"s": [COUNT, 3, 2]}),
    "flattened": (node("Reshape", "a s"), {"a": (2, 3)}, {"s": [-1, 6]}),
    "cut": (node("Slice", "a s e x"), {"a": (6,)}, {"s": [1], "e": [4], "x": [1]}),
    "cut from the end": (node("Slice", "a s e x"), {"a": (4, 6)}, {"s": [-3], "e": [1 << 62], "x": [-1]}),
    "cut inside": (node("Slice", "a s e x t"), {"a": (4, 6)}, {"s": [0], "e": [4], "x": [-2], "t": [2]}),
    "cut twice": (node("Slice", "a s e x t"), {"a": (4, 6)}, {"s": [1, 5], "e": [3, 0], "x": [1, 2], "t": [1, -2]}),
    "unsqueezed": (node("Unsqueeze", "a x"), {"a": (4,)}, {"x": [1]}),
    "unsqueezed twice": (node("Unsqueeze", "a x"), {"a": (4,)}, {"x": [2, 3]}),
    "unsqueezed from the end": (node("Unsqueeze", "a x"), {"a": (4, 5)}, {"x": [-1, 1]}),
}


@pytest.mark.parametrize("name", TAKEN)
def test_rows_are_what_the_operator_makes_of_each_alone(name: str) -> None:
    made, shapes, values = TAKEN[name]
    known = constants(values)
    rows = Rows(known)
    rows.rows.update(shapes)
    assert rows.add(made)
    rng = np.random.default_rng(1)
    fed = {each: rng.normal(size=(COUNT, *shape)).astype(np.float32) for each, shape in shapes.items()}
    together = run(made, fed, known)
    assert (COUNT, *rows.rows["out"]) == together.shape
    free, targets = free_rows(made, rows.rows["out"])
    more = {**known, **{tensor.name: tensor for tensor in targets}}
    np.testing.assert_array_equal(run(free, fed, more), together)
    for number in range(COUNT):
        alone = run(free, {each: value[number : number + 1] for each, value in fed.items()}, more)
        np.testing.assert_allclose(alone[0], together[number], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("made", "values"),
    [
        (skip_norm("a b k j"), {"k": (4,), "j": (4,)}),
        (node("BiasAdd", "a k b", domain="com.microsoft"), {"k": (4,)}),
        (node("SimplifiedLayerNormalization", "a k", axis=-1), {"k": (4,)}),
        (node("RMSNormalization", "a k"), {"k": (4,)}),
    ],
)
def test_rows_of_operators_that_onnx_does_not_evaluate(made: onnx.NodeProto, values: dict[str, Any]) -> None:
    """Sums, and norms along the last axis: every named result has the rows."""
    rows = Rows(constants(values))
    rows.rows |= {"a": (2, 4), "b": (2, 4)}
    assert rows.add(made)
    assert {rows.rows[name] for name in made.output if name} == {(2, 4)}
    assert "" not in rows.rows


LEFT: dict[str, tuple[onnx.NodeProto, dict[str, Shape], dict[str, Any]]] = {
    "another's rows": (node("Add", "a b"), {"a": (4,)}, {}),
    "other ranks": (node("Add", "a b"), {"a": (4,), "b": (2, 4)}, {}),
    "other ranks turned": (node("Add", "a b"), {"a": (2, 4), "b": (4,)}, {}),
    "a number for each row": (node("Mul", "a k"), {"a": (4,)}, {"k": (COUNT, 1)}),
    "more dims than rows": (node("Mul", "a k"), {"a": (4,)}, {"k": (1, 1, 4)}),
    "what does not fit": (node("Add", "a k"), {"a": (4,)}, {"k": (3,)}),
    "constants alone": (node("Add", "k j"), {}, {"k": (4,), "j": (4,)}),
    "gemm of more": (node("Gemm", "a w"), {"a": (2, 4)}, {"w": (4, 6)}),
    "gemm of columns": (node("Gemm", "a w", transA=1), {"a": (4,)}, {"w": (COUNT, 6)}),
    "gemm of rows": (node("Gemm", "a b"), {"a": (4,), "b": (4,)}, {}),
    "gemm with rows": (node("Gemm", "a w b"), {"a": (4,), "b": (6,)}, {"w": (4, 6)}),
    "gemm with a bias a row": (node("Gemm", "a w b"), {"a": (4,)}, {"w": (4, 6), "b": (COUNT, 6)}),
    "matmul of numbers": (node("MatMul", "a w"), {"a": ()}, {"w": (COUNT, 6)}),
    "matmul of rows": (node("MatMul", "a b"), {"a": (4,), "b": (4,)}, {}),
    "matmul with a stack": (node("MatMul", "a w"), {"a": (2, 4)}, {"w": (2, 4, 6)}),
    "matmul with a vector": (node("MatMul", "a w"), {"a": (4,)}, {"w": (4,)}),
    "rows under rows": (node("Concat", "a b", axis=0), {"a": (4,), "b": (4,)}, {}),
    "rows under rows from the end": (node("Concat", "a b", axis=-2), {"a": (4,), "b": (4,)}, {}),
    "joined with a constant": (node("Concat", "a k", axis=1), {"a": (4,)}, {"k": (COUNT, 4)}),
    "normalized over rows": (node("LayerNormalization", "a k", axis=0), {"a": (4,)}, {"k": (COUNT, 4)}),
    "normalized over rows from the end": (node("LayerNormalization", "a k", axis=-2), {"a": (4,)}, {"k": (COUNT, 4)}),
    "normalized by rows": (node("LayerNormalization", "a b"), {"a": (4,), "b": (4,)}, {}),
    "normalized with what it took": (
        helper.make_node("LayerNormalization", ["a", "k"], ["out", "mean"]),
        {"a": (4,)},
        {"k": (4,)},
    ),
    "a sum with fewer rows normalized": (skip_norm("a b k"), {"a": (2, 4), "b": (1, 4)}, {"k": (4,)}),
    "a sum of a constant normalized": (skip_norm("a j k"), {"a": (4,)}, {"j": (1, 4), "k": (4,)}),
    "a sum normalized by rows": (skip_norm("a b c"), {"a": (4,), "b": (4,), "c": (4,)}, {}),
    "a sum normalized with what it took": (skip_norm("a b k", "out mean"), {"a": (4,), "b": (4,)}, {"k": (4,)}),
    "a bias of rows": (node("BiasAdd", "a b b", domain="com.microsoft"), {"a": (2, 4), "b": (2, 4)}, {}),
    "a bias and a constant": (
        node("BiasAdd", "a k j", domain="com.microsoft"),
        {"a": (2, 4)},
        {"k": (4,), "j": (1, 2, 4)},
    ),
    "reshaped over rows": (node("Reshape", "a s"), {"a": (6,)}, {"s": [-1, 3]}),
    "reshaped with a rest": (node("Reshape", "a s"), {"a": (6,)}, {"s": [COUNT, -1]}),
    "reshaped with a copy": (node("Reshape", "a s"), {"a": (6,)}, {"s": [-1, 0]}),
    "reshaped to nothing known": (node("Reshape", "a s"), {"a": (6,)}, {}),
    "cut in rows": (node("Slice", "a s e x"), {"a": (6,)}, {"s": [0], "e": [1], "x": [0]}),
    "cut in rows from the end": (node("Slice", "a s e x"), {"a": (6,)}, {"s": [0], "e": [1], "x": [-2]}),
    "cut in rows too": (node("Slice", "a s e x"), {"a": (6,)}, {"s": [0, 0], "e": [1, 1], "x": [1, 0]}),
    "cut without axes": (node("Slice", "a s e"), {"a": (6,)}, {"s": [0], "e": [1]}),
    "cut by unknown steps": (node("Slice", "a s e x t"), {"a": (6,)}, {"s": [0], "e": [4], "x": [1], "t": (1, 1)}),
    "unsqueezed before rows": (node("Unsqueeze", "a x"), {"a": (4,)}, {"x": [0]}),
    "unsqueezed before rows from the end": (node("Unsqueeze", "a x"), {"a": (4,)}, {"x": [-3]}),
    "unsqueezed somewhere": (node("Unsqueeze", "a x"), {"a": (4,)}, {}),
    "turned": (node("Transpose", "a", perm=[1, 0]), {"a": (4,)}, {}),
    "summed": (node("ReduceSum", "a", keepdims=0), {"a": (4,)}, {}),
    "of another domain": (node("Sin", "a", domain="other"), {"a": (4,)}, {}),
    "a product of another domain": (node("MatMul", "a w", domain="other"), {"a": (4,)}, {"w": (4, 6)}),
    "a sum of another domain": (node("Add", "a k", domain="other"), {"a": (4,)}, {"k": ()}),
    "two outputs": (helper.make_node("Split", ["a"], ["out", "more"], axis=1), {"a": (4,)}, {}),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_row_by_row_is_left(name: str) -> None:
    made, shapes, values = LEFT[name]
    rows = Rows(constants(values))
    rows.rows.update(shapes)
    assert not rows.add(made)
    assert "out" not in rows.rows


def test_integers_are_read_where_they_lie_in_the_graph() -> None:
    inside = constants({"list": [3, 1, 2], "number": (), "table": (2, 2)})
    inside["scalar"] = numpy_helper.from_array(np.array(5), "scalar")
    outside = onnx.TensorProto(name="list", data_type=7, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    rows = Rows({**inside, "outside": outside})
    assert rows.ints("list") == [3, 1, 2]
    assert rows.ints("scalar") == [5]
    assert [rows.ints(name) for name in ("table", "outside", "nothing")] == [None, None, None]


def test_a_node_without_rows_stays_as_it_is() -> None:
    for made, row in ((node("Reshape", "a s"), None), (node("Sin", "a"), (4,))):
        assert free_rows(made, row) == (made, [])


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ([2, 4], [2], True),
        (["N"], ["N", 3], True),
        (["N"], ["M"], False),
        ([2], [3], False),
        ([None], [None], False),
        ([], [2], False),
        ([2], [], False),
        ([], [], False),
    ],
)
def test_shapes_count_the_same_rows_by_their_first_dim(
    first: Sequence[object], second: Sequence[object], same: bool
) -> None:
    assert same_rows(first, second) is same
