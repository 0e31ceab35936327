"""The ModelProto of a model without its weights, and the list of what goes into the data file.

The result depends on the graph alone: the same graph gives the same bytes.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter, dtype_to_onnx

from sdort.errors import BadModelError
from sdort.graph.domains import MICROSOFT, file_domain
from sdort.graph.model import Model
from sdort.graph.topological_order import topological_order
from sdort.graph.weights import Weight
from sdort.machine.version import __version__
from sdort.onnx_io.data_file import Blob, Initializers, weight_of
from sdort.onnx_io.expression_json import origins_json
from sdort.onnx_io.graph_import import unique_name
from sdort.onnx_io.own_functions import functions_of
from sdort.onnx_io.tensor_names import TensorNames
from sdort.onnx_io.weight_origins import ORIGINS_KEY

MIN_IR_VERSION = 4
"""The first in which initializers need not be graph inputs."""


@dataclass
class Serialized:
    """A model to be written: its message without large weights, and these."""

    proto: bytes
    blobs: list[Blob]
    data_bytes: int
    overflow_counts: dict[str, int]
    """Of the small tensors, which were evaluated already; as in :class:`sdort.onnx_io.save.WriteReport`."""
    late: dict[str, Weight] = field(default_factory=dict)
    """The small tensors of parameters that have no values yet: initializer -> weight. ``proto`` lacks their values."""


def serialize(model: Model, data_name: str) -> Serialized:
    """Describe ``model`` as a serialised ModelProto whose external data is the file ``data_name``.

    Raises:
        BadModelError: the graph has a cycle, an undefined value, or an untyped input or output.
    """
    graph = model.graph
    nodes = _sorted_nodes(graph, model.component)
    _check_defined(graph, model.component)
    names = TensorNames(graph, nodes)
    data = Initializers(names, data_name)
    for tensor in constants_of(graph, nodes):
        data.add(tensor)
    proto = onnx.ModelProto()
    proto.graph.node.extend(_node_protos(nodes, names))
    proto.graph.name = graph.name or model.component
    proto.graph.initializer.extend(data.protos)
    proto.graph.input.extend(_value_info(t, names, model.component) for t in graph.inputs)
    proto.graph.output.extend(_value_info(t, names, model.component) for t in graph.outputs)
    proto.graph.value_info.extend(_value_info(t, names, model.component) for t in _typed_variables(graph, nodes))
    origins = origins_json(data.large, model.origins)
    _fill_header(proto, model, {**model.metadata, **({ORIGINS_KEY: origins} if origins else {})})
    content = proto.SerializeToString(deterministic=True)
    return Serialized(content, data.blobs, data.end, data.overflow_counts, data.late)


def constants_of(graph: gs.Graph, nodes: list[gs.Node]) -> Iterator[gs.Constant]:
    """Each constant once, in the order of first use."""
    seen: set[int] = set()
    for tensor in (*graph.outputs, *(t for node in nodes for t in node.inputs)):
        if isinstance(tensor, gs.Constant) and id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor


def _sorted_nodes(graph: gs.Graph, component: str) -> list[gs.Node]:
    """Topological order by the tensors' identity: passes append nodes where they like."""
    producer = {id(t): i for i, node in enumerate(graph.nodes) for t in node.outputs if not t.is_empty()}
    needs = [{producer[id(t)] for t in node.inputs if id(t) in producer} for node in graph.nodes]
    order, cyclic = topological_order(needs)
    if cyclic is not None:
        raise BadModelError("the graph has a cycle", component=component, node=graph.nodes[cyclic].name)
    return [graph.nodes[i] for i in order]


def _check_defined(graph: gs.Graph, component: str) -> None:
    """Refuse a value without a producer: a pass that loses a node must not write a model that no runtime loads."""
    produced = {id(tensor) for node in graph.nodes for tensor in node.outputs} | {id(t) for t in graph.inputs}
    for tensor in (*graph.outputs, *(t for node in graph.nodes for t in node.inputs)):
        if isinstance(tensor, gs.Variable) and not tensor.is_empty() and id(tensor) not in produced:
            raise BadModelError("used, but nothing defines it", component=component, node=tensor.name)


def _node_protos(nodes: list[gs.Node], names: TensorNames) -> Iterator[onnx.NodeProto]:
    taken: set[str] = set()
    for node in nodes:
        domain = file_domain(node.domain or "", node.op)
        proto = onnx.NodeProto(op_type=node.op, name=unique_name(node.name or node.op, taken), domain=domain)
        proto.input.extend(names.of(t) for t in node.inputs)
        proto.output.extend(names.of(t) for t in node.outputs)
        proto.attribute.extend(_attribute(node, key, value) for key, value in sorted(node.attrs.items()))
        yield proto


def _attribute(node: gs.Node, key: str, value: Any) -> onnx.AttributeProto:
    if isinstance(value, gs.Tensor):
        array = weight_of(value).load()
        value = onnx.numpy_helper.from_array(array, value.name)
    elif isinstance(value, (list, tuple)) and not value:
        return onnx.helper.make_attribute(key, [], attr_type=_list_type(node, key))
    elif isinstance(value, (type, np.dtype)):
        value = dtype_to_onnx(value)
    return onnx.helper.make_attribute(key, value)


def _list_type(node: gs.Node, key: str) -> int:
    """The type of an empty list, which its values cannot tell."""
    kinds = onnx.defs.OpSchema.AttrType
    try:
        kind = onnx.defs.get_schema(node.op, node.domain or "").attributes[key].type
    except (onnx.defs.SchemaError, KeyError):
        kind = kinds.INTS
    types = {kinds.FLOATS: onnx.AttributeProto.FLOATS, kinds.STRINGS: onnx.AttributeProto.STRINGS}
    return types.get(kind, onnx.AttributeProto.INTS)


def _typed_variables(graph: gs.Graph, nodes: list[gs.Node]) -> Iterator[gs.Variable]:
    skip = {id(t) for t in (*graph.inputs, *graph.outputs)}
    for node in nodes:
        for tensor in node.outputs:
            if not tensor.is_empty() and id(tensor) not in skip and tensor.dtype is not None:
                yield tensor


def _value_info(tensor: gs.Tensor, names: TensorNames, component: str) -> onnx.ValueInfoProto:
    if tensor.dtype is None:
        raise BadModelError("an input or output has no dtype", component=component, node=tensor.name)
    shape = None if tensor.shape is None else [_dim(d) for d in tensor.shape]
    return onnx.helper.make_tensor_value_info(names.of(tensor), dtype_to_onnx(tensor.dtype), shape)


def _dim(dim: Any) -> int | str | None:
    return int(dim) if isinstance(dim, numbers.Integral) else dim


def _fill_header(proto: onnx.ModelProto, model: Model, metadata: Mapping[str, str]) -> None:
    graph = model.graph
    versions = {entry.domain: entry.version for entry in graph.import_domains or []}
    used = {node.domain or "" for node in graph.nodes}
    # ONNX Runtime's own Gelu fusion breaks if a custom-operator library registers com.microsoft and it is not imported.
    for domain in sorted(used | {"", MICROSOFT}):
        version = graph.opset if domain == "" else versions.get(domain, 1)
        proto.opset_import.add(domain=domain, version=version)
    own = functions_of(graph.nodes, graph.opset, model.component)
    written = {(function.domain, function.name) for function in own}
    others = (f for f in graph.functions if (f.domain, f.name) not in written)
    proto.functions.extend([*own, *map(OnnxExporter.export_function, others)])
    version = graph.ir_version or onnx.helper.find_min_ir_version_for(list(proto.opset_import), ignore_unknown=True)
    proto.ir_version = max(version, MIN_IR_VERSION)
    proto.producer_name = "sdort"
    proto.producer_version = __version__
    for key, value in sorted(metadata.items()):
        proto.metadata_props.add(key=key, value=value)
