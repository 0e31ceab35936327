"""What an ONNX file may contain: it is untrusted, and is judged here before a byte of its weights is read.

:func:`check_model` refuses with :class:`BadModelError` whatever the rest of sdort could trip over: wrong sizes, clashing
or undefined names, cycles, unknown operators, kinds of values that no Stable Diffusion graph has. Every check is linear
in the size of the graph and allocates nothing that the file did not already pay for in bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import onnx
from onnx import AttributeProto, TensorProto

from sdort.errors import BadModelError
from sdort.operators import MICROSOFT_OPERATORS

MIN_OPSET = 11
"""Below it BatchNormalization, Resize, Slice and others have other forms, which no exporter in use writes."""

OWN_DOMAIN = "sdort"
"""Operators of this project; each comes with an ONNX function body, so any runtime can run it."""

MAX_RANK = 32
"""numpy 1's limit; no operator of a diffusion model comes near it."""

MAX_NODES = 500_000
"""More than fifty times the largest diffusion graph: what inlining functions may expand to."""

_EXTERNAL = TensorProto.EXTERNAL

ITEMSIZE = {
    TensorProto.FLOAT: 4,
    TensorProto.UINT8: 1,
    TensorProto.INT8: 1,
    TensorProto.UINT16: 2,
    TensorProto.INT16: 2,
    TensorProto.INT32: 4,
    TensorProto.INT64: 8,
    TensorProto.BOOL: 1,
    TensorProto.FLOAT16: 2,
    TensorProto.DOUBLE: 8,
    TensorProto.UINT32: 4,
    TensorProto.UINT64: 8,
    TensorProto.BFLOAT16: 2,
    TensorProto.FLOAT8E4M3FN: 1,
    TensorProto.FLOAT8E4M3FNUZ: 1,
    TensorProto.FLOAT8E5M2: 1,
    TensorProto.FLOAT8E5M2FNUZ: 1,
}
"""Supported element types and their bytes. Strings, complex numbers and packed 4-bit types are not among them."""

_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")

_ATTRIBUTE_TYPES = {
    AttributeProto.FLOAT,
    AttributeProto.INT,
    AttributeProto.STRING,
    AttributeProto.TENSOR,
    AttributeProto.FLOATS,
    AttributeProto.INTS,
    AttributeProto.STRINGS,
}


def check_model(model: onnx.ModelProto, component: str, trusted_values: bool = False) -> list[int]:
    """Refuse a model that sdort cannot or must not process.

    Args:
        model: the model, after its local functions were inlined.
        component: the name used in messages.
        trusted_values: initializers may lack their values; the caller brings them.

    Returns:
        The indices of ``model.graph.node`` in topological order; ``range(n)`` if they already are.

    Raises:
        BadModelError: naming the component and the node or tensor.
    """
    opsets = check_opsets(model.opset_import, component)
    _check_ir_version(model, component)
    graph = model.graph
    if not graph.output:
        raise BadModelError("the graph has no outputs", component=component, hint=_NOT_ONNX)
    if graph.sparse_initializer:
        raise BadModelError("sparse initializers are not supported", component=component)
    for tensor in graph.initializer:
        tensor_nbytes(tensor, component) if trusted_values else check_tensor(tensor, component)
    for info in (*graph.input, *graph.output):
        _check_value_info(info, component, required=True)
    for info in graph.value_info:
        _check_value_info(info, component, required=False)
    functions = {(f.domain, f.name) for f in model.functions}
    check_nodes(graph.node, opsets, functions, component)
    known = _defined_names(graph, component)
    return _order(graph, known, component)


_NOT_ONNX = "Check that the file is an ONNX model and was copied completely."


def check_opsets(imports: Iterable[onnx.OperatorSetIdProto], component: str) -> dict[str, int]:
    """Domain -> version; ``ai.onnx`` counts as the default domain ``""``."""
    opsets: dict[str, int] = {}
    for entry in imports:
        domain = _domain(entry.domain)
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise BadModelError(f"domain {domain!r} is imported in two versions", component=component)
    newest = onnx.defs.onnx_opset_version()
    version = opsets.get("")
    if version is None:
        raise BadModelError("no opset of the default domain is imported", component=component, hint=_NOT_ONNX)
    if not MIN_OPSET <= version <= newest:
        raise BadModelError(
            f"opset {version} is not supported (the installed onnx knows {MIN_OPSET} to {newest})",
            component=component,
            hint="Export the model again with a supported opset.",
        )
    return opsets


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _check_ir_version(model: onnx.ModelProto, component: str) -> None:
    if not 3 <= model.ir_version <= onnx.IR_VERSION:
        raise BadModelError(
            f"ONNX IR version {model.ir_version} is not supported (the installed onnx knows 3 to {onnx.IR_VERSION})",
            component=component,
        )


# ---------------------------------------------------------------------------------------------------- tensors


def tensor_nbytes(tensor: TensorProto, component: str) -> int:
    """Bytes that the tensor's dims and type ask for, without allocating them."""
    itemsize = ITEMSIZE.get(tensor.data_type)
    if itemsize is None:
        raise BadModelError(
            f"element type {_type_name(tensor.data_type)} is not supported", component=component, node=tensor.name
        )
    if len(tensor.dims) > MAX_RANK:
        raise BadModelError(f"a tensor of rank {len(tensor.dims)}", component=component, node=tensor.name)
    if any(d < 0 for d in tensor.dims):
        raise BadModelError(f"negative dimension in {list(tensor.dims)}", component=component, node=tensor.name)
    # Also bounds (2**62, 2**62, 0), which holds no bytes but which numpy cannot represent.
    if math.prod(max(d, 1) for d in tensor.dims) * itemsize >= 2**62:
        raise BadModelError(f"impossible shape {list(tensor.dims)}", component=component, node=tensor.name)
    return math.prod(tensor.dims) * itemsize


def check_tensor(tensor: TensorProto, component: str) -> None:
    """Refuse a tensor whose values are not exactly those that its dims and type ask for."""
    nbytes = tensor_nbytes(tensor, component)
    if tensor.HasField("segment"):
        raise BadModelError("segmented tensors are not supported", component=component, node=tensor.name)
    typed = [field for field in _TYPED_FIELDS if len(getattr(tensor, field))]
    raw = len(tensor.raw_data) if tensor.HasField("raw_data") else 0
    if tensor.data_location == _EXTERNAL:
        if typed or raw:
            raise BadModelError("values both inside and outside the file", component=component, node=tensor.name)
        return
    if tensor.external_data:
        raise BadModelError("external data that is not marked as such", component=component, node=tensor.name)
    if typed and raw or len(typed) > 1:
        raise BadModelError("values given twice", component=component, node=tensor.name)
    found = raw if not typed else _typed_nbytes(tensor, typed[0], component)
    if found != nbytes:
        raise BadModelError(
            f"shape {list(tensor.dims)} of {_type_name(tensor.data_type)} needs {nbytes} bytes, the file has {found}",
            component=component,
            node=tensor.name,
        )


def _typed_nbytes(tensor: TensorProto, field: str, component: str) -> int:
    expected = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    if field != expected:
        raise BadModelError(
            f"{_type_name(tensor.data_type)} values stand in {field}", component=component, node=tensor.name
        )
    return len(getattr(tensor, field)) * ITEMSIZE[tensor.data_type]


def _type_name(data_type: int) -> str:
    try:
        return str(TensorProto.DataType.Name(data_type))
    except ValueError:
        return str(data_type)


def _check_value_info(info: onnx.ValueInfoProto, component: str, required: bool) -> None:
    kind = info.type.WhichOneof("value")
    if kind is None and not required:
        return
    if kind != "tensor_type":
        raise BadModelError(
            f"a value of kind {kind or 'unknown'}; only tensors are supported", component=component, node=info.name
        )
    tensor = info.type.tensor_type
    known = tensor.elem_type in ITEMSIZE or (tensor.elem_type == TensorProto.UNDEFINED and not required)
    if not known:
        raise BadModelError(
            f"element type {_type_name(tensor.elem_type)} is not supported", component=component, node=info.name
        )
    if len(tensor.shape.dim) > MAX_RANK or any(d.dim_value < 0 for d in tensor.shape.dim):
        raise BadModelError("impossible shape", component=component, node=info.name)


# ------------------------------------------------------------------------------------------------------ nodes


def check_nodes(
    nodes: Sequence[onnx.NodeProto], opsets: dict[str, int], functions: set[tuple[str, str]], component: str
) -> None:
    """Refuse unknown operators, and nodes that do not fit their operator's schema."""
    if len(nodes) > MAX_NODES:
        raise BadModelError(f"{len(nodes)} nodes are too many", component=component)
    context = _checker_context(opsets)
    for node in nodes:
        label = _label(node)
        check_operator(node, opsets, functions, component, label)
        for attribute in node.attribute:
            _check_attribute(attribute, component, label)
        if _domain(node.domain) == "":
            _check_schema(node, context, component, label)


def _label(node: onnx.NodeProto) -> str:
    return node.name or f"{node.op_type} -> {', '.join(node.output)}"


def check_operator(
    node: onnx.NodeProto, opsets: dict[str, int], functions: set[tuple[str, str]], component: str, label: str
) -> None:
    """Refuse a node whose operator nothing here knows."""
    domain = _domain(node.domain)
    if (node.domain, node.op_type) in functions:
        return
    if domain not in opsets:
        raise BadModelError(f"domain {domain!r} is used but not imported", component=component, node=label)
    if domain == "com.microsoft":
        known = node.op_type in MICROSOFT_OPERATORS
    else:
        known = _has_schema(node.op_type, domain, opsets[domain])
    if not known:
        name = f"{domain}.{node.op_type}" if domain else node.op_type
        raise BadModelError(
            f"unknown operator {name} (opset {opsets[domain]})",
            component=component,
            node=label,
            hint="sdort reads standard ONNX operators and ONNX Runtime's com.microsoft domain.",
        )


def _has_schema(op_type: str, domain: str, version: int) -> bool:
    try:
        return not onnx.defs.get_schema(op_type, version, domain).deprecated
    except (onnx.defs.SchemaError, OverflowError, TypeError):
        return False


def _check_attribute(attribute: AttributeProto, component: str, label: str) -> None:
    where = f"attribute {attribute.name!r}"
    if attribute.ref_attr_name:
        raise BadModelError(f"{where} refers to a function's attribute", component=component, node=label)
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        raise BadModelError(
            f"{where} is a subgraph; control flow is not supported",
            component=component,
            node=label,
            hint="Diffusion models need no If, Loop or Scan; export the model without data-dependent branches.",
        )
    if attribute.type not in _ATTRIBUTE_TYPES:
        raise BadModelError(f"{where} is of an unsupported kind", component=component, node=label)
    if attribute.type == AttributeProto.TENSOR:
        _check_attribute_tensor(attribute, component, label)
    for text in (attribute.s, *attribute.strings):
        _check_text(text, where, component, label)


def _check_attribute_tensor(attribute: AttributeProto, component: str, label: str) -> None:
    try:
        check_tensor(attribute.t, component)
    except BadModelError as error:
        raise BadModelError(f"attribute {attribute.name!r}: {error.message}", component=component, node=label) from None


def _check_text(text: bytes, where: str, component: str, label: str) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise BadModelError(f"{where} is not text", component=component, node=label) from None


def _checker_context(opsets: dict[str, int]) -> onnx.checker.C.CheckerContext:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = opsets
    return context


def _check_schema(
    node: onnx.NodeProto, context: onnx.checker.C.CheckerContext, component: str, label: str
) -> None:
    if any(attribute.type == AttributeProto.TENSOR for attribute in node.attribute):
        node = _without_tensor_values(node)
    try:
        onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as error:
        reason = str(error).strip().splitlines()[0]
        raise BadModelError(f"not a valid {node.op_type}: {reason}", component=component, node=label) from None


def _without_tensor_values(node: onnx.NodeProto) -> onnx.NodeProto:
    """A copy with empty tensors, which were checked already; onnx would look for external files from here."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for attribute in copy.attribute:
        if attribute.type == AttributeProto.TENSOR:
            attribute.t.CopyFrom(TensorProto(data_type=attribute.t.data_type, dims=[0]))
    return copy


# ------------------------------------------------------------------------------------------------------ names


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
    """Kahn's algorithm; keeps the file's order where that is already topological."""
    producer = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    for name in _used_names(graph):
        if name not in producer and name not in known:
            raise BadModelError("used, but nothing defines it", component=component, node=name)
    needs = [{producer[name] for name in node.input if name in producer} for node in graph.node]
    order, cyclic = topological_order(needs)
    if cyclic is not None:
        raise BadModelError("the graph has a cycle", component=component, node=_label(graph.node[cyclic]))
    return order


def _used_names(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from (name for name in node.input if name)
    yield from (info.name for info in graph.output)


def topological_order(needs: Sequence[set[int]]) -> tuple[list[int], int | None]:
    """Indices such that each follows those it needs, and an index that lies on a cycle, if there is one.

    Depth first: a node keeps its place or moves right before its first consumer. Linear, and no recursion.
    """
    state = bytearray(len(needs))  # 0 unseen, 1 on the stack, 2 placed
    order: list[int] = []
    for start in range(len(needs)):
        stack = [start] if state[start] == 0 else []
        while stack:
            index = stack[-1]
            missing = sorted((n for n in needs[index] if state[n] != 2), reverse=True) if state[index] == 0 else []
            state[index] = max(state[index], 1)
            if any(state[n] == 1 for n in missing):
                return order, index
            stack.extend(missing)
            if not missing:
                stack.pop()
                if state[index] != 2:
                    state[index] = 2
                    order.append(index)
    return order, None
