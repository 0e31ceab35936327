"""Run an optimized graph anywhere: operators that only GPU providers have, in the definitions of their files.

ONNX Runtime's CPU provider has no GroupNorm, SkipGroupNorm, NhwcConv, BiasSplitGelu, BiasAdd and no packed
MultiHeadAttention. A function body for an operator of its own ``com.microsoft`` domain is ignored, so every such
node is pointed at a function in :data:`REFERENCE_DOMAIN`, whose body is the operator's (:mod:`sdort.operators`).
"""

from __future__ import annotations

import hashlib

import onnx
import onnx.version_converter

from sdort.errors import BadModelError
from sdort.errors.plain_text import library_reason
from sdort.graph.domains import MICROSOFT
from sdort.onnx_io.own_functions import expand_own_functions
from sdort.operators import find_operator

REFERENCE_DOMAIN = "sdort.reference"
MINIMUM_OPSET = 18
"""The bodies use CastLike and Split's num_outputs; optimized models are at 18 or later."""


def expand(model: onnx.ModelProto) -> int:
    """Point every node that ONNX Runtime's CPU provider lacks at a function made of standard operators, in place.

    Weights are not looked at, so they may be external.

    Returns:
        The number of nodes changed.

    Raises:
        BadModelError: the model's opset is below 18 and cannot be raised, or a node has a form that its operator does
            not define.
    """
    model.CopyFrom(expand_own_functions(model))
    if any(map(needs_expansion, model.graph.node)):
        _raise_opset(model)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    functions: dict[str, onnx.FunctionProto] = {}
    nodes = [node for node in model.graph.node if needs_expansion(node)]
    for node in nodes:
        function = make_function(node, opsets[""])
        functions[function.name] = function
        call_function(node, function)
    if nodes:
        model.functions.extend(functions.values())
        model.opset_import.append(onnx.helper.make_opsetid(REFERENCE_DOMAIN, 1))
    return len(nodes)


def _raise_opset(model: onnx.ModelProto) -> None:
    """Convert a model of an older opset, as ONNX Runtime's optimizer leaves it, in place."""
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset >= MINIMUM_OPSET:
        return
    try:
        model.CopyFrom(onnx.version_converter.convert_version(model, MINIMUM_OPSET))
    except (RuntimeError, ValueError) as error:
        raise BadModelError(
            f"the reference needs opset {MINIMUM_OPSET} or later, this model has {opset}: {library_reason(error)}"
        ) from error


def needs_expansion(node: onnx.NodeProto) -> bool:
    """Whether the CPU provider has no kernel for this node's operator and form."""
    operator = find_operator(node.domain, node.op_type)
    return operator is not None and operator.on_cpu(operator.call_of(node)) is not None


def make_function(node: onnx.NodeProto, opset: int) -> onnx.FunctionProto:
    """The function that computes on the CPU what ``node`` does; equal forms get equal functions.

    Raises:
        BadModelError: the node has a form that its operator does not define.
    """
    operator = find_operator(node.domain, node.op_type)
    if operator is None or not operator.fits(node):
        raise BadModelError(f"{node.op_type} has more inputs or outputs than the reference knows", node=node.name)
    call = operator.call_of(node)
    body = operator.on_cpu(call)
    if body is None:
        raise BadModelError(f"{node.op_type} has a form that the reference does not know", node=node.name)
    digest = hashlib.sha256(f"{call.signature}{body}".encode()).hexdigest()[:8]
    return parse_function(REFERENCE_DOMAIN, f"{node.op_type}_{digest}", call.signature, body, opset)


def parse_function(domain: str, name: str, signature: str, body: str, opset: int) -> onnx.FunctionProto:
    """A function of an ONNX text, which may call ONNX Runtime's operators."""
    imports = f'["": {opset}, "{MICROSOFT}": 1]'
    return onnx.parser.parse_function(f'<domain: "{domain}", opset_import: {imports}>\n{name} {signature} {{{body}\n}}')


def call_function(node: onnx.NodeProto, function: onnx.FunctionProto) -> None:
    """Make ``node`` a call of ``function``: its absent inputs and outputs and its attributes are in the body."""
    node.domain, node.op_type = function.domain, function.name
    for names in (node.input, node.output):
        present = [name for name in names if name]
        del names[:]
        names.extend(present)
    del node.attribute[:]
