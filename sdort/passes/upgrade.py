"""Bring a graph to the opset in which patterns are written, and back to the one that a target loads.

Whether an operator means the same in two opsets is read from ONNX's schemas: same inputs, same attributes with the same
defaults. The few that changed are converted by the functions of this file, newer ones are expanded by their definition;
anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import onnx_graphsurgeon as gs
from onnx import defs, helper

from sdort.errors import BadModelError
from sdort.model.model import Model
from sdort.passes import expand
from sdort.rewrite.editor import Editor
from sdort.rewrite.pattern import OPSET

HINT = "Choose another --provider, or report the model."
"""The advice where a target does not run an operator."""
Converter = Callable[[Model, gs.Node, int], None]


def run(editor: Editor) -> int:
    """Convert the graph to :data:`sdort.rewrite.pattern.OPSET`; returns how many operators are written otherwise.

    Raises:
        BadModelError: an operator changed its meaning since the model's opset in a way that is not known here.
    """
    model, opset, changes = editor.model, editor.graph.opset, 0
    if opset > OPSET:
        changes += expand.run(editor, lambda node: None if _restate(node, opset, OPSET) else "it is newer")
    for node in model.graph.nodes:
        if not node.domain:
            before = len(node.inputs), dict(node.attrs)
            _upgrade(model, node, opset)
            changes += (len(node.inputs), node.attrs) != before
    set_opset(model, OPSET)
    editor.refresh()
    return changes


def set_opset(model: Model, opset: int) -> None:
    """Declare the default domain's opset; the nodes are as they should be already."""
    graph = model.graph
    others = [d for d in graph.import_domains or [] if d.domain not in ("", "ai.onnx")]
    graph.opset = opset
    graph.import_domains = [helper.make_opsetid("", opset), *others]


def inexpressible(node: gs.Node, opset: int) -> str | None:
    """The reason why a node of :data:`sdort.rewrite.pattern.OPSET` means something else in ``opset``, or nothing."""
    if node.domain or _restate(node, OPSET, opset):
        return None
    return f"{node.op} of opset {OPSET} cannot be expressed in opset {opset}, the newest the target loads"


def _upgrade(model: Model, node: gs.Node, opset: int) -> None:
    for limit, convert in CONVERTERS.get(node.op, ()):
        if opset < limit:
            convert(model, node, opset)
            return
    if not _restate(node, opset, OPSET):
        hint = f"Export the model again with opset 17 to {OPSET}."
        raise BadModelError(
            f"{node.op} of opset {opset} has changed since and sdort does not know how to convert it"
            if opset < OPSET
            else f"{node.op} as opset {opset} has it cannot be expressed in opset {OPSET}",
            component=model.component,
            node=node.name,
            hint=hint,
        )


def _restate(node: gs.Node, opset: int, target: int) -> bool:
    """Whether the node means the same in another opset, by its operator's schemas; it may lose a stated default."""
    since = _since(node.op, opset), _since(node.op, target)
    if None in since or since[0] == since[1]:
        return None not in since
    before, after = (defs.get_schema(node.op, version) for version in (opset, target))
    if before.deprecated or after.deprecated:
        return False
    stated = {name for name in node.attrs if name not in after.attributes}
    if any(name not in before.attributes or node.attrs[name] != _default(before, name) for name in stated):
        return False
    if not _alike(*sorted((before, after), key=lambda schema: int(schema.since_version))):
        return False
    last = max((index + 1 for index, tensor in enumerate(node.inputs) if tensor.name), default=0)
    if last > after.max_input:
        return False
    for name in stated:
        del node.attrs[name]
    return True


@lru_cache(maxsize=512)
def _since(op: str, opset: int) -> int | None:
    """The opset in which the operator became what it is in ``opset``; None if that does not have it."""
    return int(defs.get_schema(op, opset).since_version) if defs.has(op, opset) else None


def _default(schema: defs.OpSchema, name: str) -> object:
    value = schema.attributes[name].default_value
    default = helper.get_attribute_value(value) if value.type else None
    return default.decode() if isinstance(default, bytes) else default


def _alike(old: defs.OpSchema, new: defs.OpSchema) -> bool:
    """Whether what both have means the same: the newer's other attributes are by default as if they were not there."""
    if not set(old.attributes) <= set(new.attributes):
        return False
    if any(old.attributes[a].default_value != new.attributes[a].default_value for a in old.attributes):
        return False
    return [i.name for i in old.inputs] == [i.name for i in new.inputs][: len(old.inputs)]


def _ints(node: gs.Node, values: list[int], hint: str) -> gs.Constant:
    return gs.Constant(f"{node.outputs[0].name}.{hint}", np.array(values, np.int64))


def _axes_to_input(model: Model, node: gs.Node, opset: int) -> None:
    axes = node.attrs.pop("axes", None)
    if axes is not None:
        node.inputs.append(_ints(node, list(axes), "axes"))


def _split(model: Model, node: gs.Node, opset: int) -> None:
    sizes = node.attrs.pop("split", None)
    if sizes is not None:
        node.inputs.append(_ints(node, list(sizes), "split"))
    if len(node.inputs) < 2:
        node.attrs["num_outputs"] = len(node.outputs)


def _softmax(model: Model, node: gs.Node, opset: int) -> None:
    """Before opset 13 Softmax flattened all axes from ``axis`` on: the same thing only for the last one."""
    shape = node.inputs[0].shape
    axis = node.attrs.get("axis", 1)
    if axis != -1 and (shape is None or axis != len(shape) - 1):
        raise BadModelError(
            f"Softmax of opset {opset} over axis {axis} is not over the last axis",
            component=model.component,
            node=node.name,
            hint="Export the model again with opset 17 or later.",
        )
    node.attrs["axis"] = -1


CONVERTERS: dict[str, tuple[tuple[int, Converter], ...]] = {
    **dict.fromkeys(
        ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
        ((18, _axes_to_input),),
    ),
    "ReduceSum": ((13, _axes_to_input),),
    "Unsqueeze": ((13, _axes_to_input),),
    "Squeeze": ((13, _axes_to_input),),
    "Split": ((18, _split),),
    "Softmax": ((13, _softmax),),
}
