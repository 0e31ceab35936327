"""FP16, step by step: which nodes stay in fp32, and what each step around the converter does to a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.small_graphs import Described, edit

from sdort.graph.weights import Weight
from sdort.passes import half
from sdort.passes.counted import counted_nodes
from sdort.passes.fp32_structure import unheld_nodes
from sdort.rewrite.editor import Editor, producer

HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
CONSTANTS = {
    "zero": np.float32(0), "two": np.float32(2), "closed": np.float32(-3.4e38), "ten": np.float32(-1e4),
    "never": np.float32(-np.inf), "closed64": np.float64(-3.4e38), "zero64": np.float64(0), "last": np.array([-1]),
}  # fmt: skip
INPUTS = "float[4, 4] x, float[4, 4] z, int64[4, 4] i, bool[4, 4] b, float16[4, 4] h, double[4, 4] d"


def built(body: str, outputs: str = "float[] y") -> Editor:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: np.asarray(value) for name, value in CONSTANTS.items() if name in words}
    return edit(f"g ({INPUTS}) => ({outputs}) {{ {body} }}", used)


KEPT: dict[str, tuple[str, str]] = {
    "a cast of integers": ("c = Cast <to = 1> (i)  y = Neg (c)", "c"),
    "a cast of half": ("c = Cast <to = 1> (h)  y = Neg (c)", "c"),
    "a cast to integers": ("y = Cast <to = 7> (x)", ""),
    "a cast to double": ("y = Cast <to = 11> (x)", ""),
    # waves
    "a sine": ("n = Neg (x)  m = Mul (n, two)  y = Sin (m)", "n m y"),
    "a cosine": ("n = Neg (x)  y = Cos (n)", "n y"),
    "both": ("n = Neg (x)  s = Sin (n)  m = Abs (z)  c = Cos (m)  y = Add (s, c)", "n s m c"),
    "a wave of two": ("n = Neg (x)  m = Abs (z)  a = Add (n, m)  y = Sin (a)", "n m a y"),
    "a wave of a wave": ("s = Sin (x)  n = Neg (s)  y = Cos (n)", "s n y"),
    "a wave of integers": ("j = Neg (i)  c = Cast <to = 1> (j)  y = Sin (c)", "c y"),
    "a wave in double": ("n = Neg (d)  y = Sin (n)", ""),
    "a wave of what was double": ("n = Neg (d)  c = Cast <to = 1> (n)  y = Sin (c)", "c y"),
    "behind a wave": ("s = Sin (x)  y = Neg (s)", "s"),
    "a tangent": ("n = Neg (x)  y = Tan (n)", ""),
    # masks
    "a mask that is added": ("m = Where (b, zero, closed)  s = Add (x, m)  y = Softmax (s)", "m s y"),
    "a mask in front": ("m = Where (b, zero, closed)  s = Add (m, x)  y = Softmax (s)", "m s y"),
    "a mask that is subtracted": ("m = Where (b, closed, zero)  s = Sub (x, m)  y = Softmax (s)", "m s y"),
    "scores where nothing is closed": ("s = Where (b, x, closed)  y = Softmax (s)", "s y"),
    "a mask that fp16 holds": ("m = Where (b, zero, ten)  s = Add (x, m)  y = Softmax (s)", ""),
    "a mask of infinities": ("m = Where (b, zero, never)  s = Add (x, m)  y = Softmax (s)", ""),
    "scores that are computed": ("n = Neg (x)  m = Where (b, zero, closed)  s = Add (n, m)  y = Softmax (s)", "m s y"),
    "scores that a mask is subtracted from": (
        "n = Neg (x)  m = Where (b, closed, zero)  s = Sub (n, m)  y = Softmax (s)", "m s y",
    ),
    "computed scores where nothing is closed": ("n = Neg (x)  s = Where (b, n, closed)  y = Softmax (s)", "s y"),
    "a moved mask": (
        "m = Where (b, zero, closed)  t = Transpose (m)  s = Add (x, t)  y = Softmax (s)", "m t s y",
    ),
    "a mask that something else reads": (
        "m = Where (b, zero, closed)  s = Add (x, m)  p = Softmax (s)  n = Neg (p)  y = Mul (n, z)", "m s p",
    ),
    "a mask alone": ("m = Where (b, zero, closed)  t = Transpose (m)  y = Softmax (t)", "m t y"),
    "whether a key is open": ("m = Where (b, zero, closed)  y = Greater (m, ten)", "m y"),
    "whether a key is open, in half": ("m = Where (b, zero, ten)  y = Greater (m, two)", ""),
    "whether it is larger than a mask": ("m = Where (b, zero, closed)  y = Less (x, m)", ""),
    "a mask in double": ("m = Where (b, zero64, closed64)  s = Add (d, m)  y = Softmax (s)", ""),
    "a mask without a softmax": ("m = Where (b, zero, closed)  s = Add (x, m)  y = Sigmoid (s)", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_nodes_that_stay_in_fp32_are_named(case: tuple[str, str]) -> None:
    body, wanted = case
    editor = built(body)
    made = {node.name: node.outputs[0].name for node in editor.graph.nodes}
    alone = half._wide_masks(editor) | half._before_waves(editor)
    alone |= {node.name for node in editor.graph.nodes if node.op == "Cast" and editor.dtype(node.outputs[0]) == FLOAT}
    assert {made[name] for name in alone} == set(wanted.split())
    assert half.fp32_nodes(editor) == sorted(alone | unheld_nodes(editor) | counted_nodes(editor))


SEPARATED: dict[str, tuple[str, str, set[str], list[str]]] = {
    # the nodes that stay in fp32 by what they give; the outputs that get an Identity
    "nothing": ("a = Neg (x)  y = Abs (a)", "float[] y", set(), []),
    "what is read inside": ("a = Neg (x)  y = Abs (a)", "float[] y, float[] a", set(), ["a"]),
    "what stays in fp32": ("a = Neg (x)  y = Abs (a)", "float[] y", {"y"}, ["y"]),
    "another that stays in fp32": ("a = Neg (x)  y = Abs (a)", "float[] y", {"a"}, []),
    "both": ("a = Neg (x)  y = Abs (a)", "float[] y, float[] a", {"y"}, ["a", "y"]),
    "a second result": (
        "p, y = Split <axis = 0, num_outputs = 2> (x)  n = Neg (y)",
        "float[] y, float[] n",
        set(),
        ["y"],
    ),
    "a first result": (
        "y, q = Split <axis = 0, num_outputs = 2> (x)  n = Neg (q)",
        "float[] y, float[] n",
        {"y"},
        ["y"],
    ),
    "an input": ("y = Neg (x)", "float[] y, float[4, 4] x", set(), []),
}


@pytest.mark.parametrize("case", SEPARATED.values(), ids=SEPARATED)
def test_outputs_that_would_get_a_wrong_type_are_set_apart(case: tuple[str, str, set[str], list[str]]) -> None:
    body, outputs, single, wanted = case
    editor = built(body, outputs)
    kinds = {tensor.name: (editor.dtype(tensor), editor.shape(tensor)) for tensor in editor.graph.outputs}
    ends = list(editor.graph.outputs)
    readers = {t.name: [(n.name, n.op) for n in t.outputs] for t in ends}
    names = half._separate_outputs(editor, {n.name for n in editor.graph.nodes if n.outputs[0].name in single})
    assert [tensor.name for tensor in editor.graph.outputs] == [tensor.name for tensor in ends]
    assert sorted(t.name for t in ends if (node := producer(t)) is not None and node.name in names) == wanted
    assert len(names) == len(wanted)
    for tensor in (tensor for tensor in ends if tensor.name in wanted):
        (identity,) = tensor.inputs
        inner = identity.inputs[0]
        assert identity.op == "Identity"
        assert not tensor.outputs
        assert [(n.name, n.op) for n in inner.outputs if n is not identity] == readers[tensor.name]
        assert (editor.dtype(inner), editor.shape(inner)) == kinds[tensor.name]


SINGLE: dict[str, tuple[str, list[int]]] = {
    "scales": ("y = Resize (image, , s)", [2]),
    "a region and scales": ("y = Resize (image, s, s)", [1, 2]),
    "sizes": ("y = Resize (image, , , n)", []),
    "a norm": ("y = com.microsoft.GroupNorm <groups = 2, activation = 0> (image, s, s)", [1, 2]),
    "a norm of two": ("y = com.microsoft.SkipGroupNorm <groups = 2, activation = 0> (image, s, s, image, s)", [1, 2]),
    "another norm": ("y = LayerNormalization (image, s)", []),
    "another domain": ("y = com.microsoft.QuickGelu (image)", []),
}


@pytest.mark.parametrize("case", SINGLE.values(), ids=SINGLE)
def test_inputs_that_kernels_read_in_single_are_kept(case: tuple[str, list[int]]) -> None:
    body, wanted = case
    editor = edit(f"g (float[1, 4, 4, 4] image, float[4] s, int64[4] n) => (float[] y) {{ {body} }}")
    (node,) = editor.graph.nodes
    found = half._float32_inputs(editor)
    assert found == {node.name: {index: node.inputs[index] for index in wanted}}


RESIDUAL, MID = "down_block_additional_residuals.0", "mid_block_additional_residual"
NARROWED: dict[str, tuple[str, str, str, dict[str, np.dtype[Any]], int]] = {
    # body, outputs, component, types of inputs and outputs and the number of casts afterwards
    "a residual": ("c = Cast <to = 10> (R)  y = Neg (c)", "float16[] y", "unet", {"R": HALF, "y": HALF}, 0),
    "two residuals": (
        "c = Cast <to = 10> (R)  e = Cast <to = 10> (M)  y = Add (c, e)", "float16[] y", "unet",
        {"R": HALF, "M": HALF, "y": HALF}, 0,
    ),
    "two readers": (
        "c = Cast <to = 10> (R)  e = Cast <to = 10> (R)  y = Add (c, e)", "float16[] y", "unet",
        {"R": HALF, "y": HALF}, 0,
    ),
    "a reader in fp32": (
        "c = Cast <to = 10> (R)  e = Neg (R)  f = Cast <to = 1> (c)  y = Add (e, f)", "float[] y", "unet",
        {"R": FLOAT, "y": FLOAT}, 2,
    ),
    "a cast to something else": (
        "c = Cast <to = 10> (R)  e = Cast <to = 7> (R)  f = Cast <to = 10> (e)  y = Add (c, f)", "float16[] y", "unet",
        {"R": FLOAT, "y": HALF}, 3,
    ),
    "another input": ("c = Cast <to = 10> (x)  y = Neg (c)", "float16[] y", "unet", {"x": FLOAT, "y": HALF}, 1),
    "what a ControlNet gives": (
        "n = Neg (h)  y = Cast <to = 1> (n)", "float[] y", "controlnet", {"h": HALF, "y": HALF}, 0,
    ),
    "what a UNet gives": ("n = Neg (h)  y = Cast <to = 1> (n)", "float[] y", "unet", {"h": HALF, "y": FLOAT}, 1),
    "what a ControlNet gives and reads": (
        "n = Neg (h)  y = Cast <to = 1> (n)  m = Abs (n)", "float[] y, float16[] m", "controlnet",
        {"h": HALF, "y": FLOAT, "m": HALF}, 1,
    ),
    "a second part of what it computes": (
        "p, n = Split <axis = 0, num_outputs = 2> (h)  y = Cast <to = 1> (n)  m = Abs (p)", "float[] y, float16[] m",
        "controlnet", {"h": HALF, "y": HALF, "m": HALF}, 0,
    ),
    "what it was given": ("y = Cast <to = 1> (h)", "float[] y", "controlnet", {"h": HALF, "y": FLOAT}, 1),
    "integers": (
        "n = Neg (h)  y = Cast <to = 7> (n)", "int64[] y", "controlnet", {"h": HALF, "y": np.dtype(np.int64)}, 1,
    ),
    "no cast": ("n = Neg (x)  y = Abs (n)", "float[] y", "controlnet", {"x": FLOAT, "y": FLOAT}, 0),
}  # fmt: skip


@pytest.mark.parametrize("case", NARROWED.values(), ids=NARROWED)
def test_what_a_controlnet_hands_a_unet_stays_half(case: tuple[str, str, str, dict[str, np.dtype[Any]], int]) -> None:
    body, outputs, component, wanted, left = case
    names = {"R": RESIDUAL, "M": MID}
    editor = edit(f"g (float[4] R, float[4] M, float[4] x, float16[4] h) => ({outputs}) {{ {body} }}")
    for tensor in editor.graph.inputs:
        tensor.name = names.get(tensor.name, tensor.name)
    editor.model.component = component
    ends = [t.name for t in editor.graph.outputs]
    editor.refresh()
    half._narrow_between(editor)
    assert [t.name for t in editor.graph.outputs] == ends
    found = {tensor.name: np.dtype(tensor.dtype) for tensor in (*editor.graph.inputs, *editor.graph.outputs)}
    assert {names.get(name, name): found[names.get(name, name)] for name in wanted} == {
        names.get(name, name): dtype for name, dtype in wanted.items()
    }
    assert all(editor.dtype(tensor) == tensor.dtype for tensor in editor.graph.outputs)
    assert sum(node.op == "Cast" for node in editor.graph.nodes) == left


@pytest.mark.parametrize(
    ("stored", "converted", "wanted"),
    [
        (np.float32, TensorProto.FLOAT16, np.float16),
        (np.float32, TensorProto.FLOAT, np.float32),
        (np.float16, TensorProto.FLOAT16, np.float16),
        (np.int64, TensorProto.INT64, np.int64),
        (np.float64, TensorProto.FLOAT16, np.float16),
    ],
)
def test_a_weight_is_cast_as_the_converter_says(stored: type, converted: int, wanted: type) -> None:
    weight = Described([3, 5], stored)
    made = half._resolve(TensorProto(name="w", data_type=converted, dims=[3, 5]), {"w": weight})
    assert isinstance(made, Weight)
    assert (made.dtype, made.shape, list(made.leaves())) == (np.dtype(wanted), (3, 5), [weight])
    assert (made is weight) == (stored == wanted)
    assert half._resolve(TensorProto(name="v", data_type=converted, dims=[3, 5]), {"w": weight}) is None
    values: Any = np.ones((3, 5), stored)
    inline = half._resolve(TensorProto(name="w", data_type=converted, dims=[3, 5]), {"w": values})
    assert inline is not None
    assert (inline.dtype, inline.shape) == (np.dtype(wanted), (3, 5))


def test_every_tensor_is_stated_to_the_converter_with_its_type_and_shape() -> None:
    text = """g (float[B, 4] x, int64[N, ?] i) => (float[a, b] y, int64[] s) {
        c = MatMul (x, w)  q = com.microsoft.QuickGelu (c)  y = Neg (q)  s = Shape (i) }"""
    editor = edit(text, {"w": Described([4, 6], np.float32)}, 21)
    editor.graph.import_domains = [helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("sdort", 3)]
    proto = half._weightless(editor, half._constants(editor))
    weights = [(t.name, t.data_type, list(t.dims), len(t.raw_data)) for t in proto.graph.initializer]
    assert weights == [("w", TensorProto.FLOAT, [4, 6], 0)]

    def stated(infos: Any) -> list[tuple[str, int, list[Any]]]:
        kinds = [(info.name, info.type.tensor_type) for info in infos]
        return [
            (name, kind.elem_type, [d.dim_param or d.dim_value or None for d in kind.shape.dim]) for name, kind in kinds
        ]

    assert stated(proto.graph.input) == [("x", 1, ["B", 4]), ("i", 7, ["N", None])]
    assert stated(proto.graph.output)[0] == ("y", 1, ["a", "b"])
    assert [(name, kind, shape) for name, kind, shape in stated(proto.graph.value_info)] == [
        ("c", 1, ["B", 6]), ("q", 1, ["B", 6]),
    ]  # fmt: skip
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 21, "com.microsoft": 1, "sdort": 3}
    assert proto.ir_version == 10


def test_outputs_that_are_left_out_have_a_name_for_the_converter_alone() -> None:
    text = """g (float[2, 5, 8] x, float[8] g) => (float[] y, float[] s) {
        y, , , s = com.microsoft.SkipLayerNormalization (x, x, g) }"""
    editor = edit(text)
    (node,) = editor.graph.nodes
    proto = half._node(node)
    assert list(proto.input) == ["x", "x", "g"]
    absent = [name for name in proto.output if name.startswith("sdort.absent.")]
    assert [list(proto.output).index(name) for name in absent] == [1, 2]
    assert len(set(absent)) == 2
    node.outputs[1], node.outputs[2] = (gs.Variable(name) for name in absent)
    half._leave_out(editor.graph)
    assert [tensor.name for tensor in node.outputs] == ["y", "", "", "s"]


def test_a_node_is_given_to_the_converter_with_its_settings() -> None:
    text = """g (float[2, 8] x) => (float[] y, float[] c) {
        y = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (x, x)
        s = Shape <start = 1> (x)  c = ConstantOfShape <value: tensor = float[1] {2.5}> (s) }"""
    editor = edit(text)
    product, shape, filled = (half._node(node) for node in editor.graph.nodes)
    assert (product.op_type, product.domain, product.name) == ("FusedMatMul", "com.microsoft", "FusedMatMul.0")
    assert {a.name: helper.get_attribute_value(a) for a in product.attribute} == {"alpha": 0.5, "transB": 1}
    assert (shape.op_type, shape.domain, shape.name, shape.attribute[0].i) == ("Shape", "", "Shape.1", 1)
    assert (list(filled.input), list(filled.output)) == (["s"], ["c"])
    np.testing.assert_array_equal(numpy_helper.to_array(filled.attribute[0].t), np.array([2.5], np.float32))
