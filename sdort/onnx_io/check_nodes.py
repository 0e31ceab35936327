"""Nodes of an untrusted file: known operators, supported attributes, the operator's own schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import onnx
from onnx import AttributeProto, TensorProto

from sdort.errors import BadModelError
from sdort.errors.plain_text import library_reason
from sdort.graph.domains import IN_DEFAULT_DOMAIN, MICROSOFT, MICROSOFT_OPERATORS, OWN_DOMAIN, is_runtimes_own
from sdort.graph.operator import REQUIRED, Operator
from sdort.onnx_io.check_tensors import check_tensor
from sdort.operators import find_operator

MAX_NODES = 500_000
"""More than fifty times the largest diffusion graph: what inlining functions may expand to."""

_ATTRIBUTE_TYPES = {
    AttributeProto.FLOAT,
    AttributeProto.INT,
    AttributeProto.STRING,
    AttributeProto.TENSOR,
    AttributeProto.FLOATS,
    AttributeProto.INTS,
    AttributeProto.STRINGS,
}

CONSTANT_ATTRIBUTES = {"value", "value_float", "value_floats", "value_int", "value_ints"}
"""Attributes of the Constant operator that hold its value; strings and sparse tensors are not supported."""

_FLAGS = {"allowzero", "is_causal", "keepdims", "noop_with_empty_axes", "select_last_index"}
"""Attributes that say yes or no. ONNX Runtime takes a 7 for no where ONNX's own functions take it for yes."""

_STATED = {
    int: (AttributeProto.INT, "whole number"),
    float: (AttributeProto.FLOAT, "number"),
    str: (AttributeProto.STRING, "text"),
}
"""Types of attributes, and their words, by those of the defaults that operators state."""

Functions = set[tuple[str, str]]


def check_nodes(
    nodes: Sequence[onnx.NodeProto],
    opsets: Mapping[str, int],
    functions: Functions,
    component: str,
    in_function: bool = False,
) -> None:
    """Refuse unknown operators and nodes that do not fit their operator.

    Args:
        nodes: of the graph, or of a function's body.
        opsets: domain -> version.
        functions: (domain, name) of the operators that the model itself defines.
        component: for messages.
        in_function: attributes may refer to the function's own.

    Raises:
        BadModelError: naming the component and the node.
    """
    if len(nodes) > MAX_NODES:
        raise BadModelError(f"{len(nodes)} nodes are too many", component=component)
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = dict(opsets)
    for node in nodes:
        _check_operator(node, opsets, functions, component)
        check_attributes(node, component, in_function)
        operator = find_operator(node.domain, node.op_type)
        if node.domain == "" and not is_runtimes_own("", node.op_type, opsets[""]):
            _check_schema(node, _later(opsets[""]) if _is_replaced(node.op_type, opsets[""]) else context, component)
            _check_counts(node, component)
        elif operator and (node.domain, node.op_type) not in functions:
            _check_stated(node, operator, component)


def shorten_domains(model: onnx.ModelProto) -> None:
    """Write the default domain in its short form, as onnx's own checker wants it."""
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        if node.domain == "ai.onnx":
            node.domain = ""


def default_domain(domain: str) -> str:
    """``ai.onnx`` is the long name of the default domain ``""``."""
    return "" if domain == "ai.onnx" else domain


def node_label(node: onnx.NodeProto) -> str:
    """The name of a node in messages."""
    return node.name or f"{node.op_type} -> {', '.join(node.output)}"


def _check_operator(node: onnx.NodeProto, opsets: Mapping[str, int], functions: Functions, component: str) -> None:
    domain = node.domain
    if (node.domain, node.op_type) in functions:
        return
    if domain not in opsets:
        raise _bad(node, component, f"domain {domain!r} is used but not imported")
    if domain == MICROSOFT:
        known = node.op_type in MICROSOFT_OPERATORS | IN_DEFAULT_DOMAIN
    elif domain == OWN_DOMAIN:
        known = find_operator(domain, node.op_type) is not None
    else:
        known = _has_schema(node.op_type, domain, opsets[domain])
        known = known or is_runtimes_own(domain, node.op_type, opsets[domain])
        known = known or (not domain and _is_replaced(node.op_type, opsets[domain]))
    if not known:
        name = f"{domain}.{node.op_type}" if domain else node.op_type
        raise BadModelError(
            f"unknown operator {name} (opset {opsets[domain]})",
            component=component,
            node=node_label(node),
            hint="sdort reads standard ONNX operators and ONNX Runtime's com.microsoft domain.",
        )


@lru_cache(maxsize=4096)  # a look-up takes 0.1 ms, and a graph has thousands of nodes of few operators
def _has_schema(op_type: str, domain: str, version: int) -> bool:
    try:
        return not onnx.defs.get_schema(op_type, version, domain).deprecated
    except onnx.defs.SchemaError:
        return False


REPLACED = {"GroupNormalization": 21}
"""Operators that ONNX has withdrawn in an opset and defined anew in this one, and that are converted."""


def _is_replaced(op_type: str, version: int) -> bool:
    return op_type in REPLACED and onnx.defs.has(op_type, version) and not _has_schema(op_type, "", version)


def _later(version: int) -> onnx.checker.C.CheckerContext:
    """The context of the first opset in which nothing is withdrawn: such operators are checked as the later ones."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {"": max(version, *REPLACED.values())}
    return context


def check_attributes(node: onnx.NodeProto, component: str, in_function: bool = False) -> None:
    """Refuse attributes that clash, are no values, or are of an unsupported kind."""
    names = [attribute.name for attribute in node.attribute]
    if len(set(names)) < len(names) or "" in names:
        raise _bad(node, component, "an attribute has no name, or the name of another")
    if node.op_type == "Constant" and (len(names) != 1 or names[0] not in CONSTANT_ATTRIBUTES):
        raise _bad(node, component, f"a Constant with the attributes {names}")
    for attribute in node.attribute:
        if attribute.ref_attr_name and in_function:
            continue
        _check_attribute(node, attribute, component)


def _check_attribute(node: onnx.NodeProto, attribute: AttributeProto, component: str) -> None:
    where = f"attribute {attribute.name!r}"
    if attribute.ref_attr_name:
        raise _bad(node, component, f"{where} refers to an attribute of a function")
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        cause = (
            "the condition of this If is not known before it runs" if node.op_type == "If" else f"{where} is a subgraph"
        )
        raise BadModelError(
            f"{cause}; control flow is not supported",
            component=component,
            node=node_label(node),
            hint="Diffusion models need no If, Loop or Scan; export the model without data-dependent branches, "
            "and with fixed sizes where a branch asks for one.",
        )
    if attribute.type not in _ATTRIBUTE_TYPES:
        raise _bad(node, component, f"{where} is of an unsupported kind")
    if attribute.type == AttributeProto.TENSOR:
        try:
            check_tensor(attribute.t, component)
        except BadModelError as error:
            raise _bad(node, component, f"{where}: {error.message}") from None
    if not _is_text((attribute.s, *attribute.strings)):
        raise _bad(node, component, f"{where} is not text")


def _is_text(values: Iterable[bytes]) -> bool:
    try:
        return all(value.decode() is not None for value in values)
    except UnicodeDecodeError:
        return False


def _check_schema(node: onnx.NodeProto, context: onnx.checker.C.CheckerContext, component: str) -> None:
    if any(attribute.type == AttributeProto.TENSOR for attribute in node.attribute):
        node = _without_tensor_values(node)
    try:
        onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as error:
        raise _bad(node, component, f"not a valid {node.op_type}: {library_reason(error)}") from None


def _check_stated(node: onnx.NodeProto, operator: Operator, component: str) -> None:
    """Refuse attributes of another type than that of sdort's operator, and where one that it needs is left out."""
    given = {attribute.name: attribute for attribute in node.attribute}
    for name, default in operator.attributes.items():
        if name not in given and default is REQUIRED:
            raise _bad(node, component, f"a {operator.qualified_name} without {name}")
        # All that are required are counts or flags; the floats among those without a default are these.
        kind = int if default is REQUIRED else float if name in ("scale", "mask_filter_value") else type(default)
        expected, words = _STATED.get(kind, (None, ""))
        if expected and name in given and not given[name].ref_attr_name and given[name].type != expected:
            raise _bad(node, component, f"the {name} of a {operator.qualified_name} is no {words}")


def _check_counts(node: onnx.NodeProto, component: str) -> None:
    """Refuse numbers that no schema forbids: parts and heads that end the process in onnx's or ONNX Runtime's code,
    and what implementations read differently.
    """
    counts = {a.name: len(a.ints) if a.type == AttributeProto.INTS else a.i for a in node.attribute}
    for name in ("num_outputs", "split") if node.op_type == "Split" else ():
        if counts.get(name, len(node.output)) != len(node.output):
            raise _bad(node, component, f"a Split into {counts[name]} parts has {len(node.output)} outputs")
    for name in ("q_num_heads", "kv_num_heads") if node.op_type == "Attention" else ():
        if counts.get(name, 1) < 1:
            raise _bad(node, component, f"an Attention with {name} = {counts[name]}")
    for name in _FLAGS & counts.keys():
        if counts[name] not in (0, 1):
            raise _bad(node, component, f"its {name} is {counts[name]}, and can be 0 or 1")


def _without_tensor_values(node: onnx.NodeProto) -> onnx.NodeProto:
    """A copy with empty tensors: the values were checked, and onnx would look for their external files."""
    copy = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name)
    copy.input.extend(node.input)
    copy.output.extend(node.output)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            empty = TensorProto(data_type=attribute.t.data_type, dims=[0])
            copy.attribute.add(name=attribute.name, type=AttributeProto.TENSOR, t=empty)
        else:
            copy.attribute.append(attribute)
    return copy


def _bad(node: onnx.NodeProto, component: str, message: str) -> BadModelError:
    return BadModelError(message, component=component, node=node_label(node))
