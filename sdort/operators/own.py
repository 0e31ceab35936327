"""The operators of sdort's own domain, each with a function body, so that any runtime has them.

Where the custom operator library is registered, its kernel runs. Elsewhere ONNX Runtime expands the body, which is made
of what the execution provider has kernels for; on the CPU those come with the library.

A function is found by its name alone, and its body cannot ask whether an optional input is there. So the body is
written for the form in which a model uses the operator, and a model has one form of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx
import onnx.inliner
import onnx_graphsurgeon as gs

from sdort.errors import BadModelError
from sdort.operators.microsoft import OWN_DOMAIN

Form = frozenset[str]
"""Names of the inputs that are given."""


def _group_norm(form: Form) -> str:
    """S = Concat(X, X2) + skip + bias + embedding; Y = its group normalization, with SiLU where activation is 1.

    X, X2 and skip are channels-last; embedding is (N, C) or (N, 1, 1, C); S and Y are (N, H, W, C).
    """
    lines = ["joined = Concat <axis = -1> (X, X2)" if "X2" in form else "joined = Identity (X)"]
    last = "joined"
    if "embedding" in form:
        lines += ["pixel_shape = Constant <value_ints = [0, 1, 1, -1]> ()"]
        lines += ["pixel = Reshape (embedding, pixel_shape)"]
    for name, tensor in (("skip", "skip"), ("bias", "bias"), ("embedding", "pixel")):
        if name in form:
            lines.append(f"with_{name} = Add ({last}, {tensor})")
            last = f"with_{name}"
    attributes = "groups: int = @groups, activation: int = @activation, epsilon: float = @epsilon, channels_last = 1"
    return "\n".join([*lines, f"S = Identity ({last})", f"Y = com.microsoft.GroupNorm <{attributes}> (S, gamma, beta)"])


PARAMETERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "GroupNorm": (("X", "X2", "gamma", "beta", "skip", "bias", "embedding"), ("Y", "S")),
}
"""Inputs and outputs, in the order of the library's kernels (custom_ops/ops/)."""

_BODIES: dict[str, tuple[str, Callable[[Form], str]]] = {
    "GroupNorm": ("groups, activation: int = 0, epsilon: float = 0.00001, channels_last: int = 1", _group_norm),
}
"""Attributes with their defaults, and the body of a form."""


def functions_of(nodes: Iterable[gs.Node], opset: int, component: str) -> list[onnx.FunctionProto]:
    """The functions of the own operators among ``nodes``.

    Args:
        opset: the default domain's.

    Raises:
        BadModelError: two nodes use one operator in different forms.
    """
    forms: dict[str, Form] = {}
    for node in nodes:
        if node.domain != OWN_DOMAIN or node.op not in PARAMETERS:
            continue
        names = PARAMETERS[node.op][0]
        form = frozenset(name for name, tensor in zip(names, node.inputs, strict=False) if tensor.name)
        if forms.setdefault(node.op, form) != form:
            raise BadModelError(
                f"sdort.{node.op} is used with {sorted(form)} and with {sorted(forms[node.op])}; a model has one form",
                component=component,
                node=node.name,
            )
    return [make_function(op, form, opset) for op, form in sorted(forms.items())]


def make_function(op: str, form: Form, opset: int) -> onnx.FunctionProto:
    """The function of one operator in one form.

    The parameters keep their positions, absent ones too: a call leaves them empty.
    """
    inputs, outputs = PARAMETERS[op]
    attributes, body = _BODIES[op]
    return onnx.parser.parse_function(
        f'<domain: "{OWN_DOMAIN}", opset_import: ["": {opset}, "com.microsoft": 1]>\n'
        f"{op} <{attributes}> ({', '.join(inputs)}) => ({', '.join(outputs)}) {{\n{body(form)}\n}}"
    )


def expand(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the bodies of own operators in the place of their calls."""
    own = [(f.domain, f.name) for f in model.functions if f.domain == OWN_DOMAIN]
    return onnx.inliner.inline_selected_functions(model, own) if own else model
