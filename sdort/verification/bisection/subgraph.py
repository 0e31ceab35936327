"""A subgraph as a model of its own: the nodes between tensors that agree and one that does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from sdort.graph.signature import Array
from sdort.verification.bisection.tensor_pairs import GraphPair, TensorPair, ancestors, outputs_of


def nodes_between(graph: onnx.GraphProto, tensor: str, sources: set[str]) -> list[onnx.NodeProto]:
    """The nodes that compute ``tensor`` from ``sources`` and the graph's inputs, in order; its producer is the last."""
    needed = set(ancestors(graph, [tensor], sources)) - sources
    return [node for node in graph.node if needed & set(node.output)]


def source_values(
    target: TensorPair, values: Mapping[TensorPair, tuple[Array, Array]], wide: bool = False
) -> dict[str, Array]:
    """Inputs of the candidate's subgraph: the original's own values, in the candidate's layout and precision.

    Args:
        values: of ``target``, which is computed, and of the tensors that it is computed from.
        wide: in fp32, whatever the candidate is in.
    """
    sources = {pair.candidate: both for pair, both in values.items() if pair != target}
    return {
        name: expected if wide or expected.dtype.kind != "f" else expected.astype(actual.dtype)
        for name, (expected, actual) in sources.items()
    }


def extract_subgraph(
    graphs: GraphPair, nodes: Sequence[onnx.NodeProto], output: str, inputs: Mapping[str, Array], wide: bool
) -> onnx.ModelProto:
    """The candidate's ``nodes`` as a model of their own, weights inside.

    Args:
        inputs: what is computed outside.
        wide: in fp32, whatever the candidate is in.
    """
    model = graphs.graph(graphs.candidate)
    used = {name for node in nodes for name in node.input}
    weights = [
        _load(tensor, graphs.candidate.parent, wide) for tensor in model.graph.initializer if tensor.name in used
    ]
    made = set(outputs_of(onnx.GraphProto(node=nodes)))
    declared = [value for value in model.graph.input if value.name in used - made - set(inputs)]
    del model.graph.node[:], model.graph.initializer[:], model.graph.input[:], model.graph.output[:]
    del model.graph.value_info[:]
    if wide:
        del model.metadata_props[:]  # which may ask for bf16
    model.graph.node.extend(_widened(node) if wide else node for node in nodes)
    model.graph.initializer.extend(weights)
    model.graph.input.extend(_wide_value(value) if wide else value for value in declared)
    for name in sorted(set(inputs) & used):
        kind = onnx.helper.np_dtype_to_tensor_dtype(inputs[name].dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, [None] * inputs[name].ndim))
    model.graph.output.append(onnx.ValueInfoProto(name=output))
    return model


def _load(tensor: TensorProto, folder: Path, wide: bool) -> TensorProto:
    """A weight with its values inside."""
    loaded = TensorProto()
    loaded.CopyFrom(tensor)
    if loaded.data_location == TensorProto.EXTERNAL:
        load_external_data_for_tensor(loaded, str(folder))
        loaded.data_location = TensorProto.DEFAULT
        del loaded.external_data[:]
    if not wide or loaded.data_type != TensorProto.FLOAT16:
        return loaded
    return numpy_helper.from_array(numpy_helper.to_array(loaded).astype(np.float32), loaded.name)


def _widened(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node with fp32 in the place of fp16 in its attributes."""
    wide = onnx.NodeProto()
    wide.CopyFrom(node)
    for attribute in wide.attribute:
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT16:
            attribute.i = TensorProto.FLOAT
        if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT16:
            attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float32)))
    return wide


def _wide_value(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    wide = onnx.ValueInfoProto()
    wide.CopyFrom(value)
    if wide.type.tensor_type.elem_type == TensorProto.FLOAT16:
        wide.type.tensor_type.elem_type = TensorProto.FLOAT
    return wide
