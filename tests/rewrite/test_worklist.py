"""Local rules end when nothing changes, however deep the graph, at a cost that is linear in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import check_step, edit, load, operators

from sdort.errors import SdortError
from sdort.graph.symbolic import symbol
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.passes import simplify, tidy
from sdort.providers import load_target
from sdort.rewrite import worklist
from sdort.rewrite.editor import Editor, producer
from sdort.rewrite.inference.facts import Facts
from sdort.rewrite.worklist import apply_rules


def layers(count: int) -> str:
    """Layers that become clear one after the other: only what is no longer part of a sequence has a known shape."""
    body = "".join(
        f"""
            s{i} = SplitToSequence <axis = 1> (x{i}, two)
            l{i} = SequenceAt (s{i}, zero)
            r{i} = SequenceAt (s{i}, one)
            x{i + 1} = Concat <axis = 1> (r{i}, l{i})"""
        for i in range(count)
    )
    return f"""
        g (float[B, 4] x0) => (float[B, 4] y) <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}> {{
            {body}
            y = Neg (x{count})
        }}"""


def test_the_last_layer_of_a_deep_graph_is_as_tidy_as_the_first() -> None:
    count = 60
    editor = edit(layers(count))
    tidy.run(editor)
    assert operators(editor) == {"Concat": count, "Neg": 1, "Split": count}
    assert tidy.run(editor) == 0
    check_step(layers(3), tidy.run, {"B": 2})


def test_the_work_grows_with_the_graph_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (_count(monkeypatch, Facts, "infer", partial(tidy.run, edit(layers(count)))) for count in (10, 80))
    assert many <= 8 * few


LEARNED = """
    g (float[B, 8, H, W] x, float[4, 8, 3, 3] k) => (float[B, 4, H, W] y, float[B, 8, H, W] z)
    <float[4] twice = {1.0, 1.0, 2.0, 2.0}, float half = {0.5}, int64 zero = {0}, int64 four = {4}> {
        small = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, k)
        large = Resize (small, , twice)
        sizes = Shape <start = 2> (x)
        halved = Mul (large, half)
        same = Expand (halved, sizes)
        shares = Mul (same, half)
        y = Softmax <axis = -1> (shares)
        parts = SplitToSequence <axis = 1> (x, four)
        part = SequenceAt (parts, zero)
        z = Concat <axis = 1> (large, part)
    }"""
"""That the Expand does nothing only the Concat tells, which knows no shapes before the sequence is a Split."""
ONE_READER = """
    g (float[2, 3, 4] x, float[2, 4, 5] k) => (float[2, 3, 5] y, int64[3] z) <float two = {2.0}> {
        scaled = Mul (x, two)
        scores = MatMul (scaled, k)
        y = Softmax <axis = -1> (scores)
        sizes = Shape (scaled)
        z = Identity (sizes)
    }"""
"""The factor can move behind the MatMul only once the Shape that reads the Mul too is folded away."""


@pytest.mark.parametrize("text", [layers(40), LEARNED, ONE_READER], ids=["layers", "learned", "one reader"])
def test_one_sweep_does_all_and_the_second_finds_nothing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    editor = edit(text)
    assert _count(monkeypatch, worklist._Worklist, "sweep", lambda: apply_rules(editor, tidy.BEFORE_FUSIONS)) == 2
    assert "Expand" not in operators(editor)
    assert operators(editor).get("Mul", 0) <= 1


def _count(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, run: Callable[[], object]) -> int:
    calls = 0
    original = getattr(owner, name)

    def counted(*args: object) -> object:
        nonlocal calls
        calls += 1
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, counted)
        run()
    return calls


def test_rules_that_undo_each_other_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_abs(editor: Editor, node: gs.Node) -> bool:
        return _rename(editor, node, "Neg", "Abs")

    def to_neg(editor: Editor, node: gs.Node) -> bool:
        return _rename(editor, node, "Abs", "Neg")

    text = "g (float[B, 4] x) => (float[B, 4] y) { y = Neg (x) }"
    with pytest.raises(RuntimeError, match=r"undo each other, to_(abs|neg) at (Abs|Neg) "):
        apply_rules(edit(text), [to_abs, to_neg])
    monkeypatch.setattr(tidy, "BEFORE_FUSIONS", (to_abs, to_neg))
    with pytest.raises(SdortError, match=r"step 'tidy' failed: RuntimeError: simplifications undo each other"):
        optimize_model(load(text), OptimizeOptions(load_target("cpu")))


def _rename(editor: Editor, node: gs.Node, old: str, new: str) -> bool:
    if node.op != old:
        return False
    output, inputs = node.outputs[0], list(node.inputs)
    node.inputs.clear()
    editor.node(new, inputs, outputs=[output])
    return True


def test_what_nobody_reads_any_more_is_no_reader() -> None:
    editor = edit(ONE_READER)
    tidy.run(editor, tidy.BEFORE_FUSIONS)
    (output,) = [t for t in editor.graph.outputs if t.name == "y"]
    assert producer(output.inputs[0].inputs[0], "Mul") is not None
    check_step(ONE_READER, partial(tidy.run, rules=tidy.BEFORE_FUSIONS), rtol=1e-6)


def test_a_rule_that_sees_far_is_asked_again() -> None:
    """The second node changes only after the last one has, which is no neighbour of it."""

    def last(editor: Editor, node: gs.Node) -> bool:
        return _rename(editor, node, "Relu", "Exp") if node.outputs[0].name == "y" else False

    def first(editor: Editor, node: gs.Node) -> bool:
        done = any(n.op == "Exp" for n in editor.graph.nodes)
        return _rename(editor, node, "Sin", "Cos") if done else False

    text = "g (float[4] x) => (float[4] y) { a = Sin (x)  b = Abs (a)  c = Neg (b)  d = Abs (c)  y = Relu (d) }"
    editor = edit(text)
    assert apply_rules(editor, [first, last]) == 2
    assert operators(editor) == {"Abs": 2, "Cos": 1, "Exp": 1, "Neg": 1}


def test_equal_nodes_are_merged_only_when_nothing_else_is_left() -> None:
    """Both scales move behind their MatMul; merged before, the Mul would have two readers and stay."""
    text = """
        g (float[2, 3, 4] x, float[2, 4, 5] k, float[2, 4, 6] l) => (float[2, 3, 5] y, float[2, 3, 6] z)
        <float half = {0.5}> {
            a = Mul (x, half)
            b = Mul (x, half)
            c = MatMul (a, k)
            d = MatMul (b, l)
            y = Softmax <axis = -1> (c)
            z = Softmax <axis = -1> (d)
        }"""
    editor = edit(text)
    tidy.run(editor, tidy.BEFORE_FUSIONS)
    assert all(producer(t.inputs[0].inputs[0], "Mul") is not None for t in editor.graph.outputs)
    assert simplify.merge_equal_nodes(editor) == 0


def test_a_size_that_nobody_knows_keeps_its_name_when_inferred_again() -> None:
    editor = edit("g (float[B, 4] x, int64[2] to) => (float[m, n] y) { a = Reshape (x, to)  y = Neg (a) }")
    node = next(n for n in editor.graph.nodes if n.op == "Reshape")
    before = editor.shape(node.outputs[0])
    editor.facts.changed.clear()
    editor.facts.infer(node)
    assert editor.shape(node.outputs[0]) == before
    assert editor.facts.changed == {}
    assert editor.shape(editor.graph.outputs[0]) == before
    assert before is not None
    assert before[0] != before[1]


def test_what_is_known_once_stays_known() -> None:
    editor = edit("g (float[B, 4] x, float[m, n] z) => (float[B, 4] y) { a = Add (x, z)  y = Neg (a) }")
    facts, output = editor.facts, editor.graph.outputs[0]
    known = facts.of(output)
    facts.set(output, type(known)(known.dtype, None))
    assert facts.of(output) == known
    vague = edit("g (float[m, n] x, float[B, 4] k) => (float[m, n] y) { y = Relu (x) }")
    tensor = vague.graph.outputs[0]
    vague.facts.set(tensor, known)
    assert vague.shape(tensor) == (symbol("m"), 4)
