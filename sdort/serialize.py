"""The ModelProto of a model without its weights, and the list of what goes into the data file.

Names are made unique, equal small constants become one initializer, equal weight expressions one region of the data
file. The result depends on the graph alone: the same graph gives the same bytes.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter, dtype_to_onnx
from onnx_graphsurgeon.ir.tensor import LazyValues

import sdort
from sdort.errors import BadModelError
from sdort.importing import unique_name
from sdort.model import Model
from sdort.untrusted import topological_order
from sdort.weights import Array, Cast, Inline, Reshaped, Weight

SMALL = 1024
"""Tensors of at most this many bytes stay inside the .onnx file."""

MIN_IR_VERSION = 4
"""The first in which initializers need not be graph inputs."""


@dataclass
class Blob:
    """One region of the data file."""

    name: str
    """The first initializer that uses it."""
    weight: Weight
    offset: int

    @property
    def cost(self) -> int:
        """Bytes in memory while it is evaluated: what is read and what is written."""
        return self.weight.nbytes + sum(leaf.nbytes for leaf in self.weight.leaves())


@dataclass
class Serialized:
    """What is to be written."""

    proto: bytes
    blobs: list[Blob]
    data_bytes: int
    overflow_counts: dict[str, int]
    """Of the small tensors, which were evaluated already; as in :class:`sdort.writer.WriteReport`."""


def serialize(model: Model, data_name: str) -> Serialized:
    """Describe ``model`` as a serialised ModelProto whose external data is the file ``data_name``.

    Raises:
        BadModelError: the graph has a cycle, an untyped input or output, or a constant without a dtype ONNX knows.
    """
    graph = model.graph
    nodes = _sorted_nodes(graph, model.component)
    names = _Names(graph, nodes)
    data = _Data(names, data_name)
    for tensor in constants_of(graph, nodes):
        data.add(tensor)
    proto = onnx.ModelProto()
    proto.graph.node.extend(_node_protos(nodes, names))
    proto.graph.name = graph.name or model.component
    proto.graph.initializer.extend(data.initializers)
    proto.graph.input.extend(_value_info(t, names, model.component) for t in graph.inputs)
    proto.graph.output.extend(_value_info(t, names, model.component) for t in graph.outputs)
    proto.graph.value_info.extend(_value_info(t, names, model.component) for t in _typed_variables(graph, nodes))
    _fill_header(proto, model)
    return Serialized(proto.SerializeToString(deterministic=True), data.blobs, data.end, data.overflow_counts)


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


class _Names:
    """Unique names: those of the graph's inputs and outputs stay, others that clash get a number."""

    def __init__(self, graph: gs.Graph, nodes: list[gs.Node]) -> None:
        self.taken: set[str] = set()
        self._names: dict[int, str] = {}
        self._kept = [*graph.inputs, *graph.outputs]
        for tensor in self._kept:
            self.of(tensor)
        for node in nodes:
            for tensor in (*node.inputs, *node.outputs):
                if not isinstance(tensor, gs.Constant):
                    self.of(tensor)

    def of(self, tensor: gs.Tensor) -> str:
        if tensor.is_empty():
            return ""
        if id(tensor) not in self._names:
            self._names[id(tensor)] = unique_name(tensor.name, self.taken)
        return self._names[id(tensor)]

    def alias(self, tensor: gs.Tensor, name: str) -> None:
        self._names[id(tensor)] = name

    def is_fixed(self, tensor: gs.Tensor) -> bool:
        return id(tensor) in self._names


class _Data:
    """Collects initializers and lays out the data file."""

    def __init__(self, names: _Names, data_name: str) -> None:
        self.names = names
        self.data_name = data_name
        self.initializers: list[TensorProto] = []
        self.blobs: list[Blob] = []
        self.end = 0
        self.overflow_counts: dict[str, int] = {}
        self._by_content: dict[Any, str] = {}
        self._regions: dict[Any, Blob] = {}

    def add(self, tensor: gs.Constant) -> None:
        weight = _weight_of(tensor)
        small = weight.load() if weight.nbytes <= SMALL else None
        value = (small.tobytes(),) if small is not None else expression_key(weight)
        key = (weight.dtype.str if weight.dtype.kind != "V" else weight.dtype.name, weight.shape, value)
        if key in self._by_content and not self.names.is_fixed(tensor):
            self.names.alias(tensor, self._by_content[key])
            return
        name = self.names.of(tensor)
        self._by_content.setdefault(key, name)
        proto = TensorProto(name=name, dims=weight.shape, data_type=dtype_to_onnx(weight.dtype))
        if small is not None:
            proto.raw_data = small.tobytes()
            if overflowed := count_overflow(small, weight):
                self.overflow_counts[name] = overflowed
        else:
            self._place(proto, weight)
        self.initializers.append(proto)

    def _place(self, proto: TensorProto, weight: Weight) -> None:
        while isinstance(weight, Reshaped):  # the same bytes
            weight = weight.operand
        key = expression_key(weight)
        if key not in self._regions:
            # Large tensors start on a page, so that a runtime can map them.
            alignment = 4096 if weight.nbytes > 2**20 else 64
            offset = -(-self.end // alignment) * alignment
            self._regions[key] = Blob(proto.name, weight, offset)
            self.blobs.append(self._regions[key])
            self.end = offset + weight.nbytes
        proto.data_location = TensorProto.EXTERNAL
        entries = {"location": self.data_name, "offset": self._regions[key].offset, "length": weight.nbytes}
        for entry, value in entries.items():
            proto.external_data.add(key=entry, value=str(value))


def _weight_of(tensor: gs.Constant) -> Weight:
    values = tensor._values
    if isinstance(values, LazyValues) and not isinstance(values, Weight):
        values = values.load()
    weight = values if isinstance(values, Weight) else Inline(values)
    wanted = tensor._export_dtype
    if wanted is None:
        return weight
    dtype = onnx.helper.tensor_dtype_to_np_dtype(wanted) if isinstance(wanted, int) else np.dtype(wanted)
    return weight if dtype == weight.dtype else Cast(weight, dtype)


def count_overflow(array: Array, weight: Weight) -> int:
    """How many values of ``array``, which ``weight`` evaluated to, are infinite while their sources were finite.

    The sources are read again only if there are infinities at all. Transforms move, scale, round and copy values, so
    comparing the counts is enough.
    """
    if array.dtype != np.float16:
        return 0
    # By its bits: four times as fast as numpy.isinf on float16.
    bits = np.ascontiguousarray(array).reshape(-1).view(np.uint16)
    infinite = int(np.count_nonzero((bits & 0x7FFF) == 0x7C00))
    return infinite - sum(int(np.isinf(leaf.load()).sum()) for leaf in weight.leaves()) if infinite else 0


def expression_key(weight: Weight) -> tuple[Any, ...]:
    """Equal for two weights that are computed from the same stored bytes in the same way."""
    parts = tuple((name, _key(value)) for name, value in sorted(vars(weight).items()))
    return type(weight).__name__, parts


def _key(value: Any) -> Any:
    if isinstance(value, Weight):
        return expression_key(value)
    if isinstance(value, (tuple, list)):
        return tuple(_key(item) for item in value)
    if isinstance(value, np.dtype):
        return value.name
    # Anything else that is no plain value, such as an array, is only equal to itself.
    return value if isinstance(value, (str, numbers.Number, type(None))) else _identity(value)


def _identity(value: Any) -> Any:
    return str(value) if hasattr(value, "__fspath__") else ("id", id(value))


def _node_protos(nodes: list[gs.Node], names: _Names) -> Iterator[onnx.NodeProto]:
    taken: set[str] = set()
    for node in nodes:
        proto = onnx.NodeProto(op_type=node.op, name=unique_name(node.name or node.op, taken), domain=node.domain or "")
        proto.input.extend(names.of(t) for t in node.inputs)
        proto.output.extend(names.of(t) for t in node.outputs)
        proto.attribute.extend(_attribute(node, key, value) for key, value in sorted(node.attrs.items()))
        yield proto


def _attribute(node: gs.Node, key: str, value: Any) -> onnx.AttributeProto:
    if isinstance(value, gs.Tensor):
        array = _weight_of(value).load()
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


def _value_info(tensor: gs.Tensor, names: _Names, component: str) -> onnx.ValueInfoProto:
    if tensor.dtype is None:
        raise BadModelError("an input or output has no dtype", component=component, node=tensor.name)
    shape = None if tensor.shape is None else [_dim(d) for d in tensor.shape]
    return onnx.helper.make_tensor_value_info(names.of(tensor), dtype_to_onnx(tensor.dtype), shape)


def _dim(dim: Any) -> int | str | None:
    return int(dim) if isinstance(dim, numbers.Integral) else dim


def _fill_header(proto: onnx.ModelProto, model: Model) -> None:
    graph = model.graph
    versions = {entry.domain: entry.version for entry in graph.import_domains or []}
    used = {node.domain or "" for node in graph.nodes}
    # ONNX Runtime's own Gelu fusion breaks if a custom-operator library registers com.microsoft and it is not imported.
    for domain in sorted(used | {"", "com.microsoft"}):
        version = graph.opset if domain == "" else versions.get(domain, 1)
        proto.opset_import.add(domain=domain, version=version)
    proto.functions.extend(OnnxExporter.export_function(f) for f in graph.functions)
    wanted = graph.ir_version or onnx.helper.find_min_ir_version_for(list(proto.opset_import), ignore_unknown=True)
    proto.ir_version = max(wanted, MIN_IR_VERSION)
    proto.producer_name = "sdort"
    proto.producer_version = sdort.__version__
    for key, value in sorted(model.metadata.items()):
        proto.metadata_props.add(key=key, value=value)
