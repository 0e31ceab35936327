"""Operators that a target lacks, by what ONNX's specification defines them: a function body of simpler operators.

The last resort, after the lowerings of ``fusions/``, which know better forms. The bodies come with the onnx package's
schemas; many depend on the node's attributes and on which inputs it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
import onnx.inliner
import onnx_graphsurgeon as gs
from onnx import AttributeProto, defs, helper

from sdort.onnx_io.load import from_proto
from sdort.rewrite.apply import Outcome
from sdort.rewrite.editor import Editor
from sdort.rewrite.inference.facts import plain_attributes

STEP_NAME = "expand"
Lacks = Callable[[gs.Node], "str | None"]
"""Says why the target does not run a node; None if it does."""


@dataclass(frozen=True)
class Expansion:
    """A node that was expanded."""

    node: str
    reason: str
    """Why the target does not run it."""
    original: bool
    """Whether the model itself asked for it, and no pass had made it."""


def run(editor: Editor, lacks: Lacks, expansions: list[Expansion] | None = None) -> int:
    """Replace every node that the target lacks and the specification defines, and what is lacking in its body.

    Args:
        expansions: takes what was expanded.

    Returns:
        The number of nodes that were expanded.
    """
    expanded: list[Expansion] = [] if expansions is None else expansions
    before = len(expanded)
    pending = list(editor.graph.nodes)
    while pending:
        node = pending.pop()
        reason = lacks(node) if not node.domain and node.outputs else None
        body = _body(editor, node) if reason else None
        if reason is None or body is None:
            continue
        expanded.append(Expansion(node.name, reason, node.name not in editor.origins))
        pending.extend(_put(editor, node, body))
    if len(expanded) > before:
        editor.finish()
    return len(expanded) - before


def outcome(expansions: Sequence[Expansion]) -> Outcome:
    """The expansions as those of a fusion, with the target's reasons as ``declined``."""
    count = len(expansions)
    return Outcome(STEP_NAME, count, count, dict(Counter(expansion.reason for expansion in expansions)))


def _body(editor: Editor, node: gs.Node) -> gs.Graph | None:
    """The node's definition with the node's own inputs and outputs as ``x0``, ``y0``; None if there is none to use."""
    if not defs.has(node.op, editor.graph.opset):
        return None
    schema = defs.get_schema(node.op, editor.graph.opset)
    types = [editor.facts.type_proto(t) if t.name else onnx.TypeProto() for t in node.inputs]
    # The package's stubs lack both.
    defined = schema.has_function or schema.has_context_dependent_function  # type: ignore[attr-defined]
    if not defined or None in types:
        return None
    inputs = [f"x{i}" if t.name else "" for i, t in enumerate(node.inputs)]
    outputs = [f"y{i}" if t.name else "" for i, t in enumerate(node.outputs)]
    call = helper.make_node(node.op, inputs, outputs, **plain_attributes(node))
    # The inliner forgets the defaults of attributes that a body refers to.
    absent = [attribute for name, attribute in schema.attributes.items() if name not in node.attrs]
    call.attribute.extend(a.default_value for a in absent if a.default_value.type != AttributeProto.UNDEFINED)
    graph = helper.make_graph(
        [call],
        node.op,
        # The inliner asks for the types of absent inputs too.
        [onnx.ValueInfoProto(name=name, type=kind) for name, kind in zip(inputs, types, strict=True)],
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", editor.graph.opset)], ir_version=10)
    body = onnx.inliner.inline_selected_functions(model, [("", node.op)], inline_schema_functions=True)
    if any(attribute.op_type == node.op or _has_subgraph(attribute) for attribute in body.graph.node):
        return None
    return _parsed(editor, node, body)


def _has_subgraph(node: onnx.NodeProto) -> bool:
    return any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute)


def _parsed(editor: Editor, node: gs.Node, body: onnx.ModelProto) -> gs.Graph:
    present = [info for info in body.graph.input if info.name]
    del body.graph.input[:]
    body.graph.input.extend(present)
    for info in body.graph.output:  # loading asks for types; the editor infers its own
        index = int(info.name[1:])
        kind = editor.facts.type_proto(node.outputs[index])
        info.type.CopyFrom(kind or helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None))
    return from_proto(body, None, editor.model.component).graph


def _put(editor: Editor, node: gs.Node, body: gs.Graph) -> list[gs.Node]:
    """Let the body's nodes compute the node's outputs from its inputs. Returns the new nodes."""
    inputs, outputs = list(node.inputs), list(node.outputs)
    node.inputs.clear()
    node.outputs.clear()
    tensors: dict[str, gs.Tensor] = {tensor.name: inputs[int(tensor.name[1:])] for tensor in body.inputs}
    ends = {tensor.name: outputs[int(tensor.name[1:])] for tensor in body.outputs}
    made = []
    for part in body.nodes:
        hint = f"{node.name}_{part.op}"
        read = [_operand(editor, tensor, tensors) for tensor in part.inputs]
        written = [ends[t.name] if t.name in ends else _fresh(editor, t, hint) for t in part.outputs]
        new = editor.node(part.op, read, dict(part.attrs), outputs=written, hint=hint)
        editor.origins[new.name] = (*editor.origins.get(node.name, ()), STEP_NAME)
        tensors.update({t.name: w for t, w in zip(part.outputs, written, strict=True) if t.name})
        made.append(new)
    return made


def _fresh(editor: Editor, tensor: gs.Tensor, hint: str) -> gs.Tensor:
    return gs.Variable(editor.name(hint)) if tensor.name else gs.Variable.empty()


def _operand(editor: Editor, tensor: gs.Tensor, tensors: dict[str, gs.Tensor]) -> gs.Tensor:
    if isinstance(tensor, gs.Constant):
        return editor.constant(tensor._values, "constant")
    return tensors[tensor.name] if tensor.name else gs.Variable.empty()
