"""The places of a fusion: which nodes may be its end, what explains the ones it leaves, and a sweep's parts."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import edit, operators

from sdort.rewrite.apply import (
    DISABLED,
    Outcome,
    Unfused,
    _Application,
    _attempt,
    _disabled,
    _downstream,
    _explain,
    _roots,
    apply_fusion,
    apply_stage,
    explain_place,
)
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import Fusion
from sdort.rewrite.match import Match, Refusal, decline, refuse

SILU = "g (float[] x) => (float[] y) { s = Sigmoid (x)  y = Mul (x, s) }"
QUICK = "g (float[] x) => (float[] y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }"


def fusion(name: str = "silu", before: Any = SILU, after: Any = QUICK, anchor: str = "Sigmoid", **more: Any) -> Fusion:
    module = ModuleType(f"fusions.{name}")
    module.__dict__.update({"STAGE": "fuse", "BEFORE": before, "AFTER": after, "ANCHOR": anchor, **more})
    return Fusion(module)


class Without:
    """A target that lacks some operators."""

    def __init__(self, *operators: str) -> None:
        self.operators = operators

    def unsupported(self, node: gs.Node, editor: Editor) -> str | None:
        return f"no kernel for {node.op}" if node.op in self.operators else None


LADDER = """
g (float[4] t) => (float[4] y, float[4] z) {
    a = Neg (t)  b = Abs (a)  c = Sin (a)  d = Add (b, c)  e = Cos (d)  y = Tan (e)  z = Exp (b)
}"""


@pytest.mark.parametrize(
    ("depth", "names"), [(0, "a"), (1, "abc"), (2, "abcdz"), (3, "abcdez"), (4, "abcdeyz"), (9, "abcdeyz")]
)
def test_what_reads_an_anchor_up_to_some_steps_away(depth: int, names: str) -> None:
    editor = edit(LADDER)
    found = [node.outputs[0].name for node in _downstream(editor.graph.nodes[0], depth)]
    assert found[0] == "a"
    assert sorted(found) == sorted(names)


def test_each_before_is_tried_at_each_node_within_its_size() -> None:
    one = "g (float[] x) => (float[] y) { y = Neg (x) }"
    two = "g (float[] x) => (float[] y) { n = Neg (x)  y = Abs (n) }"
    editor = edit(LADDER)
    tried = fusion(before=(one, two), after=(one, one), anchor="Neg")
    places = [(before.text, node.outputs[0].name) for before, node in _roots(tried, editor.graph.nodes[0])]
    assert sorted(places) == sorted([(one, n) for n in "abc"] + [(two, n) for n in "abcdz"])


CHAIN = """
g (float[8] t, float[8] u) => (float[8] r, float[8] q, float[8] o) {
    a = Sigmoid (t)  r = Mul (t, a)
    b = Sigmoid (u)  q = Add (u, b)
    c = Sigmoid (r)  o = Mul (c, r)
}"""


def test_a_disabled_fusion_tells_where_it_fits() -> None:
    editor = edit(CHAIN)
    outcome = _disabled(fusion(), editor, None)
    assert (outcome.name, outcome.candidates, outcome.matched) == ("silu", 3, 0)
    assert [place.node for place in outcome.left] == ["Sigmoid.0", "Sigmoid.4"]
    for place in outcome.left:
        assert (place.fusion, place.reason, place.kind) == ("silu", DISABLED, DISABLED)
        assert (place.matched, place.of, place.applicable, place.miss) == (1, 1, False, False)
        assert str(place) == f"silu left {place.node!r}: it is disabled"
    refused = _disabled(fusion(check=lambda match: refuse("no")), editor, None)
    assert (refused.candidates, refused.left) == (3, [])
    assert operators(editor) == {"Add": 1, "Mul": 2, "Sigmoid": 3}


def test_a_disabled_lowering_has_the_places_that_the_target_does_not_run() -> None:
    before = "g (float[] x) => (float[] y) { y = Sigmoid (x) }"
    lowering = fusion(before=before, after=before.replace("Sigmoid", "HardSigmoid"), STAGE="lower")
    for target, candidates in ((Without(), 0), (Without("Sigmoid"), 3), (None, 3)):
        outcome = _disabled(lowering, edit(CHAIN), target)
        assert (outcome.candidates, len(outcome.left)) == (candidates, candidates)


def test_where_a_disabled_fusion_fits_the_others_have_no_miss() -> None:
    strict = fusion("strict", before=SILU.replace("Mul (x, s)", "Sub (x, s)"), MUST_FUSE=True)
    for disabled, misses in (([], ["Sigmoid.0", "Sigmoid.2", "Sigmoid.4"]), ([fusion()], ["Sigmoid.2"])):
        outcomes = apply_stage([strict], edit(CHAIN), disabled=disabled)
        assert [place.node for place in outcomes[0].misses] == misses
        assert [outcome.name for outcome in outcomes] == ["strict", *(f.name for f in disabled)]
        assert [len(outcome.left) for outcome in outcomes[1:]] == [2] * len(disabled)


def at_first(match: Match) -> Refusal | None:
    return None if match["x"].name == "t" else decline("only at t", match["x"].name)


@pytest.mark.parametrize(
    ("node", "more", "obstacle"),
    [
        (0, {}, None), (2, {}, "no match"), (4, {}, None), (0, {"check": at_first}, None),
        (4, {"check": at_first}, "only at t (r)"), (2, {"check": at_first}, "no match"),
        (0, {"check": lambda match: refuse("never")}, "never"),
    ],
)  # fmt: skip
def test_what_keeps_a_fusion_from_a_place(node: int, more: dict[str, Any], obstacle: str | None) -> None:
    editor = edit(CHAIN)
    anchor = editor.graph.nodes[node]
    tried = fusion(**more)
    found = _attempt(tried, editor, anchor)
    assert (None if found is None else str(found)) == obstacle
    place = explain_place(tried, editor, anchor)
    if obstacle is None:
        assert place is None
        return
    assert place is not None
    assert (place.fusion, place.node) == ("silu", anchor.name)
    if obstacle == "no match":
        assert place.reason == "nothing after it looks like the end of silu"
    else:
        assert (place.reason, place.matched, place.of) == (obstacle, 1, 1)
        assert place.applicable is (obstacle == "never")
        assert place.kind == obstacle.partition(" (")[0]


def test_of_two_variants_that_match_one_that_may_is_enough() -> None:
    again = "g (float[] x) => (float[] y) { s = Sigmoid (x)  y = Mul (s, x) }"
    answers = [refuse("the first"), refuse("the second"), None]
    editor = edit(CHAIN)
    two = fusion(before=(SILU, again), check=lambda match: answers.pop(0))
    assert str(_attempt(two, editor, editor.graph.nodes[0])) == "the second"
    assert _attempt(two, editor, editor.graph.nodes[0]) is None


def test_a_match_that_lacks_the_anchor_does_not_count() -> None:
    """The Mul behind the second Sigmoid ends a match that does not hold the first."""
    editor = edit("g (float[8] t) => (float[8] o) { b = Sigmoid (t)  r = Neg (b)  c = Sigmoid (r)  o = Mul (c, r) }")
    wide = fusion(
        before=(SILU, SILU.replace("Mul (x, s)", "m = Abs (s)  n = Neg (m)  y = Add (n, x)").replace("y = m", "m"))
    )
    nodes = editor.graph.nodes
    assert str(_attempt(wide, editor, nodes[0])) == "no match"
    assert _attempt(wide, editor, nodes[2]) is None


def test_how_far_the_nearest_variant_came() -> None:
    long = "g (float[] x) => (float[] y) { s = Sigmoid (x)  m = Mul (x, s)  y = Neg (m) }"
    editor = edit("g (float[8] t) => (float[8] o) { a = Sigmoid (t)  m = Add (t, a)  o = Neg (m) }")
    place = _explain(fusion(before=(SILU, long), after=(QUICK, QUICK)), editor, editor.graph.nodes[0], None)
    assert (place.matched, place.of, place.applicable) == (1, 3, True)
    assert place.reason == "expected Mul -> 'm', found Add at 'Add.1'"
    assert place.kind == "expected Mul -> 'm', found Add"
    assert place.why == f"{place.reason} (1 of 3 nodes matched)"
    away = fusion(before=SILU.replace("Mul", "Pow"), anchor="Sigmoid", concerns=lambda editor, anchor: False)
    nothing = _explain(away, editor, editor.graph.nodes[0], None)
    assert (nothing.matched, nothing.of, nothing.tensors, nothing.applicable) == (0, 0, 0, False)
    assert nothing.reason == nothing.kind == "nothing after it looks like the end of silu"
    assert nothing.why == nothing.reason


def test_a_place_that_came_further_is_nearer() -> None:
    def place(matched: int, of: int, tensors: int) -> Unfused:
        return Unfused("f", "n", "r", matched, of, True, tensors=tensors)

    ordered = [place(0, 0, 9), place(1, 3, 1), place(1, 2, 1), place(2, 4, 5), place(2, 2, 0)]
    assert [p.nearness for p in ordered] == sorted(p.nearness for p in ordered)
    assert [p.why for p in ordered[:2]] == ["r", "r (1 of 3 nodes matched)"]
    assert place(1, 1, 1).why == "r"


def test_a_lowering_counts_what_it_did_for_the_target() -> None:
    before = "g (float[] x) => (float[] y) { y = com.microsoft.QuickGelu <alpha: float = @a> (x) }"
    after = "g (float[] x) => (float[] y) { s = Sigmoid (x)  y = Mul (x, s) }"
    lowering = fusion("lower", before, after, "com.microsoft.QuickGelu", STAGE="lower")
    text = "g (float[8] t) => (float[8] y) { a = com.microsoft.QuickGelu (t)  y = com.microsoft.QuickGelu (a) }"
    for target, matched in ((Without(), 0), (Without("QuickGelu"), 2), (None, 2)):
        editor = edit(text)
        outcome = apply_fusion(lowering, editor, target)
        assert outcome.matched == matched
        assert outcome.candidates == (0 if target is not None and not target.operators else 2)
        assert outcome.declined == ({"no kernel for QuickGelu": 2} if target is not None and matched else {})
        assert editor.step == "lower"


def test_the_first_of_several_refusals_is_kept_for_each_node() -> None:
    again = "g (float[] x) => (float[] y) { s = Sigmoid (x)  y = Mul (s, x) }"
    answers = [refuse("first"), refuse("second")]
    refused: dict[str, Refusal] = {}
    editor = edit("g (float[8] t) => (float[8] r) { a = Sigmoid (t)  r = Mul (t, a) }")
    two = fusion(before=(SILU, again), check=lambda match: answers.pop(0))
    application = _Application(two, editor, None, refused, Outcome("silu"))
    assert not application._rewrite_at(two.variants, editor.graph.nodes[1])
    assert {name: str(refusal) for name, refusal in refused.items()} == {"Sigmoid.0": "first", "Mul.1": "first"}
    assert application.sweep(()) == 0


def test_a_fusion_that_matches_its_own_result_is_told() -> None:
    before = "g (float[] x) => (float[] y) { y = Neg (x) }"
    editor = edit("g (float[8] t) => (float[8] r) { r = Neg (t) }")
    with pytest.raises(RuntimeError, match="endless matches its own result again and again"):
        apply_fusion(fusion("endless", before, before, "Neg"), editor)


CAST = """
g (float16[8] t) => (float16[8] r) {
    c = Cast <to = 1> (t)  a = Sigmoid (c)  d = Cast <to = 10> (a)  r = Mul (t, d)
}"""


@pytest.mark.parametrize(("stage", "fits"), [("raise", True), ("restore", False), ("fuse", False), ("extend", False)])
def test_casts_are_looked_through_where_no_kernels_are_chosen_yet(stage: str, fits: bool) -> None:
    tried = fusion(STAGE=stage)
    editor = edit(CAST)
    anchor = editor.graph.nodes[1]
    assert (_attempt(tried, editor, anchor) is None) is fits
    assert ("found Cast" in _explain(tried, editor, anchor, None).reason) is not fits
    outcome = apply_fusion(tried, editor)
    assert outcome.matched == int(fits)
    assert ("Sigmoid" in operators(editor)) is not fits
    assert operators(editor).get("Cast", 0) == 2  # what flows in is cast, and what comes out


@pytest.mark.parametrize("stage", ["fuse", "extend"])
def test_only_a_lowering_asks_whether_the_target_runs_what_is_there(stage: str) -> None:
    editor = edit(CHAIN)
    outcome = apply_fusion(fusion(STAGE=stage), editor, Without("Tanh"))
    assert (outcome.matched, outcome.candidates, outcome.declined) == (2, 3, {})
    assert operators(editor) == {"Add": 1, "Sigmoid": 1, "com.microsoft.QuickGelu": 2}  # nothing dead is left


def test_a_lowering_of_a_standard_operator_is_no_answer_to_a_target() -> None:
    before = "g (float[] x) => (float[] y) { y = Sigmoid (x) }"
    after = "g (float[] x) => (float[] y) { y = HardSigmoid (x) }"
    outcome = apply_fusion(fusion(before=before, after=after, STAGE="lower"), edit(CHAIN), Without("Sigmoid"))
    assert (outcome.matched, outcome.candidates, outcome.declined) == (3, 3, {})


@pytest.mark.parametrize(("stage", "declined"), [("fuse", {"no kernel for QuickGelu": 2}), ("extend", {})])
def test_what_the_target_declines_is_counted_for_each_place_once(stage: str, declined: dict[str, int]) -> None:
    editor = edit(CHAIN)
    (outcome,) = apply_stage([fusion(STAGE=stage, MUST_FUSE=True)], editor, Without("QuickGelu"))
    assert (outcome.matched, outcome.declined) == (0, declined)
    assert [place.node for place in outcome.misses] == ["Sigmoid.2"]  # the others are the target's business
    own = apply_stage([fusion(check=lambda match: refuse("never"))], edit(CHAIN), Without())
    assert own[0].declined == {}


def test_each_anchor_has_a_group_of_its_own() -> None:
    """One anchor's misses are its fusions'; of two that must fuse, the nearer one says why."""
    add = fusion("add", "g (float[] x) => (float[] y) { s = Abs (x)  y = Add (x, s) }", QUICK, "Add", MUST_FUSE=True)
    far = fusion("far", "g (float[] x) => (float[] y) { s = Sigmoid (x)  y = Pow (x, s) }", QUICK, MUST_FUSE=True)
    near = fusion("near", "g (float[] x) => (float[] y) { s = Sigmoid (x)  n = Neg (s)  y = Add (x, n) }", QUICK)
    text = "g (float[8] t) => (float[8] y) { s = Sigmoid (t)  y = Add (s, t) }"
    outcomes = {outcome.name: outcome for outcome in apply_stage([add, far, near], edit(text))}
    assert {name: [place.node for place in outcome.left] for name, outcome in outcomes.items()} == {
        "add": ["Add.1"], "far": [], "near": ["Sigmoid.0"]
    }  # fmt: skip
    assert all(place.miss for outcome in outcomes.values() for place in outcome.left)
    told = {o.name: o for o in apply_stage([add, far, near], edit(text), explain=True)}
    assert {name: [(p.node, p.miss) for p in outcome.left] for name, outcome in told.items()} == {
        "add": [("Add.1", True)], "far": [("Sigmoid.0", False)], "near": [("Sigmoid.0", True)]
    }  # fmt: skip
    assert [len(outcome.misses) for outcome in told.values()] == [1, 0, 1]
    free = apply_stage([near], edit(text))
    assert free[0].left == []


def test_whether_a_place_concerns_a_fusion_is_asked_of_its_file() -> None:
    editor = edit(CHAIN)
    asked: list[tuple[Editor, gs.Node]] = []

    def concerns(editor: Editor, anchor: gs.Node) -> bool:
        asked.append((editor, anchor))
        return False

    (outcome,) = apply_stage([fusion(concerns=concerns, MUST_FUSE=True)], editor)
    assert outcome.misses == []
    assert [(e is editor, node.name) for e, node in asked] == [(True, "Sigmoid.2")]
