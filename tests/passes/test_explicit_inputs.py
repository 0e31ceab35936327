"""Inputs that are left out, where a target asks for empty tensors in their place, and only there."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from support.small_graphs import edit

from sdort.passes import explicit_inputs
from sdort.rewrite.editor import Editor

TEXT = """g (float[1, 2, 3, 5] x) => (float[] y, float[] z) <int64[4] sizes = {1, 2, 6, 5}, float high = {1.0},
float[4] scales = {1.0, 1.0, 2.0, 1.0}> {
    a = Resize (x, , , sizes)  b = Resize (x, , scales)  c = Clip (a, , high)  d = Resize (b, , , sizes)
    y = Add (c, c)  z = Neg (d)
}"""


def graph() -> Editor:
    """The last Resize is another domain's."""
    editor = edit(TEXT)
    editor.graph.nodes[3].domain = "elsewhere"
    return editor


def test_empty_tensors_take_the_places_that_are_named() -> None:
    editor = graph()
    assert explicit_inputs.run(editor, {"Resize": (1, 2)}) == 3
    first, second, clip, foreign = editor.graph.nodes[:4]
    assert [len(node.inputs) for node in (first, second, clip, foreign)] == [4, 3, 3, 4]
    for tensor in (first.inputs[1], first.inputs[2], second.inputs[1]):
        assert isinstance(tensor, gs.Constant)
        assert (tensor.shape, tensor.dtype) == ((0,), np.dtype(np.float32))
    assert np.asarray(second.inputs[2].values).tolist() == [1, 1, 2, 1]
    assert np.asarray(first.inputs[3].values).tolist() == [1, 2, 6, 5]
    assert not any(tensor.name for tensor in (clip.inputs[1], foreign.inputs[1], foreign.inputs[2]))
    assert explicit_inputs.run(editor, {"Resize": (1, 2)}) == 0


def test_what_is_not_named_is_left() -> None:
    assert explicit_inputs.run(graph(), {}) == 0
    assert explicit_inputs.run(graph(), {"Resize": (9,), "Upsample": (1,)}) == 0
    assert explicit_inputs.run(graph(), {"Resize": (2,), "Clip": (1,)}) == 2
