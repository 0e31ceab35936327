"""What a worklist looks at again, cuts off and spends, step by step."""

from __future__ import annotations

import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import edit, operators

from sdort.graph.fact import Fact
from sdort.rewrite.editor import Editor
from sdort.rewrite.worklist import PER_NODE, SHAPE_ONLY, _readers, _Worklist, apply_rules


def waiting(work: _Worklist) -> list[str]:
    return sorted(node.outputs[0].name for node in work._waiting.values())


def named(editor: Editor) -> dict[str, gs.Node]:
    return {node.outputs[0].name: node for node in editor.graph.nodes}


VIEWS = {
    "Reshape": "Reshape ({}, shape)", "Flatten": "Flatten ({})", "Squeeze": "Squeeze ({}, none)",
    "Unsqueeze": "Unsqueeze ({}, none)", "Expand": "Expand ({}, shape)",
}  # fmt: skip


@pytest.mark.parametrize("op", [*sorted(SHAPE_ONLY), "Transpose", "Neg", "Identity"])
def test_readers_are_found_through_views(op: str) -> None:
    node = VIEWS.get(op, f"{op} ({{}})").format("a")
    editor = edit(f"""
        g (float[4, 6] x, int64[2] shape, int64[0] none) => (float[] y, float[] z) {{
            a = Neg (x)  b = {node}  y = Abs (b)  z = Sin (a)
        }}""")
    nodes = named(editor)
    work = _Worklist(editor, [])
    work._settled = {id(node) for node in editor.graph.nodes}
    work._push_readers(nodes["a"].outputs[0])
    assert waiting(work) == (["b", "y", "z"] if op in SHAPE_ONLY else ["b", "z"])
    assert work._settled == {id(node) for name, node in nodes.items() if name not in waiting(work)}


def test_views_of_another_domain_and_those_that_wait_already_are_not_looked_through() -> None:
    editor = edit("""
        g (float[4, 6] x, int64[2] shape) => (float[] y) { a = Neg (x)  b = Reshape (a, shape)  y = Abs (b) }""")
    nodes = named(editor)
    work = _Worklist(editor, [])
    work._queue(nodes["b"])
    work._push_readers(nodes["a"].outputs[0])
    assert waiting(work) == ["b"]
    other = _Worklist(editor, [])
    nodes["b"].domain = "elsewhere"
    other._push_readers(nodes["a"].outputs[0])
    assert waiting(other) == ["b"]


def test_whoever_reads_or_writes_what_changed_is_looked_at() -> None:
    editor = edit("g (float[4] x) => (float[4] y, float[4] z) { a = Neg (x)  b = Abs (a)  y = Sin (b)  z = Cos (b) }")
    nodes = named(editor)
    work = _Worklist(editor, [])
    editor.facts.changed.clear()
    editor.facts.set(nodes["b"].outputs[0], Fact(editor.dtype(nodes["a"].outputs[0]), (5,)))
    assert sorted(editor.facts.changed) == ["b"]
    work._push_changed()
    assert waiting(work) == ["b", "y", "z"]
    assert editor.facts.changed == {}


@pytest.mark.parametrize(
    ("start", "gone"),
    [("c", "ac"), ("a", ""), ("e", ""), ("d", "d"), ("cd", "acd"), ("f", "bf"), ("o", "")],
)
def test_what_nobody_reads_is_cut_off_with_what_was_only_there_for_it(start: str, gone: str) -> None:
    """``a`` is read by ``c`` alone, ``b`` by ``f`` and, at first, ``d``; ``o`` is an output that nobody reads."""
    more = "" if "f" in start else "  d = Sin (b)"
    editor = edit(f"""
        g (float[4] x) => (float[4] o) {{
            a = Neg (x)  c = Abs (a)  b = Cos (x)  f = Exp (b){more}  e = Tan (x)  o = Add (e, x)
        }}""")
    nodes = named(editor)
    work = _Worklist(editor, [])
    work._remove_dead([nodes[name] for name in start])
    assert {name for name, node in nodes.items() if not node.outputs} == set(gone)
    assert all(not nodes[name].inputs for name in gone)
    readers = {reader.outputs[0].name for reader in editor.graph.inputs[0].outputs}
    assert readers == {name for name in "abeo" if name not in gone}


def test_the_last_reader_of_a_tensor_is_looked_at() -> None:
    editor = edit("g (float[4] x) => (float[4] o) { a = Neg (x)  b = Abs (a)  c = Sin (a)  d = Cos (a)  o = Tan (b) }")
    nodes = named(editor)
    work = _Worklist(editor, [])
    work._remove_dead([nodes["c"]])
    assert waiting(work) == []  # two are left
    work._remove_dead([nodes["d"]])
    assert waiting(work) == ["b"]


def test_nodes_wait_once_and_in_order() -> None:
    editor = edit("g (float[4] x) => (float[4] o) { a = Neg (x)  b = Abs (a)  o = Tan (b) }")
    nodes = named(editor)
    work = _Worklist(editor, [])
    for name in "obao":
        work._queue(nodes[name])
    assert len(work._heap) == len(work._waiting) == 3
    cut = nodes["b"]
    cut.outputs.clear()
    other = _Worklist(editor, [])
    other._queue(cut)
    assert not other._heap
    assert _readers([nodes["a"].outputs[0], editor.graph.inputs[0]]) == [cut, nodes["a"]]


def test_a_rule_is_asked_of_standard_nodes_with_their_facts() -> None:
    asked: list[str] = []

    def ask(editor: Editor, node: gs.Node) -> bool:
        asked.append(node.op)
        assert editor.shape(node.outputs[0]) is not None
        return False

    def later(editor: Editor, node: gs.Node) -> bool:
        asked.append(f"then {node.op}")
        return False

    editor = edit("g (float[4] x) => (float[4] o) { a = Neg (x)  b = com.microsoft.QuickGelu (a)  o = Tan (b) }")
    assert apply_rules(editor, [ask, later]) == 0
    assert asked == ["Neg", "then Neg", "Tan", "then Tan"]


def test_the_first_rule_that_changes_a_node_ends_its_turn() -> None:
    calls: list[str] = []

    def to_abs(editor: Editor, node: gs.Node) -> bool:
        calls.append(f"first {node.op}")
        if node.op != "Neg":
            return False
        output, inputs = node.outputs[0], list(node.inputs)
        node.inputs.clear()
        editor.node("Abs", inputs, outputs=[output])
        return True

    def second(editor: Editor, node: gs.Node) -> bool:
        calls.append(f"second {node.op}")
        return False

    editor = edit("g (float[4] x) => (float[4] o) { a = Neg (x)  o = Tan (a) }")
    assert apply_rules(editor, [to_abs, second]) == 1
    assert calls[0] == "first Neg"
    assert "second Neg" not in calls
    assert {"second Abs", "second Tan", "first Abs"} <= set(calls)
    assert operators(editor) == {"Abs": 1, "Tan": 1}


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_changes_of_a_graph_are_bounded_by_its_nodes(nodes: int) -> None:
    body = "  ".join(f"t{i + 1} = Neg (t{i})" for i in range(nodes))
    editor = edit(f"g (float[4] t0) => (float[4] t{nodes}) {{ {body} }}")

    def _again(editor: Editor, node: gs.Node) -> bool:
        return True

    work = _Worklist(editor, [])
    for _ in range(PER_NODE * (nodes + 1)):
        work._spend(_again, editor.graph.nodes[0])
    with pytest.raises(RuntimeError, match=r"undo each other, again at Neg 'Neg\.0' among them"):
        work._spend(_again, editor.graph.nodes[0])


def test_a_change_wakes_its_neighbours_and_cuts_off_what_it_no_longer_reads() -> None:
    """The sum becomes an Abs of its first summand: ``d`` has one reader left, and nobody reads ``f``."""
    editor = edit("""
        g (float[4] x) => (float[4] o, float[4] p, float[4] q) {
            a = Neg (x)  d = Sin (x)  f = Cos (x)  b = Sum (a, d, f)  c = Exp (b)  o = Tan (c)
            e = Erf (d)  p = Tanh (e)  s = Sqrt (a)  q = Sigmoid (s)
        }""")
    nodes = named(editor)

    def to_abs(editor: Editor, node: gs.Node) -> bool:
        output, first = node.outputs[0], node.inputs[0]
        node.inputs.clear()
        inner = editor.op("Relu", [first])
        editor.op("Floor", [inner])
        editor.node("Abs", [inner], outputs=[output])
        return True

    work = _Worklist(editor, [to_abs])
    work._settled = {id(node) for node in editor.graph.nodes}
    left = work._left
    assert work._visit(nodes["b"])
    assert work._left == left - 1
    assert sorted(node.op for node in work._waiting.values()) == ["Abs", "Erf", "Exp", "Floor", "Relu"]
    assert not work._settled & set(work._waiting)
    assert not nodes["f"].outputs
    assert nodes["a"].outputs
    assert nodes["d"].outputs
    nodes["c"].domain = "elsewhere"
    assert not work._visit(nodes["c"])


def test_a_sweep_infers_what_looks_different_and_then_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    inferred: list[str] = []
    editor = edit("g (float[4] x) => (float[4] o) { a = Neg (x)  o = Tan (a) }")
    learn = editor.facts.infer

    def note(node: gs.Node) -> None:
        inferred.append(node.op)
        learn(node)

    monkeypatch.setattr(editor.facts, "infer", note)
    told: list[str] = []

    def rule(editor: Editor, node: gs.Node) -> bool:
        told.append(node.op)
        if len(told) == 1:
            editor.facts.set(node.outputs[0], Fact(None, None, (1, 2, 3, 4)))
        return False

    work = _Worklist(editor, [rule])
    assert work.sweep() == 0
    assert told == ["Neg", "Neg", "Tan"]
    assert inferred == ["Neg", "Neg", "Tan"]
    assert work.sweep() == 0
    assert told == ["Neg", "Neg", "Tan", "Neg", "Tan"]
    assert inferred == ["Neg", "Neg", "Tan"]  # all are settled


def test_a_change_in_place_wakes_the_node_and_its_readers() -> None:
    editor = edit("g (float[4] x) => (float[4] o, float[4] p) { a = Neg (x)  b = Abs (a)  o = Tan (b)  p = Sin (b) }")
    nodes = named(editor)

    def to_cos(editor: Editor, node: gs.Node) -> bool:
        node.op = "Cos"
        return True

    work = _Worklist(editor, [to_cos])
    assert work._visit(nodes["b"])
    assert waiting(work) == ["b", "o", "p"]
