"""Putting a fusion's After in the place of a match."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx_graphsurgeon as gs

from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.symbolic import Shape
from sdort.graph.weights import cast_values
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import Support
from sdort.rewrite.match import Match, Refusal, decline, is_float, refuse
from sdort.rewrite.pattern import Capture, Pattern, PatternNode


def substitute(
    editor: Editor, before: Pattern, after: Pattern, match: Match, derived: dict[str, Any], support: Support | None
) -> Refusal | None:
    """Instantiate After in place of the match; nothing has changed where it is refused.

    It is refused where the target does not run one of its nodes, and where a result would be of another shape.
    """
    circular = _reads_removed(editor, before, after, match)
    if circular:
        what = "a size of what" if before.types[circular].kind == "i" else "what"
        return refuse(f"the result would need {what} it replaces", circular)
    tensors: dict[str, gs.Tensor] = dict(match.tensors)
    tensors.update({k: v for k, v in derived.items() if isinstance(v, gs.Tensor)})
    tensors.update({k: editor.constant(v, k) for k, v in after.values.items()})
    attrs = {**match.attrs, **derived}
    built = _bring_to_precision(editor, after, match, tensors)
    read = after.read
    for node in after.nodes:
        inputs = [tensors[n] if n else gs.Variable.empty() for n in node.inputs]
        values = {k: attrs[v.name] if isinstance(v, Capture) else v for k, v in node.attrs.items()}
        values = {k: v for k, v in values.items() if v is not None}
        made = editor.node(node.op, inputs, values, outputs=len(node.outputs), domain=node.domain, hint=node.op)
        tensors.update({n: t for n, t in zip(node.outputs, made.outputs, strict=True) if n})
        built.append(made)
        _unname(made, node, read)
        reason = support.unsupported(made, editor) if support else None
        if reason:
            _discard(editor, built)
            return Refusal(reason, applicable=False, by_target=True)
    for name in (n for n in after.outputs if n in match.tensors):
        if _contradict(editor.shape(match.tensors[name]), editor.shape(tensors[name])):
            _discard(editor, built)
            return decline("its result has another shape", match.tensors[name].name)
    for node in match.removed:
        node.inputs.clear()
    for name in (n for n in after.outputs if n in match.tensors):
        built += _take_over(editor, match.tensors[name], tensors[name])
    for node in match.removed:
        node.outputs.clear()
    earlier = [step for node in match.nodes.values() for step in editor.origins.get(node.name, ())]
    for made in built:
        _trim(editor, made)
        editor.place(made)
        editor.origins[made.name] = tuple(dict.fromkeys((*earlier, *editor.origins.get(made.name, ()))))
    return None


def _unname(made: gs.Node, node: PatternNode, read: Collection[str]) -> None:
    """Take the names of optional outputs that After does not read: kernels may have a node only without them."""
    for index, name in enumerate(node.outputs):
        if index and name not in read:
            made.outputs[index] = gs.Variable.empty()


def _contradict(before: Shape | None, after: Shape | None) -> bool:
    """Whether two shapes cannot be one. A number of a higher rank than what it is added to makes such a difference."""
    if before is None or after is None:
        return False
    pairs = zip(before, after, strict=False)
    return len(before) != len(after) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def _bring_to_precision(editor: Editor, after: Pattern, match: Match, tensors: dict[str, gs.Tensor]) -> list[gs.Node]:
    """Give After's numbers, and where the match is of several types all that it reads, the precision of the match."""
    precision = match.precision()
    casts: list[gs.Node] = []
    if precision is None:
        return casts
    used = {n for node in after.nodes for n in node.inputs if n in tensors} if match.through_casts else {*after.values}
    for name in sorted(used):
        tensor, dtype = tensors[name], editor.dtype(tensors[name])
        if dtype is None or dtype == precision or not is_float(dtype):
            continue
        if isinstance(tensor, gs.Constant):
            tensors[name] = editor.constant(cast_values(tensor._values, precision), tensor.name)
        else:
            casts.append(editor.cast(tensor, precision))
            tensors[name] = casts[-1].outputs[0]
    return casts


def _reads_removed(editor: Editor, before: Pattern, after: Pattern, match: Match) -> str | None:
    """An input of After that is computed from what the rewrite removes: sizes, or from one of several outputs."""
    removed = {id(node) for node in match.removed}
    first = min(editor.position(node) for node in match.removed)
    used = {n for node in after.nodes for n in node.inputs}
    for name in before.inputs:
        if name not in used or (before.types[name].kind != "i" and len(before.outputs) == 1):
            continue
        stack, seen = [match.tensors[name]], set[int]()
        while stack:
            for node in stack.pop().inputs:
                if id(node) in removed:
                    return name
                if id(node) not in seen and editor.position(node) >= first:
                    seen.add(id(node))
                    stack.extend(node.inputs)
    return None


def _discard(editor: Editor, nodes: list[gs.Node]) -> None:
    """Take out nodes that were appended last; the graph is not searched for them."""
    for node in reversed(nodes):
        node.inputs.clear()
        node.outputs.clear()
        last = editor.graph.nodes.pop()
        assert last is node


def _take_over(editor: Editor, old: gs.Tensor, new: gs.Tensor) -> list[gs.Node]:
    """Let the producer of ``new`` produce ``old`` instead, so that readers and graph outputs stay as they are.

    Returns:
        The Cast that this took where the two are of different floating-point types.
    """
    before, after = editor.dtype(old), editor.dtype(new)
    if before is not None and after is not None and before != after and is_float(before) and is_float(after):
        return [editor.cast(new, before, output=old)]
    (node,) = new.inputs
    old.inputs.clear()
    position = next(i for i, t in enumerate(node.outputs) if t is new)
    node.outputs[position] = old
    for consumer in list(new.outputs):
        for index, tensor in enumerate(consumer.inputs):
            if tensor is new:
                consumer.inputs[index] = old
    editor.facts.set(old, editor.facts.of(new))
    return []


def _trim(editor: Editor, node: gs.Node) -> None:
    """Leave optional outputs that nobody reads away: the last ones go, those before another lose their name.

    So do the last ones of sdort's own operators: a call of a function has as many outputs as the function.
    """
    for index in range(len(node.outputs) - 1, 0, -1):
        tensor = node.outputs[index]
        if tensor.name and (tensor.outputs or editor.is_output(tensor)):
            continue
        if index == len(node.outputs) - 1 and node.domain != OWN_DOMAIN:
            node.outputs.pop()
        else:
            node.outputs[index] = gs.Variable.empty()
