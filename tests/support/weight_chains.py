"""Models of a chain of weights."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sdort.graph.model import Model
from sdort.graph.signature import Array
from sdort.graph.weights import (
    Weight,
)


def chain(*weights: Weight | Array, names: list[str] | None = None) -> Model:
    """x + w0 + w1 + ...: every weight broadcasts against x of the last one's shape."""
    dtype = weights[0].dtype
    value = x = gs.Variable("x", dtype, ("N", weights[-1].shape[-1]))
    nodes = []
    for index, weight in enumerate(weights):
        constant = gs.Constant(names[index] if names else f"w{index}", weight)
        out = gs.Variable(f"h{index}", dtype, None)
        nodes.append(gs.Node("Add", f"add{index}", inputs=[value, constant], outputs=[out]))
        value = out
    value.name, value.shape = "y", ("N", weights[-1].shape[-1])
    return Model(gs.Graph(nodes, [x], [value], name="chain", opset=17, ir_version=8), "unet")
