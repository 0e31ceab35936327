"""Bring a graph to the opset in which patterns are written, and back to the one that a target loads.

Whether an operator means the same in two opsets is read from ONNX's schemas: same inputs, same attributes with the same
defaults. The few that changed are converted by the functions of this file; anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs
from onnx import defs, helper

from sdort.errors import BadModelError
from sdort.model import Model
from sdort.rewrite.pattern import OPSET

Converter = Callable[[Model, gs.Node, int], None]


def to_pattern_opset(model: Model) -> None:
    """Convert the model to :data:`sdort.rewrite.pattern.OPSET`.

    Raises:
        BadModelError: an operator changed its meaning since the model's opset in a way that is not known here.
    """
    opset = model.graph.opset
    for node in model.graph.nodes:
        if not node.domain:
            _upgrade(model, node, opset)
    set_opset(model, OPSET)


def set_opset(model: Model, opset: int) -> None:
    """Declare the default domain's opset; the nodes are as they should be already."""
    graph = model.graph
    others = [d for d in graph.import_domains or [] if d.domain not in ("", "ai.onnx")]
    graph.opset = opset
    graph.import_domains = [helper.make_opsetid("", opset), *others]


def to_target_opset(model: Model, opset: int) -> None:
    """Declare the target's opset after making sure that every operator is the same there.

    Raises:
        BadModelError: one is not.
    """
    for node in model.graph.nodes:
        if node.domain:
            continue
        if not defs.has(node.op, opset) or not _alike(node.op, opset, OPSET, set(node.attrs)):
            raise BadModelError(
                f"{node.op} of opset {OPSET} cannot be expressed in opset {opset}, the newest the target loads",
                component=model.component,
                node=node.name,
                hint="Choose another --provider, or report the model.",
            )
    set_opset(model, opset)


def _upgrade(model: Model, node: gs.Node, opset: int) -> None:
    for limit, convert in CONVERTERS.get(node.op, ()):
        if opset < limit:
            convert(model, node, opset)
            return
    if not defs.has(node.op, OPSET) or not _alike(node.op, opset, OPSET, set(node.attrs)):
        raise BadModelError(
            f"{node.op} of opset {opset} has changed since and sdort does not know how to convert it",
            component=model.component,
            node=node.name,
            hint="Export the model again with opset 17 or later.",
        )


def _alike(op: str, older: int, newer: int, used: set[str]) -> bool:
    """Whether ``op`` with the attributes ``used`` means the same in both opsets, by its schemas."""
    old, new = (defs.get_schema(op, version) for version in (older, newer))
    if old.since_version == new.since_version:
        return True
    if old.deprecated or new.deprecated:
        return False
    if not used <= set(old.attributes) or not set(old.attributes) <= set(new.attributes):
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
