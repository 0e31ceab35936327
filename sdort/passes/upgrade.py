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
from sdort.graph.domains import is_runtimes_own
from sdort.graph.model import Model
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
    for node in [n for n in model.graph.nodes if not n.domain]:
        for limit, restate in BY_SHAPE.get(node.op, ()):
            changes += opset < limit and restate(editor, node)
    editor.finish()
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
    if is_runtimes_own("", node.op, opset):
        return
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
    if not _has_values(node, target):
        return False
    since = _since(node.op, opset), _since(node.op, target)
    if None in since or since[0] == since[1]:
        return None not in since
    if node.op == "GridSample":
        return _grid_sample(node, target)
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


def _has_values(node: gs.Node, opset: int) -> bool:
    """Whether the words among the node's attributes are ones that its operator knows in an opset."""
    opsets = [VALUES[key] for name, value in node.attrs.items() if (key := (node.op, name, str(value))) in VALUES]
    return all(opset in known for known in opsets)


VALUES = {
    ("Pad", "mode", "wrap"): range(19, 100),
    ("Resize", "coordinate_transformation_mode", "tf_half_pixel_for_nn"): range(13),
}
"""Words that an attribute has in some opsets only: no schema lists them. Of Resize ONNX Runtime takes opset 19's
half_pixel_symmetric in opset 18 too (tests/optimizer/test_backend_nodes.py)."""


def _grid_sample(node: gs.Node, opset: int) -> bool:
    """Since opset 20 GridSample takes volumes too, and calls the modes of images what it calls those of volumes."""
    words = GRID_MODES if opset >= 20 else {new: old for old, new in GRID_MODES.items()}
    if opset < 20 and len(node.inputs[0].shape or ()) == 5:
        return False
    mode = node.attrs.get("mode", "linear" if opset < 20 else "bilinear")
    node.attrs["mode"] = words.get(mode, mode)
    return True


GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def _keep(model: Model, node: gs.Node, opset: int) -> None:
    """Leave a node that is converted when shapes are known: :data:`BY_SHAPE`."""


def _dropout(model: Model, node: gs.Node, opset: int) -> None:
    """The ratio is an input; of a Dropout that does not train it says nothing."""
    node.attrs.pop("ratio", None)


def _batch_normalization(model: Model, node: gs.Node, opset: int) -> None:
    """Only who trains asks for the statistics; these are other outputs since opset 14."""
    if any(tensor.name for tensor in node.outputs[1:]):
        raise BadModelError(
            f"this BatchNormalization of opset {opset} trains: it gives new statistics",
            component=model.component,
            node=node.name,
            hint="Export the model again in evaluation mode: torch's model.eval().",
        )


def _roi_align(model: Model, node: gs.Node, opset: int) -> None:
    """Before opset 16 coordinates were not shifted by half a pixel, which is the default since."""
    node.attrs["coordinate_transformation_mode"] = "output_half_pixel"


def _flattened_softmax(editor: Editor, node: gs.Node) -> bool:
    """Before opset 13 all axes from ``axis`` on were one: the same as the last alone where the others are 1."""
    shape, axis = editor.shape(node.inputs[0]), node.attrs.get("axis", 1)
    if shape is not None and all(size == 1 for size in shape[axis % len(shape) : -1]):
        changed, node.attrs["axis"] = axis != -1, -1
        return bool(changed)
    (source, *_), (result, *_) = node.inputs, node.outputs
    node.inputs.clear()
    node.outputs.clear()
    rows = editor.op("Flatten", [source], {"axis": axis})
    shares = editor.op(node.op, [rows], {"axis": -1})
    editor.node("Reshape", [shares, editor.op("Shape", [source])], outputs=[result])
    return True


def _group_normalization(editor: Editor, node: gs.Node) -> bool:
    """Before opset 21 scale and bias were one number a group: they are repeated for its channels."""
    groups, shape = node.attrs["num_groups"], editor.shape(node.inputs[0])
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    if not isinstance(channels, int) or channels % groups:
        raise BadModelError(
            f"this GroupNormalization of opset 18 has {groups} groups of {channels or 'an unknown number of'} channels",
            component=editor.model.component,
            node=node.name,
            hint=f"Export the model again with opset 21 to {OPSET}, or with a fixed number of channels.",
        )
    for index in (1, 2):
        column = editor.op("Unsqueeze", [node.inputs[index], editor.ints([1])])
        wide = editor.op("Expand", [column, editor.ints([groups, channels // groups])])
        node.inputs[index] = editor.op("Reshape", [wide, editor.ints([-1])])
    return True


BY_SHAPE: dict[str, tuple[tuple[int, Callable[[Editor, gs.Node], bool]], ...]] = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), ((13, _flattened_softmax),)),
    "GroupNormalization": ((21, _group_normalization),),
}
"""Conversions for which shapes have to be known, each of what is below an opset."""

CONVERTERS: dict[str, tuple[tuple[int, Converter], ...]] = {
    **dict.fromkeys(
        (
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL1",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceLogSum",
            "ReduceLogSumExp",
        ),
        ((18, _axes_to_input),),
    ),
    "ReduceSum": ((13, _axes_to_input),),
    "Unsqueeze": ((13, _axes_to_input),),
    "Squeeze": ((13, _axes_to_input),),
    "Split": ((18, _split),),
    **{op: ((limit, _keep),) for op, ((limit, _),) in BY_SHAPE.items()},
    "Dropout": ((12, _dropout),),
    "BatchNormalization": ((14, _batch_normalization),),
    "RoiAlign": ((16, _roi_align),),
}
