"""A node is inferred anew when anything that its facts come from is another, and only then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import edit

from sdort.graph.fact import Fact
from sdort.rewrite.editor import Editor
from sdort.rewrite.inference.facts import Facts

GRAPH = """g (float[2, 3] x, float[5, 7] z, int64[2] sizes) => (float[a, b] y) {
    m = Transpose <perm = [1, 0]> (x)
    n = Reshape (m, sizes)
    y = Identity (n)
    c = Concat <axis = 0> (x, x)
    s = Shape <start = 1, end = 2> (x)
}"""


def node(editor: Editor, op: str) -> gs.Node:
    return next(each for each in editor.graph.nodes if each.op == op)


def other_permutation(editor: Editor) -> gs.Node:
    found = node(editor, "Transpose")
    found.attrs["perm"] = [0, 1]
    return found


def fewer_attributes(editor: Editor) -> gs.Node:
    found = node(editor, "Shape")
    del found.attrs["start"]
    return found


def other_operator(editor: Editor) -> gs.Node:
    found = node(editor, "Transpose")
    found.op = "Shape"
    return found


def other_domain(editor: Editor) -> gs.Node:
    found = node(editor, "Identity")
    found.domain = "nobody's"
    return found


def other_input(editor: Editor) -> gs.Node:
    found = node(editor, "Transpose")
    found.inputs[0] = editor.graph.inputs[1]
    return found


def fewer_inputs(editor: Editor) -> gs.Node:
    found = node(editor, "Concat")
    del found.inputs[1]
    return found


def an_input_left_out(editor: Editor) -> gs.Node:
    """Of neither is anything known."""
    found = editor.node("Squeeze", [node(editor, "Transpose").outputs[0], gs.Variable("axes")])
    found.inputs[1] = gs.Variable("")
    return found


def other_output(editor: Editor) -> gs.Node:
    found = node(editor, "Identity")
    found.outputs[0].name = "other"
    return found


def known_elements(editor: Editor) -> gs.Node:
    sizes = editor.graph.inputs[2]
    before = editor.facts.of(sizes)
    editor.facts.set(sizes, Fact(before.dtype, before.shape, (6, 1)))
    return node(editor, "Reshape")


CHANGES: list[Callable[[Editor], gs.Node]] = [
    other_permutation, fewer_attributes, other_operator, other_domain, other_input, fewer_inputs, an_input_left_out,
    other_output, known_elements,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_node_that_changed_is_inferred_anew(change: Callable[[Editor], gs.Node]) -> None:
    editor = edit(GRAPH)
    for each in editor.graph.nodes:
        editor.facts.infer(each)
    changed = change(editor)
    calls = counted(editor.facts)
    editor.facts.infer(changed)
    editor.facts.infer(changed)
    assert calls == [changed]
    fresh = Facts(editor.graph.opset, "test")
    for tensor in changed.inputs:
        fresh.set(tensor, editor.facts.of(tensor))
    fresh.infer(changed)
    [output] = changed.outputs
    assert fresh.of(output).dtype in (editor.facts.of(output).dtype, None)
    assert changed.domain or str(editor.facts.of(output).shape) == str(fresh.of(output).shape)


def counted(facts: Facts) -> list[Any]:
    """The nodes whose facts are computed from now on."""
    calls: list[Any] = []
    by_rule = facts._by_rule

    def count(node: gs.Node) -> Sequence[Fact] | None:
        calls.append(node)
        return by_rule(node)

    facts._by_rule = count  # type: ignore[method-assign]
    return calls


def test_what_did_not_change_is_not_inferred_again() -> None:
    editor = edit(GRAPH)
    calls = counted(editor.facts)
    for each in editor.graph.nodes:
        editor.facts.infer(each)
    assert calls == []
