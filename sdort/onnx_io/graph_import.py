"""Conversion of the graph that onnx-graphsurgeon imports to the one that sdort's passes work on.

- Initializers and Constant nodes are :class:`gs.Constant` tensors; a small one has exactly one consumer, so that a pass
  may change it, and removing a consumer is cheap (a list of hundreds of consumers is searched with a slow ``==``).
  The writer merges equal ones again.
- Every node has a unique name, every dtype is a numpy dtype, nodes are in topological order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from sdort.graph.domains import IN_DEFAULT_DOMAIN, MICROSOFT
from sdort.graph.signature import Array
from sdort.graph.weights import Weight

_SCALARS = {"value_float": np.float32, "value_int": np.int64, "value_floats": np.float32, "value_ints": np.int64}
"""The attributes of Constant that are no tensor."""


def finish_graph(graph: gs.Graph, constants: Mapping[str, Array | Weight], order: Sequence[int]) -> None:
    """Turn the imported graph into sdort's form, in place and in linear time."""
    for tensor in tensors_of(graph):
        if isinstance(tensor, gs.Constant):
            tensor._values = constants[tensor.name]
            tensor.data_location = None
    graph.nodes = [graph.nodes[i] for i in order]
    _constant_nodes_to_constants(graph)
    _copy_shared_constants(graph)
    for tensor in tensors_of(graph):
        if isinstance(tensor, gs.Variable) and isinstance(tensor.dtype, int):
            tensor.dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype)
    _name_nodes(graph)
    _keep_used_domains(graph)


def tensors_of(graph: gs.Graph) -> Iterator[gs.Tensor]:
    """Every tensor of the graph at least once."""
    yield from graph.inputs
    yield from graph.outputs
    for node in graph.nodes:
        yield from node.inputs
        yield from node.outputs


def _constant_nodes_to_constants(graph: gs.Graph) -> None:
    kept = []
    for node in graph.nodes:
        if node.op == "Constant" and not node.domain:
            (output,) = node.outputs
            output.to_constant(_constant_value(node))
            # The producer goes: removal by index, never by the slow Node.__eq__.
            list.clear(output.inputs)
            list.clear(node.outputs)
        else:
            kept.append(node)
    graph.nodes = kept


def _constant_value(node: gs.Node) -> Array | Weight:
    ((name, value),) = node.attrs.items()
    if name == "value":
        values: Array | Weight = value._values
        return values
    return np.array(value, _SCALARS[name])


def _copy_shared_constants(graph: gs.Graph) -> None:
    """Give every consumer of a small constant its own copy."""
    taken = {tensor.name for tensor in tensors_of(graph)}
    outputs = {id(tensor) for tensor in graph.outputs}
    seen: set[int] = set()
    for node in graph.nodes:
        for index, tensor in enumerate(node.inputs):
            if not isinstance(tensor, gs.Constant) or isinstance(tensor._values, Weight):
                continue
            if id(tensor) not in seen and id(tensor) not in outputs:
                seen.add(id(tensor))
                list.clear(tensor.outputs)
                list.append(tensor.outputs, node)
                continue
            copy = gs.Constant(unique_name(tensor.name, taken), tensor._values.copy())
            # The plain list methods: the synchronised ones would search the shared tensor's consumers.
            list.__setitem__(node.inputs, index, copy)
            list.append(copy.outputs, node)
    for tensor in graph.outputs:
        if isinstance(tensor, gs.Constant) and not isinstance(tensor._values, Weight):
            list.clear(tensor.outputs)


def unique_name(base: str, taken: set[str]) -> str:
    """``base``, or ``base`` with the first free number; the result is added to ``taken``."""
    name = base
    for number in itertools.count(1):
        if name not in taken:
            break
        name = f"{base}__{number}"
    taken.add(name)
    return name


def _name_nodes(graph: gs.Graph) -> None:
    taken: set[str] = set()
    counters: dict[str, int] = {}
    for node in graph.nodes:
        base = node.name or node.op
        if not node.name or node.name in taken:
            counters[base] = counters.get(base, -1) + 1
            node.name = unique_name(f"{base}_{counters[base]}", taken)
        taken.add(node.name)
        node.domain = node.domain or (MICROSOFT if node.op in IN_DEFAULT_DOMAIN else None)


def _keep_used_domains(graph: gs.Graph) -> None:
    """Only what nodes use; as own objects, since the imported list keeps the whole file's bytes alive."""
    used = {node.domain or "" for node in graph.nodes} | {""}
    for function in graph.functions:
        used.update(node.domain or "" for node in function.nodes)
    versions = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in graph.import_domains}
    graph.import_domains = [
        onnx.helper.make_opsetid(domain, version) for domain, version in versions.items() if domain in used
    ]
