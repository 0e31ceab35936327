"""Nodes of an fp16 graph that compute in fp32: each cast that stands around them, and which are an attention's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.small_graphs import Array, parse

from sdort.passes import widen
from sdort.passes.widen import BEFORE_SOFTMAX, attention_nodes

HALF = ("x", "z", "a", "b", "v", "y")


def described(proto: onnx.ModelProto) -> list[str]:
    """Each node as ``Op inputs -> outputs``, a cast by what it casts to."""
    kinds = {TensorProto.FLOAT: "Float", TensorProto.FLOAT16: "Half"}
    found = []
    for node in proto.graph.node:
        casts = {a.name: a.i for a in node.attribute if node.op_type == "Cast"}
        found.append(f"{kinds.get(casts.get('to', 0), node.op_type)} {' '.join(node.input)} -> {' '.join(node.output)}")
    return found


WIDENED: dict[str, tuple[str, set[str], bool, int, list[str]]] = {
    "none": ("a = Neg (x)  y = Abs (a)", set(), False, 0, ["Neg x -> a", "Abs a -> y"]),
    "the first": (
        "a = Neg (x)  y = Abs (a)", {"a"}, False, 1,
        ["Float x -> x//float", "Neg x//float -> a//float", "Half a//float -> a", "Abs a -> y"],
    ),
    "the last": (
        "a = Neg (x)  y = Abs (a)", {"y"}, False, 1,
        ["Neg x -> a", "Float a -> a//float", "Abs a//float -> y//float", "Half y//float -> y"],
    ),
    "both": (
        "a = Neg (x)  y = Abs (a)", {"a", "y"}, False, 2,
        ["Float x -> x//float", "Neg x//float -> a//float", "Abs a//float -> y//float", "Half y//float -> y"],
    ),
    "both, rounded between": (
        "a = Neg (x)  y = Abs (a)", {"a", "y"}, True, 2,
        ["Float x -> x//float", "Neg x//float -> a//exact", "Half a//exact -> a//rounded",
         "Float a//rounded -> a//float", "Abs a//float -> y//exact", "Half y//exact -> y//rounded",
         "Float y//rounded -> y//float", "Half y//float -> y"],
    ),
    "one input twice": (
        "y = Add (x, x)", {"y"}, False, 1,
        ["Float x -> x//float", "Add x//float x//float -> y//float", "Half y//float -> y"],
    ),
    "one input of two": (
        "a = Neg (x)  b = Abs (x)  y = Add (a, b)", {"a", "b"}, False, 2,
        ["Float x -> x//float", "Neg x//float -> a//float", "Abs x//float -> b//float", "Half a//float -> a",
         "Half b//float -> b", "Add a b -> y"],
    ),
    "a result that two read": (
        "a = Neg (x)  b = Abs (a)  y = Add (a, b)", {"a"}, False, 1,
        ["Float x -> x//float", "Neg x//float -> a//float", "Half a//float -> a", "Abs a -> b", "Add a b -> y"],
    ),
    "a result that one of each reads": (
        "a = Neg (x)  b = Abs (a)  y = Add (a, b)", {"a", "y"}, False, 2,
        ["Float x -> x//float", "Neg x//float -> a//float", "Half a//float -> a", "Abs a -> b", "Float b -> b//float",
         "Add a//float b//float -> y//float", "Half y//float -> y"],
    ),
    "integers": (
        "n = Neg (i)  f = Abs (n)  y = Cast <to = 10> (f)", {"n", "f"}, False, 0,
        ["Neg i -> n", "Abs n -> f", "Half f -> y"],
    ),
    "from integers": (
        "y = Cast <to = 10> (i)", {"y"}, False, 1, ["Float i -> y//float", "Half y//float -> y"],
    ),
    "to integers": ("y = Cast <to = 7> (x)", {"y"}, False, 1, ["Float x -> x//float", "Cast x//float -> y"]),
    "a second result": (
        "v, k = TopK (x, count)  y = Neg (v)", {"v"}, False, 1,
        ["Float x -> x//float", "TopK x//float count -> v//float k", "Half v//float -> v", "Neg v -> y"],
    ),
    "an input that is left out": (
        "y = Clip (x, , z)", {"y"}, False, 1,
        ["Float x -> x//float", "Float z -> z//float", "Clip x//float  z//float -> y//float", "Half y//float -> y"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WIDENED.values(), ids=WIDENED)
def test_every_cast_is_where_it_is_needed_and_no_other(case: tuple[str, set[str], bool, int, list[str]]) -> None:
    body, chosen, rounding, changes, wanted = case
    kind = "int64" if "to = 7" in body else "float16"
    proto = parse(f"g (float16[4] x, float16[4] z, int64[4] i, int64[1] count) => ({kind}[4] y) {{ {body} }}")
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT16, [4]))
    half = [name for name in HALF if name != "y" or kind == "float16"]
    assert widen.widen(proto, half, chosen, rounding=rounding) == changes
    assert described(proto) == wanted
    assert not proto.graph.value_info
    onnx.shape_inference.infer_shapes(proto, strict_mode=True)


KINDS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "a cast to half": ("Cast", {"to": 10}, {"to": 1}),
    "a cast that saturates": ("Cast", {"to": 10, "saturate": 1}, {"to": 1, "saturate": 1}),
    "a cast to double": ("Cast", {"to": 11}, {"to": 11}),
    "a cast to integers": ("Cast", {"to": 7}, {"to": 7}),
    "an axis that is ten": ("Softmax", {"axis": 10}, {"axis": 10}),
    "random numbers in half": ("RandomNormalLike", {"dtype": 10, "seed": 2.0}, {"dtype": 1}),
    "a unit in half": ("EyeLike", {"dtype": 10, "k": 10}, {"dtype": 1, "k": 10}),
    "a unit of integers": ("EyeLike", {"dtype": 7}, {"dtype": 7}),
}


@pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)
def test_attributes_that_say_half_say_single(case: tuple[str, dict[str, Any], dict[str, int]]) -> None:
    op, attrs, wanted = case
    node = helper.make_node(op, ["x"], ["y"], **attrs)
    widen._widen_attributes(node)
    assert {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT} == wanted


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [(np.float16, np.float32), (np.float32, np.float32), (np.int64, np.int64), (np.float64, np.float64)],
)
@pytest.mark.parametrize("op", ["Constant", "ConstantOfShape"])
def test_tensors_of_half_in_attributes_are_single(op: str, dtype: type, wanted: type) -> None:
    values: Array = np.array([1.5, -3], dtype)
    node = helper.make_node(op, [], ["y"], value=numpy_helper.from_array(values, "kept"))
    widen._widen_attributes(node)
    found = numpy_helper.to_array(node.attribute[0].t)
    assert (found.dtype, node.attribute[0].t.name) == (np.dtype(wanted), "kept")
    np.testing.assert_array_equal(found, values)


UNARY = {"Cast", "Expand", "Reshape", "Transpose", "Unsqueeze", "Squeeze"}
ATTENTIONS: dict[str, tuple[str, str]] = {
    **{
        op: (
            f"m = MatMul (x, z)  s = {op} (m{'' if op in ('Cast', 'Transpose') else ', z'})  y = Softmax (s)",
            "m s y",
        )
        for op in sorted(UNARY | {"Add", "Div", "Mul", "Sub"})
    },
    "Where": ("m = MatMul (x, z)  s = Where (b, z, m)  y = Softmax (s)", "m s y"),
    "Gemm": ("n = Neg (x)  m = Gemm (n, z)  y = Softmax (m)", "m y"),
    "Einsum": ('n = Neg (x)  m = Einsum <equation = "ij,jk"> (n, z)  y = Softmax (m)', "m y"),
    "nothing before": ("n = Neg (x)  y = Softmax (n)", "y"),
    "a convolution before": ("n = Conv (x, z)  a = Add (n, z)  y = Softmax (a)", "a y"),
    "no softmax": ("m = MatMul (x, z)  y = Add (m, z)", ""),
    "behind the softmax": ("m = MatMul (x, z)  s = Softmax (m)  y = MatMul (s, z)", "m s"),
    "before the product": ("a = Add (x, z)  m = MatMul (a, z)  y = Softmax (m)", "m y"),
    "both operands": ("m = MatMul (x, z)  k = Mul (z, x)  a = Add (m, k)  y = Softmax (a)", "m k a y"),
    "two softmaxes": ("m = MatMul (x, z)  s = Softmax (m)  t = Neg (s)  u = MatMul (t, z)  y = Softmax (u)", "m s u y"),
    "a shared product": (
        "m = MatMul (x, z)  s = Softmax (m)  a = Add (m, z)  t = Softmax (a)  y = Sub (s, t)",
        "m s a t",
    ),
    "ONNX's own": ("n = Neg (x)  y = Attention (n, z, z)", "y"),
    "Microsoft's": ("n = Neg (x)  y = com.microsoft.MultiHeadAttention <num_heads = 1> (n, z, z)", "y"),
}


@pytest.mark.parametrize("case", ATTENTIONS.values(), ids=ATTENTIONS)
def test_an_attention_is_from_its_product_to_its_softmax(case: tuple[str, str]) -> None:
    body, wanted = case
    proto = parse(f"g (float16[4, 4] x, float16[4, 4] z, bool[4, 4] b) => (float16[4, 4] y) {{ {body} }}")
    assert attention_nodes(proto) == set(wanted.split())


def test_every_operator_before_a_softmax_is_tried() -> None:
    assert not BEFORE_SOFTMAX - set(ATTENTIONS)


def test_all_nodes_go_by_their_first_output() -> None:
    proto = parse("g (float16[4] x, int64[1] count) => (float16[4] y) { v, k = TopK (x, count)  y = Neg (v) }")
    assert widen.all_nodes(proto) == {"v", "y"}
