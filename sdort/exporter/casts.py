"""CastLike made concrete.

At opsets before 23 torch writes attention and normalization from templates that fit every dtype, with CastLike
wherever a constant meets a tensor. In a trace all dtypes are known, so these nodes say nothing, but they hide the
constants behind a tensor of the graph's, and no pattern would match.
"""

from __future__ import annotations

import onnx
from onnx import helper, shape_inference


def concrete_casts(proto: onnx.ModelProto) -> None:
    """Replace every CastLike: by its input where that has the dtype already, by Cast elsewhere, in place."""
    nodes = proto.graph.node
    if not any(node.op_type == "CastLike" for node in nodes):
        return
    dtypes = _dtypes(proto)
    same: dict[str, str] = {}
    for node in nodes:
        for index, name in enumerate(node.input):
            node.input[index] = same.get(name, name)
        if node.op_type != "CastLike":
            continue
        target = dtypes.get(node.input[1], 0)
        if target and dtypes.get(node.input[0]) == target:
            same[node.output[0]] = node.input[0]
        elif target:
            cast = helper.make_node("Cast", [node.input[0]], [node.output[0]], node.name, to=target)
            node.CopyFrom(cast)
    outputs = {value.name for value in proto.graph.output}
    kept = [node for node in nodes if node.op_type != "CastLike" or node.output[0] not in same.keys() - outputs]
    del nodes[:]
    nodes.extend(kept)


def _dtypes(proto: onnx.ModelProto) -> dict[str, int]:
    graph = shape_inference.infer_shapes(proto).graph
    values = [*graph.value_info, *graph.input, *graph.output]
    dtypes = {value.name: value.type.tensor_type.elem_type for value in values}
    return dtypes | {tensor.name: tensor.data_type for tensor in graph.initializer}
