"""Which sizes an operator equates: each claim is held against what ONNX Runtime runs and refuses."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.small_graphs import edit, parse, run

from sdort.onnx_io.load import from_proto
from sdort.rewrite.editor import Editor

HEADS = "<q_num_heads = 2, kv_num_heads = 2>"
EQUAL = {
    "Add": ("(float[twice_a, 4] x, float[twice_b, 4] y)", "z = Add (x, y)", "x", "y", 0),
    "Mul of fewer axes": ("(float[3, twice_a] x, float[twice_b] y)", "z = Mul (x, y)", "x", "y", -1),
    "Add of a number": ("(float[twice_a, 4] x, float[6, 4] y)", "z = Add (x, y)", "x", "y", 0),
    "MatMul": ("(float[3, a] x, float[b, 4] y)", "z = MatMul (x, y)", "x", "y", (1, 0)),
    "MatMul with a vector": ("(float[3, a] x, float[b] y)", "z = MatMul (x, y)", "x", "y", (1, 0)),
    "MatMul's batch": ("(float[twice_a, 3, 4] x, float[twice_b, 4, 3] y)", "z = MatMul (x, y)", "x", "y", 0),
    "Concat": ("(float[a, 3] x, float[b, 4] y)", "z = Concat <axis = 1> (x, y)", "x", "y", 0),
    "Attention's batch": ("(float[a, 3, 8] x, float[b, 5, 8] y)", f"z = Attention {HEADS} (x, y, y)", "x", "y", 0),
    "Attention's keys": ("(float[2, a, 8] x, float[2, b, 8] y)", f"z = Attention {HEADS} (x, x, y)", "x", "y", 1),
    "Attention's size": ("(float[2, 2, 3, a] x, float[2, 2, 5, b] y)", "z = Attention (x, y, y)", "x", "y", 3),
}  # fmt: skip
PERHAPS_NOT = {
    "Add": ("(float[a, 4] x, float[b, 4] y)", "z = Add (x, y)", {"a": 1, "b": 3}),
    "Add of one that may be 1": ("(float[twice_a, 4] x, float[b, 4] y)", "z = Add (x, y)", {"a": 2, "b": 1}),
    "Mul with a number": ("(float[a, 4] x, float[6, 4] y)", "z = Mul (x, y)", {"a": 1}),
    "MatMul's batch": ("(float[a, 3, 4] x, float[b, 4, 3] y)", "z = MatMul (x, y)", {"a": 1, "b": 3}),
    "MatMul's rows": ("(float[twice_a, 4] x, float[4, twice_b] y)", "z = MatMul (x, y)", {"a": 3, "b": 5}),
    "MatMul's rows in a batch": (
        "(float[2, twice_a, 4] x, float[2, 4, twice_b] y)", "z = MatMul (x, y)", {"a": 3, "b": 5}
    ),
    "Attention's rows": (
        "(float[2, a, 8] x, float[2, b, 8] y)", f"z = Attention {HEADS} (x, y, y)", {"a": 2, "b": 5}
    ),
}  # fmt: skip


def declared(text: str) -> onnx.ModelProto:
    """The model of a text, in which ``twice_a`` is ``2*a``: ONNX's text syntax has no arithmetic."""
    proto = parse(text)
    for dim in (d for tensor in proto.graph.input for d in tensor.type.tensor_type.shape.dim):
        if dim.dim_param.startswith("twice_"):
            dim.dim_param = dim.dim_param.replace("twice_", "2*")
    return proto


def sizes(editor: Editor, name: str) -> tuple[object, ...]:
    return editor.shape(editor.graph.tensors()[name]) or ()


@pytest.mark.parametrize("name", EQUAL)
def test_sizes_that_have_to_agree_are_one(name: str) -> None:
    inputs, node, left, right, axis = EQUAL[name]
    editor = Editor(from_proto(declared(f"g {inputs} => (float[] z) {{ {node} }}"), None, "test"))
    one, other = axis if isinstance(axis, tuple) else (axis, axis)
    assert sizes(editor, left)[one] == sizes(editor, right)[other]


@pytest.mark.parametrize("name", PERHAPS_NOT)
def test_sizes_that_a_run_tells_apart_are_not_equated(name: str) -> None:
    inputs, node, numbers = PERHAPS_NOT[name]
    proto = declared(f"g {inputs} => (float[] z) {{ {node} }}")
    editor = Editor(from_proto(proto, None, "test"))
    feeds = {}
    for tensor in proto.graph.input:
        dims = [d.dim_param or d.dim_value for d in tensor.type.tensor_type.shape.dim]
        assert [str(size) for size in sizes(editor, tensor.name)] == [str(dim) for dim in dims]
        feeds[tensor.name] = np.ones([eval(str(dim), {}, numbers) for dim in dims], np.float32)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert run(proto, feeds)[0].size  # it runs


def test_what_was_computed_before_is_written_with_the_size_that_was_learnt() -> None:
    """Two batches of other names, joined by an attention: what follows them is of one batch."""
    editor = edit(f"""
        g (float[batch, 3, 8] x, float[texts, 5, 8] y) => (float[] z) {{
            earlier = Relu (y)
            t = Attention {HEADS} (x, y, y)
            last = Concat <axis = 1> (t, earlier)
            z = Neg (last)
        }}""")
    assert sizes(editor, "earlier")[0] == sizes(editor, "x")[0] == sizes(editor, "z")[0]
