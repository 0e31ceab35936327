"""Applying fusions: what is rewritten, what is left alone, and how every place is accounted for."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import edit, operators, run

from sdort.rewrite.apply import apply_fusion, apply_stage
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import Fusion, in_order
from sdort.rewrite.match import Match, Refusal, decline, refuse
from sdort.rewrite.pattern import parse_pattern

SILU = "g (float[] x) => (float[] y) { s = Sigmoid (x)  y = Mul (x, s) }"
QUICK = "g (float[] x) => (float[] y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }"
X = np.linspace(-3, 3, 8, dtype=np.float32)


def fusion(name: str, before: str | tuple[str, ...], after: str | tuple[str, ...], anchor: str, **more: Any) -> Fusion:
    module = ModuleType(f"fusions.{name}")
    values = {"STAGE": "fuse", "BEFORE": before, "AFTER": after, "ANCHOR": anchor, **more}
    module.__dict__.update(values)
    return Fusion(module)


def silu(**more: Any) -> Fusion:
    return fusion("silu", SILU, QUICK, "Sigmoid", **more)


class Without:
    """A target that lacks some operators."""

    def __init__(self, *operators: str) -> None:
        self.operators = operators

    def unsupported(self, node: gs.Node, editor: Editor) -> str | None:
        return f"no kernel for {node.op}" if node.op in self.operators else None


TWICE = """
g (float[8] t) => (float[8] r) {
    a = Sigmoid (t)
    b = Mul (t, a)
    c = Sigmoid (b)
    r = Mul (c, b)
}"""


def test_every_place_is_rewritten() -> None:
    editor = edit(TWICE)
    before = run(editor.model, {"t": X})
    outcome = apply_fusion(silu(), editor)
    assert (outcome.matched, outcome.candidates) == (2, 2)
    assert operators(editor) == {"com.microsoft.QuickGelu": 2}
    np.testing.assert_allclose(run(editor.model, {"t": X})[0], before[0], rtol=1e-6)


def test_names_of_outputs_and_their_readers_stay() -> None:
    editor = edit("g (float[8] t) => (float[8] r, float[8] z) { a = Sigmoid (t)  r = Mul (t, a)  z = Relu (r) }")
    apply_fusion(silu(), editor)
    assert [o.name for o in editor.graph.outputs] == ["r", "z"]
    assert operators(editor) == {"Relu": 1, "com.microsoft.QuickGelu": 1}
    quick = X / (1 + np.exp(-X))
    r, z = run(editor.model, {"t": X})
    np.testing.assert_allclose(r, quick, rtol=1e-6)
    np.testing.assert_allclose(z, np.maximum(quick, 0), rtol=1e-6)


def test_the_result_may_be_an_input() -> None:
    double = "g (float[] x) => (float[] y) { n = Neg (x)  y = Neg (n) }"
    same = "g (float[] x) => (float[] y) { y = Identity (x) }"
    editor = edit("g (float[8] t) => (float[8] r) { a = Neg (t)  b = Neg (a)  r = Relu (b) }")
    assert apply_fusion(fusion("double", double, same, "Neg"), editor).matched == 1
    np.testing.assert_array_equal(run(editor.model, {"t": X})[0], np.maximum(X, 0))


def test_what_one_rewrite_makes_possible_is_rewritten_too() -> None:
    """The Exp's input is read by an Abs until the Mul that needs it is gone."""
    befores = (
        "g (float[] x) => (float[] y) { n = Neg (x)  y = Exp (n) }",
        "g (float[] x, float[] d) => (float[] y) { y = Mul (x, d) }",
    )
    afters = ("g (float[] x) => (float[] y) { y = Sin (x) }", "g (float[] x) => (float[] y) { y = Cos (x) }")
    editor = edit("g (float[8] t) => (float[8] r) { n = Neg (t)  a = Exp (n)  d = Abs (n)  r = Mul (a, d) }")
    assert apply_fusion(fusion("chain", befores, afters, "Mul"), editor).matched == 2
    assert operators(editor) == {"Cos": 1, "Sin": 1}


def test_what_is_known_of_the_result_replaces_what_was_known() -> None:
    before = "g (float[] x, int64[] t) => (float[] y) { n = Neg (x)  y = Reshape (n, t) }"
    after = "g (float[] x) => (float[] y) { y = Neg (x) }"
    editor = edit("g (float[2, 4] t, int64[2] i) => (float[a, b] r) { n = Neg (t)  r = Reshape (n, i) }")
    apply_fusion(fusion("view", before, after, "Reshape"), editor)
    assert editor.shape(editor.graph.outputs[0]) == (2, 4)


def test_the_first_variant_that_fits_wins() -> None:
    flipped = "g (float[] x) => (float[] y) { s = Sigmoid (x)  y = Mul (s, s) }"
    both = fusion("either", (flipped, SILU), QUICK, "Sigmoid")
    editor = edit(TWICE)
    assert apply_fusion(both, editor).matched == 2


def test_what_the_target_lacks_is_not_built() -> None:
    editor = edit(TWICE)
    (outcome,) = apply_stage([silu(MUST_FUSE=True)], editor, Without("QuickGelu"))
    assert operators(editor) == {"Mul": 2, "Sigmoid": 2}
    assert (outcome.matched, outcome.candidates, outcome.misses) == (0, 2, [])
    assert outcome.declined == {"no kernel for QuickGelu": 2}


def test_half_of_a_result_is_never_left_behind() -> None:
    after = "g (float[] x) => (float[] y) { q = com.microsoft.QuickGelu (x)  y = com.microsoft.FastGelu (q) }"
    editor = edit(TWICE)
    before = [node.name for node in editor.graph.nodes]
    apply_stage([fusion("two", SILU, after, "Sigmoid")], editor, Without("FastGelu"))
    assert [node.name for node in editor.graph.nodes] == before
    assert [reader.name for reader in editor.graph.inputs[0].outputs] == ["Sigmoid.0", "Mul.1"]


def test_a_place_that_must_fuse_and_does_not_match_is_a_miss() -> None:
    editor = edit("g (float[8] t) => (float[8] r) { a = Sigmoid (t)  b = Relu (t)  r = Mul (a, b) }")
    (outcome,) = apply_stage([silu(MUST_FUSE=True)], editor)
    (miss,) = outcome.misses
    assert (miss.node, miss.matched, miss.of) == ("Sigmoid.0", 2, 2)
    assert "'x' would have to be" in miss.reason


def test_a_place_that_need_not_fuse_is_told_only_when_asked() -> None:
    text = "g (float[8] t) => (float[8] r) { r = Sigmoid (t) }"
    (quiet,) = apply_stage([silu()], edit(text))
    (told,) = apply_stage([silu()], edit(text), explain=True)
    assert (quiet.left, quiet.misses, told.misses) == ([], [], [])
    (refusal,) = told.left
    assert refusal.reason == "nothing after it looks like the end of silu"
    assert (refusal.matched, refusal.of) == (0, 0)


def test_a_place_that_another_fusion_took_is_told_when_asked() -> None:
    """The larger one ran before, and says what had kept it; one that ran behind says no more than who has it."""
    pattern = "g (float[] x) => (float[] y) { s = Sigmoid (x)  m = Mul (x, s)  y = Relu (m) }"
    text = "g (float[8] t) => (float[8] r) { s = Sigmoid (t)  m = Mul (t, s)  r = Neg (m) }"
    large = fusion("large", pattern, QUICK, "Sigmoid")
    for order in ([large, silu()], [silu(), large]):
        told = {outcome.name: outcome for outcome in apply_stage(order, edit(text), explain=True)}
        assert (told["silu"].matched, told["silu"].left, told["large"].matched) == (1, [], 0)
        (place,) = told["large"].left
        assert (place.node, place.miss, place.applicable) == ("Sigmoid.0", False, False)
        why = "nothing after it looks like the end of large; silu took it" if order[0] is large else "silu took it"
        assert place.reason == why
    assert all(not outcome.left for outcome in apply_stage([large, silu()], edit(text)))


@pytest.mark.parametrize(
    ("answer", "misses"),
    [(refuse("too long", 7), ["too long (7)"]), (decline("not a gate"), []), (refuse("no value"), ["no value"])],
)
def test_checks_refuse_or_decline(answer: Refusal, misses: list[str]) -> None:
    editor = edit(TWICE)
    check: Callable[[Match], Refusal] = lambda match: answer  # noqa: E731
    (outcome,) = apply_stage([silu(MUST_FUSE=True, check=check)], editor, explain=True)
    assert operators(editor) == {"Mul": 2, "Sigmoid": 2}
    assert [m.reason for m in outcome.misses] == misses * 2
    assert [r.node for r in outcome.left] == ["Sigmoid.0", "Sigmoid.2"]
    assert outcome.declined == {}


def test_of_several_fusions_the_nearest_owns_the_miss() -> None:
    long = fusion(
        "long",
        "g (float[] x) => (float[] y) { s = Sigmoid (x)  m = Mul (x, s)  n = Neg (m)  y = Exp (n) }",
        QUICK,
        "Sigmoid",
        MUST_FUSE=True,
    )
    text = "g (float[8] t) => (float[8] r) { a = Sigmoid (t)  b = Mul (t, a)  c = Abs (b)  r = Exp (c) }"
    near, far = apply_stage(
        [long, fusion("other", "g (float[] x) => (float[] y) { s = Sigmoid (x)  y = Erf (s) }", QUICK, "Sigmoid")],
        edit(text),
    )
    assert [m.node for m in near.misses] == ["Sigmoid.0"]
    assert near.misses[0].reason == "expected Neg -> 'n', found Abs at 'Abs.2'"
    assert (near.misses[0].matched, near.misses[0].of) == (1, 4)
    assert far.left == []


def test_of_several_variants_the_nearest_says_why() -> None:
    """Both match the Where alone; the second binds its condition too."""
    constant = "g (float[] x, float[] u) => (float[] y) <bool[] k> { s = Sigmoid (x)  y = Where (k, u, s) }"
    negated = """g (float[] x, float[] u, bool[] c) => (float[] y) {
        n = Neg (u)  s = Sigmoid (x)  y = Where (c, n, s)
    }"""
    text = "g (float[8] t, bool[8] b) => (float[8] r) { u = Relu (t)  s = Sigmoid (t)  r = Where (b, u, s) }"
    for variants in ((constant, negated), (negated, constant)):
        (outcome,) = apply_stage([fusion("chosen", variants, QUICK, "Sigmoid", MUST_FUSE=True)], edit(text))
        assert [miss.reason for miss in outcome.misses] == ["expected Neg -> 'n', found Relu at 'Relu.0'"]
        assert (outcome.misses[0].matched, outcome.misses[0].of) == (1, 3)


def test_a_place_that_is_left_is_explained_by_itself() -> None:
    """The second Where, which reads the first, binds more tensors: that says nothing of the first."""
    pattern = "g (float[] x, float[] u) => (float[] y) <bool[] k> { n = Neg (x)  y = Where (k, u, n) }"
    text = """g (float[2] t, bool[2] b) => (float[2] r) <bool[2] c = {1, 0}> {
        first = Where (b, t, t)  r = Where (c, first, t)
    }"""
    (outcome,) = apply_stage([fusion("chosen", pattern, QUICK, "Where")], edit(text), explain=True)
    assert [(place.node, place.reason) for place in outcome.left] == [
        ("Where.0", "'k' has to be a constant, 'b' is computed at 'b'"),
        ("Where.1", "expected Neg -> 'n', found a graph input 't' at 't'"),
    ]


def test_a_place_is_not_explained_by_what_stopped_at_it() -> None:
    """The pattern from the second Where stops at the first, with more tensors than the first itself."""
    pattern = "g (float[] x, float[] u) => (float[] y) <bool[] k> { n = Neg (x)  y = Where (k, u, n) }"
    text = """g (float[2] t, bool[2] b) => (float[2] r) <bool[2] c = {1, 0}> {
        first = Where (b, t, t)  r = Where (c, t, first)
    }"""
    (outcome,) = apply_stage([fusion("chosen", pattern, QUICK, "Where")], edit(text), explain=True)
    assert [(place.node, place.reason) for place in outcome.left] == [
        ("Where.0", "'k' has to be a constant, 'b' is computed at 'b'"),
        ("Where.1", "expected Neg -> 'n', found Where at 'Where.0'"),
    ]


SHORT = "g (float[] x) => (float[] y) { n = Neg (x)  y = Exp (n) }"
LONG = "g (float[] x) => (float[] y) { n = Neg (x)  e = Exp (n)  y = Sqrt (e) }"
SIN, COS = (f"g (float[] x) => (float[] y) {{ y = {op} (x) }}" for op in ("Sin", "Cos"))
CHAIN = "g (float[8] t) => (float[8] r) { a = Neg (t)  b = Exp (a)  r = Sqrt (b) }"


def test_the_larger_of_two_fusions_wins() -> None:
    """The shorter one is the first by its name, and its root comes first in the graph."""
    short, long = fusion("a_short", SHORT, SIN, "Neg"), fusion("b_long", LONG, COS, "Neg")
    assert [f.name for f in in_order([short, long])] == ["b_long", "a_short"]
    editor = edit(CHAIN)
    apply_stage(in_order([short, long]), editor)
    assert operators(editor) == {"Cos": 1}


def test_a_fusion_comes_behind_those_that_it_asks_for() -> None:
    short = fusion("a_short", SHORT, SIN, "Neg")
    long = fusion("b_long", LONG, COS, "Neg", RUN_AFTER=("a_short",))
    other = fusion("c_other", SHORT, SIN, "Neg")
    assert [f.name for f in in_order([other, long, short])] == ["a_short", "b_long", "c_other"]


def test_the_larger_of_two_variants_wins() -> None:
    editor = edit(CHAIN)
    outcome = apply_fusion(fusion("both", (SHORT, LONG), (SIN, COS), "Neg"), editor)
    assert (outcome.matched, operators(editor)) == (1, {"Cos": 1})


def test_an_unknown_stage_is_named() -> None:
    with pytest.raises(ValueError, match="silu: its STAGE is 'fused', known are restore, raise, fuse,"):
        _ = silu(STAGE="fused").stage


def test_one_fusion_that_declines_speaks_for_the_place() -> None:
    other = fusion(
        "other", "g (float[] x) => (float[] y) { s = Sigmoid (x)  y = Erf (s) }", QUICK, "Sigmoid", MUST_FUSE=True
    )
    outcomes = apply_stage([silu(check=lambda match: decline("not here")), other], edit(TWICE))
    assert [o.misses for o in outcomes] == [[], []]


def test_a_later_fusion_takes_what_an_earlier_one_left() -> None:
    first = silu(MUST_FUSE=True, check=lambda match: refuse("never"))
    second = fusion("second", SILU, QUICK, "Sigmoid")
    outcomes = apply_stage([first, second], edit(TWICE))
    assert [(o.matched, o.candidates, o.misses) for o in outcomes] == [(0, 2, []), (2, 2, [])]


SKIP_BEFORE = """
g (float[] x, float[] skip) => (float[] y, float[] sum) <float[C] gamma, float[C] beta> {
    sum = Add (x, skip)
    y = LayerNormalization <axis = -1, epsilon: float = @eps> (sum, gamma, beta)
}"""
SKIP_AFTER = """
g (float[] x, float[] skip, float[C] gamma, float[C] beta) => (float[] y, float[] sum) {
    y, mean, deviation, sum = com.microsoft.SkipLayerNormalization <epsilon: float = @eps> (x, skip, gamma, beta)
}"""


@pytest.mark.parametrize(
    ("more", "tail", "outputs"), [("", "", 1), (", float[2, 8] z", "z = Relu (s)", 4), (", float[2, 8] s", "", 4)]
)
def test_outputs_that_nobody_reads_are_left_out(more: str, tail: str, outputs: int) -> None:
    nodes = f"s = Add (t, u)  r = LayerNormalization (s, w, v)  {tail}"
    text = f"g (float[2, 8] t, float[2, 8] u) => (float[2, 8] r{more}) {{ {nodes} }}"
    weights = {"w": np.linspace(1, 2, 8, dtype=np.float32), "v": X}
    editor = edit(text, weights)
    feeds = {"t": np.outer([1, 2], X).astype(np.float32), "u": np.outer([3, -1], X**2).astype(np.float32)}
    before = run(editor.model, feeds)
    assert apply_fusion(fusion("skip", SKIP_BEFORE, SKIP_AFTER, "LayerNormalization"), editor).matched == 1
    (node,) = (n for n in editor.graph.nodes if n.op == "SkipLayerNormalization")
    assert len(node.outputs) == outputs
    assert node.attrs == {"epsilon": pytest.approx(1e-5)}
    for found, wanted in zip(run(editor.model, feeds), before, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_derived_tensors_and_attributes_reach_the_result() -> None:
    after = """
    g (float[] x, float[] c) => (float[] y) {
        s = Mul (x, c)
        y = com.microsoft.QuickGelu <alpha: float = @a> (s)
    }"""

    def derive(match: Match) -> dict[str, Any]:
        return {"c": match.editor.constant(np.array(2, np.float32)), "a": 0.5}

    editor = edit(TWICE)
    apply_fusion(fusion("derived", SILU, after, "Sigmoid", derive=derive), editor)
    node = editor.graph.outputs[0].inputs[0]
    assert node.attrs == {"alpha": 0.5}
    assert node.inputs[0].inputs[0].inputs[1].values == 2


def test_an_attribute_that_derives_to_none_is_absent() -> None:
    after = "g (float[] x) => (float[] y) { y = com.microsoft.QuickGelu <alpha: float = @a> (x) }"
    editor = edit(TWICE)
    apply_fusion(fusion("derived", SILU, after, "Sigmoid", derive=lambda match: {"a": None}), editor)
    assert editor.graph.outputs[0].inputs[0].attrs == {}


def test_a_result_that_needs_a_size_of_what_it_replaces_is_refused() -> None:
    before = "g (float[] x, int64[] t) => (float[] y) { n = Neg (x)  y = Reshape (n, t) }"
    after = "g (float[] x, int64[] t) => (float[] y) { y = Reshape (x, t) }"
    editor = edit("g (float[8] t) => (float[8] r) { n = Neg (t)  s = Shape (n)  r = Reshape (n, s) }")
    (outcome,) = apply_stage([fusion("sized", before, after, "Neg", MUST_FUSE=True)], editor)
    assert [m.reason for m in outcome.misses] == ["the result would need a size of what it replaces (t)"]
    assert operators(editor) == {"Neg": 1, "Reshape": 1, "Shape": 1}


def test_lowering_touches_only_what_the_target_lacks() -> None:
    lower = fusion(
        "spell",
        "g (float[] x) => (float[] y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }",
        SILU,
        "com.microsoft.QuickGelu",
        STAGE="lower",
    )
    text = "g (float[8] t) => (float[8] r) { r = com.microsoft.QuickGelu <alpha = 1.0> (t) }"
    kept, spelled = edit(text), edit(text)
    assert apply_fusion(lower, kept, Without()).matched == 0
    outcome = apply_fusion(lower, spelled, Without("QuickGelu"))
    assert (outcome.matched, outcome.declined) == (1, {"no kernel for QuickGelu": 1})
    assert operators(spelled) == {"Mul": 1, "Sigmoid": 1}


def test_variants_and_results_are_as_many() -> None:
    with pytest.raises(ValueError, match="zip"):
        _ = fusion("odd", (SILU, SILU, SILU), (QUICK, QUICK), "Sigmoid").variants


def test_patterns_know_their_constants() -> None:
    pattern = parse_pattern(SKIP_BEFORE)
    assert pattern.constants == ["gamma", "beta"]
    assert pattern.root.op == "LayerNormalization"


def test_a_new_name_is_no_nodes_either() -> None:
    """The FP16 converter finds nodes by name: two of one name would get each other's casts."""
    editor = edit(TWICE)
    editor.graph.nodes[0].name = "Mul_1"
    again = Editor(editor.model)
    assert again.node("Mul", [again.graph.inputs[0]] * 2).name == "Mul_2"
