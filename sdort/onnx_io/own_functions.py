"""The functions of sdort's own operators, which a model carries, so that any runtime has them.

Where the custom operator library is registered, its kernel runs. Elsewhere ONNX Runtime expands the body, which is made
of what the execution provider has kernels for; on the CPU those come with the library.

A function is found by its name alone, and its body cannot ask whether an optional input is there. So the body is
written for the form in which a model uses the operator, and a model has one form of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import onnx
import onnx.inliner

from sdort.errors import BadModelError
from sdort.graph.domains import MICROSOFT, OWN_DOMAIN
from sdort.graph.fact import NOTHING
from sdort.graph.operator import REQUIRED, AttributeReference, Operator
from sdort.operators import find_operator

if TYPE_CHECKING:  # what runs models needs no graphs in memory
    import onnx_graphsurgeon as gs

OptionalInputs = frozenset[str]
"""Names of the inputs that are given."""
_TYPES = {int: "int", float: "float", str: "string"}


def functions_of(nodes: Iterable[gs.Node], opset: int, component: str) -> list[onnx.FunctionProto]:
    """The functions of the own operators among ``nodes``.

    Args:
        opset: the default domain's.

    Raises:
        BadModelError: two nodes use one operator in different forms.
    """
    forms: dict[str, OptionalInputs] = {}
    for node in nodes:
        operator = find_operator(node.domain, node.op)
        if node.domain != OWN_DOMAIN or operator is None:
            continue
        form = frozenset(name for name, tensor in zip(operator.inputs, node.inputs, strict=False) if tensor.name)
        if forms.setdefault(node.op, form) != form:
            raise BadModelError(
                f"sdort.{node.op} is used with {sorted(form)} and with {sorted(forms[node.op])}; a model has one form",
                component=component,
                node=node.name,
            )
    return [own_function(op, form, opset) for op, form in sorted(forms.items())]


def own_function(op: str, form: OptionalInputs, opset: int) -> onnx.FunctionProto:
    """The function of one of sdort's own operators in one form.

    The parameters keep their positions, absent ones too: a call leaves them empty.

    Raises:
        LookupError: there is no such operator.
    """
    operator = find_operator(OWN_DOMAIN, op)
    if operator is None:
        raise LookupError(f"no file of sdort/operators/ is {OWN_DOMAIN}.{op}")
    return function_of(operator, form, opset)


def function_of(operator: Operator, form: OptionalInputs, opset: int) -> onnx.FunctionProto:
    """The function of an operator in one form; its attributes are those of the call."""
    attributes = {name: AttributeReference(_type_of(default)) for name, default in operator.attributes.items()}
    inputs = [NOTHING if name in form else None for name in operator.inputs]
    body = operator.definition(operator.call(inputs, [True] * len(operator.outputs), attributes))
    parameters = ", ".join(_parameter(name, default) for name, default in operator.attributes.items())
    return onnx.parser.parse_function(
        f'<domain: "{operator.domain}", opset_import: ["": {opset}, "{MICROSOFT}": 1]>\n'
        f"{operator.name} {f'<{parameters}> ' if parameters else ''}({', '.join(operator.inputs)}) => "
        f"({', '.join(operator.outputs)}) {{\n{body}\n}}"
    )


def _type_of(default: Any) -> str:
    """The ONNX type of an attribute; whole numbers are what has no default, as counts."""
    return "int" if default is REQUIRED else _TYPES[type(default)]


def _parameter(name: str, default: Any) -> str:
    return name if default is REQUIRED else f"{name}: {_type_of(default)} = {default}"


def expand_own_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the bodies of own operators in the place of their calls."""
    own = [(f.domain, f.name) for f in model.functions if f.domain == OWN_DOMAIN]
    return onnx.inliner.inline_selected_functions(model, own) if own else model
