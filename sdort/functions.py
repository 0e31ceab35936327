"""A model's local functions, expanded into its graph."""

from __future__ import annotations

import onnx
import onnx.inliner

from sdort.errors import BadModelError
from sdort.untrusted import MAX_NODES, OWN_DOMAIN, check_opsets

_Key = tuple[str, str]


def inline_functions(model: onnx.ModelProto, component: str) -> onnx.ModelProto:
    """The model without local functions, except those of sdort's own domain, which are operators with a fallback.

    Raises:
        BadModelError: a function that is defined twice, calls itself, or expands to an absurd number of nodes.
    """
    if not model.functions:
        return model
    functions: dict[_Key, onnx.FunctionProto] = {}
    for function in model.functions:
        key = (function.domain, function.name)
        if key in functions or function.overload:
            raise BadModelError("a function is defined twice", component=component, node=function.name)
        functions[key] = function
    _check_expansion(model, functions, component)
    _check_bodies(model, functions, component)
    chosen = [key for key in functions if key[0] != OWN_DOMAIN]
    if not chosen:
        return model
    try:
        inlined = onnx.inliner.inline_selected_functions(model, chosen)
    except Exception as error:  # the C++ inliner raises bare RuntimeError and others
        raise BadModelError(
            f"its functions cannot be expanded: {str(error).splitlines()[0]}", component=component
        ) from None
    remaining = [f for f in inlined.functions if f.domain == OWN_DOMAIN]
    del inlined.functions[:]
    inlined.functions.extend(remaining)
    return inlined


def _check_bodies(model: onnx.ModelProto, functions: dict[_Key, onnx.FunctionProto], component: str) -> None:
    opsets = check_opsets(model.opset_import, component)
    for function in functions.values():
        for entry in function.opset_import:
            domain = "" if entry.domain == "ai.onnx" else entry.domain
            if opsets.get(domain, entry.version) != entry.version:
                raise BadModelError(
                    f"the function imports {domain or 'ai.onnx'} {entry.version}, the model {opsets[domain]}",
                    component=component,
                    node=function.name,
                )


def _check_expansion(model: onnx.ModelProto, functions: dict[_Key, onnx.FunctionProto], component: str) -> None:
    """Refuse recursion and exponential growth before anything is expanded."""
    sizes: dict[_Key, int] = {}
    for key in functions:
        _expanded_size(key, functions, sizes, component)
    total = sum(sizes.get((node.domain, node.op_type), 1) for node in model.graph.node)
    if total > MAX_NODES:
        raise BadModelError(f"its functions expand to {total} nodes", component=component)


def _expanded_size(
    root: _Key, functions: dict[_Key, onnx.FunctionProto], sizes: dict[_Key, int], component: str
) -> None:
    """Nodes after expansion of ``root`` and all it calls, into ``sizes``; depth first with an explicit stack."""
    stack, active = [root], set()
    while stack:
        key = stack[-1]
        calls = [(n.domain, n.op_type) for n in functions[key].node]
        pending = [c for c in calls if c in functions and c not in sizes]
        if key in sizes:
            stack.pop()
        elif not pending:
            sizes[key] = sum(sizes.get(c, 1) for c in calls)
            active.discard(key)
            stack.pop()
        elif key in active and any(c in active for c in pending):
            raise BadModelError("a function calls itself", component=component, node=key[1])
        else:
            active.add(key)
            stack.extend(dict.fromkeys(pending))
