"""Symbolic inference against ONNX Runtime: with the sizes put in, shapes and values are those that it computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from support.infer_cases import SHAPES, VALUES, Case
from support.small_graphs import edit, evaluate, feeds_for, parse, run

from sdort.errors import BadModelError
from sdort.graph.fact import MAX_VALUE, NOTHING, Fact, broadcast
from sdort.graph.symbolic import is_known, symbol
from sdort.onnx_io.load import from_proto
from sdort.rewrite.editor import Editor
from sdort.rewrite.inference.facts import RULES

SIZES = [{"B": 1, "H": 6, "W": 4, "S": 5}, {"B": 2, "H": 12, "W": 16, "S": 9}]


def proto_of(case: Case) -> onnx.ModelProto:
    """The case with every tensor that a node computes as an output."""
    proto = parse(case.text)
    del proto.graph.output[:]
    names = (name for node in proto.graph.node for name in node.output if name)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return proto


def inferred(case: Case) -> dict[str, Fact]:
    proto = proto_of(case)
    for output in proto.graph.output:  # the loader wants some type; inference is not told the true one
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    editor = Editor(from_proto(proto, None, "test"))
    return {tensor.name: editor.facts.of(tensor) for tensor in editor.graph.outputs}


def computed(case: Case, sizes: dict[str, int]) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs by ONNX Runtime."""
    proto = proto_of(case)
    return dict(zip([o.name for o in proto.graph.output], run(proto, feeds_for(proto, sizes)), strict=True))


@pytest.mark.parametrize("case", SHAPES, ids=lambda c: c.name)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_shapes_and_dtypes(case: Case, sizes: dict[str, int]) -> None:
    facts = inferred(case)
    for name, value in computed(case, sizes).items():
        fact = facts[name]
        if fact == NOTHING:
            assert name in case.vague
            continue
        assert fact.dtype == value.dtype
        assert fact.rank == value.ndim
        for found, wanted in zip(fact.shape or (), value.shape, strict=True):
            assert not is_known(found) or evaluate(found, sizes) == wanted, name
        assert all(map(is_known, fact.shape or ())) == (name not in case.vague), name


@pytest.mark.parametrize("case", VALUES, ids=lambda c: c.name)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values(case: Case, sizes: dict[str, int]) -> None:
    facts = inferred(case)
    for name, value in computed(case, sizes).items():
        fact = facts[name]
        assert fact.dtype == value.dtype
        assert [evaluate(d, sizes) for d in fact.shape or ()] == list(value.shape)
        assert (fact.value is None) == (name in case.vague), name
        if fact.value is not None:
            assert [evaluate(d, sizes) for d in fact.value] == value.reshape(-1).astype(np.int64).tolist(), name


def test_every_rule_has_a_case() -> None:
    seen = {(n.domain, n.op_type) for case in (*SHAPES, *VALUES) for n in parse(case.text).graph.node}
    assert {("", name) for name in RULES} <= seen  # those of other operators: tests/operators/test_operators.py


def test_an_unknown_operator_tells_nothing() -> None:
    editor = edit("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    unheard = editor.op("Unheard", [editor.graph.inputs[0]], domain="elsewhere")
    after = editor.op("Add", [unheard, editor.graph.inputs[0]])
    assert editor.facts.of(unheard) == NOTHING
    assert editor.shape(after) is None


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Concat", {}),
        ("Transpose", {"perm": [0, 2]}),
        ("Transpose", {"perm": "turn"}),
        ("Cast", {}),
    ],
)
def test_a_contradiction_is_the_models_fault(op: str, attributes: dict[str, Any]) -> None:
    editor = edit("g (float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }")
    with pytest.raises(BadModelError, match=f"{op}_1.*do not fit together"):
        editor.node(op, [editor.graph.inputs[0]], attributes)


def test_a_size_without_a_name_is_equal_to_itself_only() -> None:
    proto = parse("g (float[B, 4] x) => (float[B, 4] y, float[B, 4] z) { y = Relu (x)  z = Relu (x) }")
    proto.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    editor = Editor(from_proto(proto, None, "test"))
    y, z = (editor.shape(t) for t in editor.graph.outputs)
    assert y == z
    assert y is not None
    assert not is_known(y[0])


def test_broadcasting() -> None:
    h, w = symbol("H"), symbol("W")
    assert broadcast((h, 1), (2, 1, w)) == (2, h, w)
    assert broadcast((h,), (4,)) == broadcast((4,), (h,)) == (4,)
    assert broadcast((1,), (1,)) == (1,)
    assert broadcast((h,), None) is None
    undecided = broadcast((h,), (w,))
    assert undecided is not None
    assert not is_known(undecided[0])


def test_a_concat_teaches_that_sizes_agree() -> None:
    editor = edit("""
        g (float[B, 4, H, W] x, float[4, 4, 3, 3] k) => (float[B, 8, H, W] z) <float[4] twice = {1.0, 1.0, 2.0, 2.0}> {
            small = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, k)
            large = Resize (small, , twice)
            z = Concat <axis = 1> (large, x)
            later = Relu (large)
            w = Add (later, x)
        }""")
    shape = {tensor.name: editor.shape(tensor) for tensor in editor.graph.tensors().values()}
    assert shape["large"] is not None
    assert shape["large"][2] == symbol("H")  # written before the Concat told
    assert shape["later"] == shape["x"]
    assert shape["z"] == (symbol("B"), 8, symbol("H"), symbol("W"))


def test_numbers_that_the_dtype_cannot_hold_are_no_array() -> None:
    int64 = np.dtype(np.int64)
    assert Fact(int64, (1,), (2**63 - 1,)).array() == [2**63 - 1]
    assert Fact(int64, (1,), (2**63,)).array() is None


def test_large_tensors_are_not_followed_as_values() -> None:
    count = MAX_VALUE + 1
    numbers = helper.make_tensor("ints", onnx.TensorProto.INT64, [count], range(count))
    proto = parse("g (int64[B] x) => (int64[n] y) { y = Add (ints, x) }")
    proto.graph.initializer.append(numbers)
    editor = Editor(from_proto(proto, None, "test"))
    assert editor.dims(editor.graph.tensors()["ints"]) is None
