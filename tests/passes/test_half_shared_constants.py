"""Constants that several nodes read: each gets them in the precision of its kernel, under names of their own."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import edit, feeds_for, parse, run

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import from_proto
from sdort.passes import half
from sdort.providers import load_target

WIDTH = 320
"""Above 256 elements a constant is shared; smaller ones are copied when a model is loaded."""
READERS = {
    "GroupNorm": "{y} = com.microsoft.GroupNorm <groups = 4, epsilon = 0.001, activation = 0, channels_last = 1>"
    " ({x}, w, v)",
    "SkipGroupNorm": "{y} = com.microsoft.SkipGroupNorm <groups = 4, epsilon = 0.001, activation = 0,"
    " channels_last = 1> ({x}, w, v, {x}, w)",
    "LayerNormalization": "{y} = LayerNormalization <axis = -1> ({x}, w, v)",
    "BiasAdd": "{y} = Add ({x}, w)",
    "Resize": '{y}_r = Resize <mode = "nearest"> ({x}, , scales)  {y} = Mul ({y}_r, v)',
}


@pytest.mark.parametrize("pair", list(permutations(READERS, 2)), ids="-".join)
def test_every_reader_gets_its_own_precision(pair: tuple[str, str]) -> None:
    first, second = (READERS[name] for name in pair)
    body = f"{first.format(y='a', x='x')}  {second.format(y='y', x='a')}"
    text = f"g (float[1, 2, 3, {WIDTH}] x) => (float[b, h, k, c] y) {{ {body} }}"
    rng = np.random.default_rng(0)
    weights = {name: (1 + rng.standard_normal(WIDTH) / 4).astype(np.float32) for name in "wv"}
    weights |= {"scales": np.ones(4, np.float32)} if "scales" in body else {}
    editor, proto = edit(text, weights, 18), parse(text, weights, 18)
    half.run(editor)
    check_names(editor.graph)
    feeds = feeds_for(proto, {})
    (found,), (wanted,) = run(editor.model, feeds), run(proto, feeds)
    assert np.abs(found - wanted).max() <= 4e-3 * np.abs(wanted).max()


def check_names(graph: gs.Graph) -> None:
    """One name, one tensor."""
    owners: dict[str, gs.Tensor] = {}
    for tensor in (t for node in graph.nodes for t in (*node.inputs, *node.outputs) if t.name):
        assert owners.setdefault(tensor.name, tensor) is tensor


def test_another_tensors_name_is_not_taken() -> None:
    """Upgrading calls the axes of ``r`` by its name and theirs, as the model itself may."""
    text = "g (float[2, 320] x) => (float[a, b] z) { r = ReduceSum <axes = [1], keepdims = 1> (x)  z = Mul (r, w) }"
    proto = parse(text, {"w": np.full((1, WIDTH), 3, np.float32)}, 11)
    for tensor in (proto.graph.initializer[0], proto.graph.node[1]):
        if isinstance(tensor, onnx.NodeProto):
            tensor.input[1] = "r.axes"
        else:
            tensor.name = "r.axes"
    x = np.arange(640, dtype=np.float32).reshape(2, WIDTH)
    model = from_proto(proto, None, "test")
    optimize_model(model, OptimizeOptions(load_target("cpu")))
    check_names(model.graph)
    np.testing.assert_allclose(run(model, {"x": x})[0], x.sum(1, keepdims=True) * np.full((1, WIDTH), 3), rtol=1e-6)
