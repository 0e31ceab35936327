"""A model's local functions, expanded into its graph."""

from __future__ import annotations

import onnx
import onnx.inliner

from sdort.errors import BadModelError
from sdort.errors.plain_text import library_reason
from sdort.graph.domains import OWN_DOMAIN
from sdort.onnx_io.check_model import check_opsets
from sdort.onnx_io.check_nodes import MAX_NODES, check_attributes, check_nodes

MAX_DEPTH = 50
"""Upper bound of the nesting of functions that call functions; their expansion is recursive code in C++."""

_Key = tuple[str, str]
_Functions = dict[_Key, onnx.FunctionProto]


def inline_functions(model: onnx.ModelProto, component: str) -> onnx.ModelProto:
    """The model without local functions, except those of sdort's own domain, which are operators with a fallback.

    Raises:
        BadModelError: a function that is broken, defined twice, calls itself, or expands to too many nodes.
    """
    if not model.functions:
        return model
    functions: _Functions = {}
    for function in model.functions:
        key = (function.domain, function.name)
        if key in functions or function.overload:
            raise BadModelError("overloaded functions are not supported", component=component, node=function.name)
        functions[key] = function
    _check_expansion(model, functions, component)
    opsets = check_opsets(model.opset_import, component)
    for function in functions.values():
        _check_function(function, opsets, set(functions), component)
    _give_defaults(model, functions)
    # Its own operators are not expanded: where the library is, their kernels run.
    chosen = [key for key in functions if key[0] != OWN_DOMAIN]
    return _expand(model, chosen, component) if chosen else model


def _give_defaults(model: onnx.ModelProto, functions: _Functions) -> None:
    """Write the functions' default attributes into the calls that omit them: onnx.inliner forgets them."""
    for node in (*model.graph.node, *(node for function in functions.values() for node in function.node)):
        called = functions.get((node.domain, node.op_type))
        if called is not None and called.attribute_proto:
            stated = {attribute.name for attribute in node.attribute}
            node.attribute.extend(default for default in called.attribute_proto if default.name not in stated)


def _expand(model: onnx.ModelProto, chosen: list[_Key], component: str) -> onnx.ModelProto:
    try:
        expanded = onnx.inliner.inline_selected_functions(model, chosen)
    except Exception as error:  # the C++ code has no one exception type
        raise BadModelError(f"its functions cannot be expanded: {library_reason(error)}", component=component) from None
    kept = [function for function in expanded.functions if function.domain == OWN_DOMAIN]
    del expanded.functions[:]
    expanded.functions.extend(kept)
    return expanded


def _check_function(
    function: onnx.FunctionProto, model_opsets: dict[str, int], functions: set[_Key], component: str
) -> None:
    opsets = check_opsets(function.opset_import, component)
    for domain, version in opsets.items():
        if model_opsets.setdefault(domain, version) != version:
            raise BadModelError(
                f"the function imports {domain or 'ai.onnx'} {version}, the model {model_opsets[domain]}",
                component=component,
                node=function.name,
            )
    for names in (function.input, function.output, function.attribute):
        if len(set(names)) < len(names) or "" in names:
            raise BadModelError("parameters without a name of their own", component=component, node=function.name)
    call = onnx.NodeProto(op_type=function.name, attribute=function.attribute_proto)
    check_attributes(call, component)
    check_nodes(function.node, opsets, functions, component, in_function=True)
    known = {"", *function.input}
    for node in function.node:
        for name in node.input:
            if name not in known:
                raise BadModelError(
                    f"used in function {function.name}, but not defined", component=component, node=name
                )
        if known.intersection(filter(None, node.output)):
            raise BadModelError(f"defined twice in function {function.name}", component=component, node=node.output[0])
        known.update(node.output)
    if not known.issuperset(function.output):
        raise BadModelError("an output is not defined", component=component, node=function.name)


def _check_expansion(model: onnx.ModelProto, functions: _Functions, component: str) -> None:
    """Refuse recursion, deep nesting and exponential growth before anything is expanded."""
    measured: dict[_Key, tuple[int, int]] = {}
    for key in functions:
        _measure(key, functions, measured, component)
    total = sum(measured.get((node.domain, node.op_type), (1, 0))[0] for node in model.graph.node)
    if total > MAX_NODES:
        raise BadModelError("its functions expand to too many nodes", component=component)


def _measure(root: _Key, functions: _Functions, measured: dict[_Key, tuple[int, int]], component: str) -> None:
    """Put (nodes when expanded, nesting) of ``root`` and all it calls into ``measured``; depth first, no recursion."""
    active: set[_Key] = set()
    stack = [root]
    while stack:
        key = stack[-1]
        if key in measured:
            stack.pop()
            continue
        calls = [(node.domain, node.op_type) for node in functions[key].node]
        pending = [call for call in calls if call in functions and call not in measured]
        nesting = 1 + max((measured[call][1] for call in calls if call in measured), default=0)
        if (pending and key in active) or nesting > MAX_DEPTH:
            raise BadModelError("a function calls itself, or nests too deeply", component=component, node=key[1])
        if pending:
            active.add(key)
            stack.extend(dict.fromkeys(pending))
        else:
            nodes = sum(measured[call][0] if call in measured else 1 for call in calls)
            measured[key] = min(nodes, MAX_NODES + 1), nesting
