"""Checks of an ONNX file's structure: it is untrusted, and nothing of its weights is read before.

:func:`check_model` refuses with :class:`BadModelError` whatever the rest of sdort could trip over: wrong sizes,
clashing or undefined names, cycles, unknown operators, kinds of values that no Stable Diffusion graph has. Every check
is linear in the size of the graph and allocates nothing that the file did not already pay for in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import onnx
from onnx import TensorProto

from sdort.errors import BadModelError
from sdort.graph.topological_order import topological_order
from sdort.onnx_io.check_nodes import check_nodes, default_domain, node_label
from sdort.onnx_io.check_tensors import ITEMSIZE, MAX_RANK, type_name
from sdort.onnx_io.wire import COPY_AGAIN

MIN_OPSET = 11
"""Below it BatchNormalization, Resize, Slice and others have other forms, which no exporter in use writes."""


def check_model(model: onnx.ModelProto, component: str) -> list[int]:
    """Refuse a model that sdort cannot or must not process; the values of initializers are not looked at.

    Args:
        model: the model, after its local functions were inlined.
        component: the name used in messages.

    Returns:
        The indices of ``model.graph.node`` in topological order; ``range(n)`` if they already are.

    Raises:
        BadModelError: naming the component and the node or tensor.
    """
    opsets = check_opsets(model.opset_import, component)
    if not 3 <= model.ir_version <= onnx.IR_VERSION:
        raise BadModelError(
            f"ONNX IR version {model.ir_version} is not supported (the installed onnx knows 3 to {onnx.IR_VERSION})",
            component=component,
        )
    graph = model.graph
    if not graph.output:
        raise BadModelError("the graph has no outputs", component=component, hint=COPY_AGAIN)
    if graph.sparse_initializer:
        raise BadModelError("sparse initializers are not supported", component=component)
    for info in (*graph.input, *graph.output):
        _check_value_info(info, component, required=True)
    for info in graph.value_info:
        _check_value_info(info, component, required=False)
    check_nodes(graph.node, opsets, {(f.domain, f.name) for f in model.functions}, component)
    known = _defined_names(graph, component)
    return _order(graph, known, component)


def check_opsets(imports: Iterable[onnx.OperatorSetIdProto], component: str) -> dict[str, int]:
    """Domain -> version; ``ai.onnx`` counts as the default domain ``""``."""
    opsets: dict[str, int] = {}
    for entry in imports:
        domain = default_domain(entry.domain)
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise BadModelError(f"domain {domain!r} is imported in two versions", component=component)
        if not 0 < entry.version < 2**31:
            raise BadModelError(f"domain {domain!r} is imported in version {entry.version}", component=component)
    newest = onnx.defs.onnx_opset_version()
    version = opsets.get("")
    if version is None:
        raise BadModelError("no opset of the default domain is imported", component=component, hint=COPY_AGAIN)
    if not MIN_OPSET <= version <= newest:
        raise BadModelError(
            f"opset {version} is not supported (the installed onnx knows {MIN_OPSET} to {newest})",
            component=component,
            hint="Export the model again with a supported opset.",
        )
    return opsets


def _check_value_info(info: onnx.ValueInfoProto, component: str, required: bool) -> None:
    kind = info.type.WhichOneof("value")
    if kind is None and not required:
        return
    if kind != "tensor_type":
        raise BadModelError(
            f"a value of kind {kind or 'unknown'}; only tensors are supported", component=component, node=info.name
        )
    tensor = info.type.tensor_type
    if tensor.elem_type not in ITEMSIZE and (required or tensor.elem_type != TensorProto.UNDEFINED):
        raise BadModelError(
            f"element type {type_name(tensor.elem_type)} is not supported", component=component, node=info.name
        )
    if len(tensor.shape.dim) > MAX_RANK or any(d.dim_value < 0 for d in tensor.shape.dim):
        raise BadModelError("an impossible shape", component=component, node=info.name)


def _defined_names(graph: onnx.GraphProto, component: str) -> set[str]:
    """The names that exist before any node runs; refuses names that are defined twice."""
    initializers = [tensor.name for tensor in graph.initializer]
    inputs = [info.name for info in graph.input]
    produced = [name for node in graph.node for name in node.output if name]
    _check_unique(initializers, "two initializers", component)
    _check_unique(inputs, "two graph inputs", component)
    _check_unique([info.name for info in graph.output], "two graph outputs", component)
    _check_unique(produced, "two node outputs", component)
    known = {*initializers, *inputs}
    for name in produced:
        if name in known:
            raise BadModelError("a node writes an input or initializer", component=component, node=name)
    if "" in known:
        raise BadModelError("an input or initializer without a name", component=component)
    return known


def _check_unique(names: Sequence[str], what: str, component: str) -> None:
    if len(set(names)) != len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise BadModelError(f"{what} have one name", component=component, node=twice)


def _order(graph: onnx.GraphProto, known: set[str], component: str) -> list[int]:
    producer = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    for name in _used_names(graph):
        if name not in producer and name not in known:
            raise BadModelError("used, but nothing defines it", component=component, node=name)
    needs = [{producer[name] for name in node.input if name in producer} for node in graph.node]
    order, cyclic = topological_order(needs)
    if cyclic is not None:
        raise BadModelError("the graph has a cycle", component=component, node=node_label(graph.node[cyclic]))
    return order


def _used_names(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from (name for name in node.input if name)
    yield from (info.name for info in graph.output)
