"""Forms of ONNX's own LayerNormalization that the library has no kernel for.

The library's LayerNormalization stands in for ONNX Runtime's in every graph, with a schema of its own: one normalized
output, tensors of one type, float32 or float16.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto

LAYER_NORMALIZATION = "LayerNormalization"

_SERVED = (TensorProto.FLOAT, TensorProto.FLOAT16)


def unserved_layer_norm(proto: onnx.ModelProto) -> str | None:
    """The first form in the model that the library has no kernel for; None where it has one for all.

    A mean of what a Cast makes is one too: if it is part of a layer normalization in single operators, ONNX Runtime
    fuses that to a LayerNormalization of two types.
    """
    types = dict(_types(proto.graph))
    casts = {node.output[0] for node in proto.graph.node if node.op_type == "Cast"}
    for node in proto.graph.node:
        if node.op_type == "ReduceMean" and node.input[0] in casts:
            return f"ReduceMean {node.name!r} of a Cast may become a {LAYER_NORMALIZATION} of two types"
        if node.op_type == LAYER_NORMALIZATION and not node.domain and (reason := _reason(node, types)):
            return f"{LAYER_NORMALIZATION} {node.name!r} has {reason}"
    return None


def _reason(node: onnx.NodeProto, types: dict[str, tuple[int, int | None]]) -> str | None:
    statistics = [name for name in node.output[1:] if name]
    if statistics:
        return ", ".join(statistics)
    kind, rank = types.get(node.input[1], (TensorProto.UNDEFINED, None))
    if kind not in _SERVED:
        return f"a scale of the type {TensorProto.DataType.Name(kind)}"
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
    if axis < 0 and rank not in (None, -axis):
        return f"a scale of {rank} dimensions for {-axis} of its input"
    return None


def _types(graph: onnx.GraphProto) -> Iterator[tuple[str, tuple[int, int | None]]]:
    """Type and, where it is known, number of dimensions of the graph's tensors, as far as the graph tells them."""
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        yield value.name, (tensor.elem_type, len(tensor.shape.dim) if tensor.HasField("shape") else None)
    for weight in graph.initializer:
        yield weight.name, (weight.data_type, len(weight.dims))
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                yield node.output[0], (attribute.i, None)
            if node.op_type == "Constant" and attribute.name == "value":
                yield node.output[0], (attribute.t.data_type, len(attribute.t.dims))
