"""Rules of what stays in fp32: what they hold for, how they are told, and that they come back from their file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import edit

from sdort.errors import UsageError
from sdort.graph.float16 import LARGEST, SMALLEST_NORMAL, VANISHING
from sdort.precision.fp32_selection import Fp32Selection, Fp32Selector, _extra_bytes, _selection
from sdort.precision.inputs import KEPT, _some
from sdort.precision.plan import PlanRule, make_rules, read_plan, select, write_plan
from sdort.precision.positions import EVERYWHERE, NodeKind, Position, _block, find_positions, with_views
from sdort.precision.ranges import NO_RANGE, Range, Ranges, _computed, _is_odd, range_of
from sdort.precision.risks import Risk, find_risks

MUL = NodeKind("Mul", ("Conv", "weight"), ("Add", "Conv.0", "Conv.1"))
NORM = NodeKind("com.microsoft.GroupNorm", ("weight", "weight"), ())


def position(kind: NodeKind = MUL, block: str = "down 1", number: int = 0) -> Position:
    return Position(kind, block, number)


# Rules


@pytest.mark.parametrize(
    ("blocks", "block", "number", "holds"),
    [
        (None, "up 7", 3, True), ({"down 1": "every"}, "down 1", 5, True), ({"down 1": "every"}, "up 1", 0, False),
        ({"down 1": [0, 2]}, "down 1", 2, True), ({"down 1": [0, 2]}, "down 1", 1, False),
        ({"down 1": [1], "up 1": "every"}, "up 1", 0, True), ({}, "down 1", 0, False),
    ],
)  # fmt: skip
def test_a_rule_holds_for_its_kind_in_its_blocks(blocks: Any, block: str, number: int, holds: bool) -> None:
    assert PlanRule(MUL, blocks).holds(position(MUL, block, number)) is holds
    assert not PlanRule(NORM, blocks).holds(position(MUL, block, number))


@pytest.mark.parametrize(
    ("kind", "blocks", "text"),
    [
        (MUL, None, "Mul from Conv to Add, Conv, everywhere"),
        (MUL, {EVERYWHERE: "every"}, "Mul from Conv to Add, Conv, everywhere"),
        (MUL, {EVERYWHERE: [0]}, "Mul from Conv to Add, Conv, in all (number 1)"),
        (NORM, {"down 1": "every", "up 2": [0, 2]}, "GroupNorm to the output, in down 1, up 2 (number 1, 3)"),
    ],
)
def test_a_rule_in_words(kind: NodeKind, blocks: Any, text: str) -> None:
    assert str(PlanRule(kind, blocks)) == text


POSITIONS = {
    f"{kind.operator}/{block}/{number}/{twin}": Position(kind, block, number)
    for kind in (MUL, NORM) for block, numbers in (("down 1", 2), ("up 1", 3)) for number in range(numbers)
    for twin in range(2)
}  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_rules_hold_for_exactly_the_nodes_that_they_are_made_of(seed: int) -> None:
    """Twins share a position, so that both are chosen or neither."""
    rng = np.random.default_rng(seed)
    chosen = {place for place in sorted(set(POSITIONS.values()), key=str) if rng.random() < (0.3, 0.6, 0.95)[seed % 3]}
    reasons = {name: f"why {place.kind.operator}" for name, place in POSITIONS.items() if place in chosen}
    rules = make_rules(POSITIONS, reasons)
    assert (select(rules, POSITIONS, "unet") if rules else {}) == reasons
    for rule in rules:
        alike = {place for place in POSITIONS.values() if place.kind == rule.kind}
        assert (rule.blocks is None) == (alike <= chosen)
        for block, numbers in (rule.blocks or {}).items():
            whole = {place for place in alike if place.block == block} <= chosen
            assert (numbers == "every") is whole
            assert whole or numbers == sorted(set(numbers))  # type: ignore[type-var]


def test_a_rule_that_fits_nothing_is_refused_whatever_the_others_do() -> None:
    rules = [PlanRule(MUL, None, "a"), PlanRule(NORM, {"middle": "every"}, "b")]
    with pytest.raises(UsageError, match=r"the plan's rule for GroupNorm to the output, in middle fits no node"):
        select(rules, POSITIONS, "unet")
    assert set(select(rules[:1], POSITIONS, "unet").values()) == {"a"}
    assert select([], POSITIONS, "unet") == {}


def test_rules_come_back_from_their_file(tmp_path: Path) -> None:
    rules = [PlanRule(MUL, {"up 1": [0, 3], "middle": "every"}, "too large"), PlanRule(NORM, None)]
    write_plan(tmp_path / "plan.json", {"unet": rules, "text_encoder": []}, "rocm")
    assert read_plan(tmp_path / "plan.json") == {"unet": rules, "text_encoder": []}
    assert json.loads((tmp_path / "plan.json").read_text())["provider"] == "rocm"


@pytest.mark.parametrize(
    ("change", "ok"),
    [
        ({"operator": 3}, False), ({"reads": "Conv"}, False), ({"feeds": [1]}, False), ({"blocks": "some"}, False),
        ({"blocks": {"up 1": []}}, False), ({"blocks": {"up 1": [-1]}}, False), ({"blocks": {"up 1": "every"}}, True),
        ({"reason": None}, False), ({"reason": "x"}, True), ({"blocks": {}}, True), ({"feeds": []}, True),
    ],
)  # fmt: skip
def test_each_part_of_a_rule_is_of_its_kind(change: dict[str, Any], ok: bool, tmp_path: Path) -> None:
    rule = {"operator": "Mul", "reads": ["Conv"], "feeds": ["Add"], "blocks": "every"}
    path = tmp_path / "plan.json"

    def written(rule: dict[str, Any]) -> Path:
        path.write_text(json.dumps({"fp16-plan": 1, "components": {"unet": [rule]}}))
        return path

    read_plan(written(rule))
    for missing in rule:
        with pytest.raises(UsageError, match=f"has no {missing}"):
            read_plan(written({name: value for name, value in rule.items() if name != missing}))
    if ok:
        read_plan(written(rule | change))
        return
    with pytest.raises(UsageError, match="is no plan of what stays in fp32"):
        read_plan(written(rule | change))


# Positions


@pytest.mark.parametrize(
    ("level", "down", "block"),
    [((0, 0, 9), 2, "down 0"), ((1, 0, 9), 2, "down 1"), ((2, 0, 9), 2, "middle"), ((2, 1, 9), 2, "up 1"),
     ((0, 3, 9), 0, "up 3")],
)  # fmt: skip
def test_a_block_is_known_by_its_resolution(level: tuple[int, int, int], down: int, block: str) -> None:
    assert _block(level, down) == block


def test_positions_tell_kind_block_and_depth() -> None:
    """Twice as small by a stride along one side, and larger again; equal nodes of one depth share a number."""
    text = """g (float[1, 2, 8, 6] x) => (float[1, 2, 8, 6] y, float[1, 2, 8, 3] z) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)  a1 = Relu (a)  a2 = Relu (a)
        b = Conv <strides = [1, 2], pads = [1, 1, 1, 1]> (a1, w)  c = Relu (b)
        r = Reshape (c, sizes)  z = Mul (r, k)
        u = Resize <mode = "nearest"> (c, , scales)  s = Add (u, a2)  d = Conv <pads = [1, 1, 1, 1]> (s, w2)
        y = Relu (d)
    }"""
    weights = {
        "w": np.ones((2, 2, 3, 3), np.float32), "w2": np.ones((2, 2, 3, 3), np.float32),
        "k": np.array(2.0, np.float32), "sizes": np.array([1, 2, 8, 3]),
        "scales": np.array([1, 1, 1, 2], np.float32),
    }  # fmt: skip
    editor = edit(text, weights)
    found = {
        editor_node.outputs[0].name: find_positions(editor).get(editor_node.name) for editor_node in editor.graph.nodes
    }
    assert found["r"] is None  # it only shows
    known = {name: each for name, each in found.items() if each is not None}
    assert {name: each.block for name, each in known.items()} == {
        "a": "down 0", "a1": "down 0", "a2": "down 0", "b": "middle", "c": "middle", "z": "middle", "u": "up 1",
        "s": "up 1", "d": "up 1", "y": "up 1",
    }  # fmt: skip
    assert known["z"].kind == NodeKind("Mul", ("Relu", "weight"), ())
    assert known["s"].kind == NodeKind("Add", ("Relu", "Resize"), ("Conv.0",))
    assert known["c"].kind == NodeKind("Relu", ("Conv",), ("Mul", "Resize.0"))
    assert known["a"].kind == NodeKind("Conv", ("input", "weight"), ("Relu.0",))
    shown = {node.outputs[0].name: node.name for node in editor.graph.nodes}
    assert with_views(editor, {shown["c"], shown["z"]}) == {shown["c"], shown["r"], shown["z"]}
    assert with_views(editor, {shown["c"]}) == {shown["c"]}
    assert with_views(editor, {shown["z"]}) == {shown["z"]}
    selection = _selection(editor, [], {shown["a"], shown["d"], shown["z"]}, 12)
    assert (selection.node_share, selection.extra_bytes) == (0.25, 2 * (36 + 36 + 1))
    viewed = _selection(editor, [], {shown["c"], shown["z"]}, 10)
    assert (viewed.node_share, len(viewed.nodes)) == (0.2, 3)
    assert _extra_bytes(editor, {shown["r"], shown["u"]}) == 0  # neither sizes nor scales are halved


def test_equal_nodes_are_counted_by_depth() -> None:
    text = """g (float[4, 4] x) => (float[4, 4] y) {
        a = MatMul (x, w)  p = Relu (a)  q = Relu (a)  b = MatMul (p, w)  r = Relu (b)
        c = MatMul (r, w)  s = Relu (c)  t = Sum (s, q)  y = MatMul (t, w)
    }"""
    editor = edit(text, {"w": np.ones((4, 4), np.float32)})
    found = find_positions(editor)
    numbers = {node.outputs[0].name: found[node.name].number for node in editor.graph.nodes}
    # p goes to a product, as r does; q and s go to the sum.
    assert [numbers[name] for name in "pr"] == [0, 1]
    assert [numbers[name] for name in "qs"] == [0, 1]
    assert [numbers[name] for name in "bcy"] == [0, 1, 0]
    assert {each.block for each in found.values()} == {EVERYWHERE}


def test_a_model_that_only_shrinks_has_blocks_too() -> None:
    text = """g (float[1, 2, 8, 6] x) => (float[1, 2, 4, 6] y) {
        a = Relu (x)  y = Conv <strides = [2, 1], pads = [1, 1, 1, 1]> (a, w)
    }"""
    editor = edit(text, {"w": np.ones((2, 2, 3, 3), np.float32)})
    found = find_positions(editor)
    assert [found[node.name].block for node in editor.graph.nodes] == ["down 0", "middle"]


# Ranges and risks


@pytest.mark.parametrize(
    ("largest", "large", "small"),
    [
        (0.0, False, False), (SMALLEST_NORMAL / 2, False, True), (SMALLEST_NORMAL, False, False), (1.0, False, False),
        (LARGEST / 4, False, False), (LARGEST / 4 + 1, True, False), (1e30, True, False),
    ],
)  # fmt: skip
def test_the_ends_of_fp16(largest: float, large: bool, small: bool) -> None:
    found = Range(largest)
    assert (found.too_large, found.too_small) == (large, small)
    assert _is_odd(found) is (large or small)


def test_ranges_are_odd_where_they_are_no_numbers_and_join_by_their_worst() -> None:
    assert _is_odd(Range(float("nan")))
    assert Range(1, 0.5, 0.1).joined(Range(2, 0.25, 0.3)) == Range(2, 0.5, 0.3)
    for a, b in itertools.permutations((Range(1, 0.5, 0.1), Range(2, 0.25, 0.3)), 2):
        assert a.joined(b) == b.joined(a)
    ends = np.array([LARGEST, LARGEST + 32, VANISHING, VANISHING * 1.5, 0, -1e36, 1e37, np.inf, -1])
    assert range_of([ends]) == Range(1e36, 2 / 9, 1 / 9)
    assert range_of([]) == NO_RANGE


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (Range(1e-6), "it is at most 1.0e-06"),
        (Range(1e-6, 0, 0.25), "it is at most 1.0e-06, 25.0% of it becomes zero"),
        (Range(2e5, 0.125), "it reaches 2e+05, 12.5% of it overflows"),
        (Range(1e5), "it reaches 1e+05"),
        (Range(3e4), "it reaches 3e+04, fp16 ends at 65504"),
    ],
)  # fmt: skip
def test_a_risk_in_words(measured: Range, words: str) -> None:
    assert Risk("it", measured).reason == words


SMALL, BIG = Range(1e-6), Range(1e5)


@pytest.mark.parametrize(
    ("operator", "inputs", "ranges", "risky"),
    [
        ("Mul", "x, w", {"w": SMALL}, True), ("Add", "x, w", {"w": SMALL}, False), ("Sub", "x, w", {"w": SMALL}, False),
        ("Div", "x, w", {"w": SMALL}, True), ("Mul", "w, x", {"w": SMALL}, True),
        ("MatMul", "x, w", {"w": SMALL}, True),
        ("Sum", "x, w", {"w": SMALL}, False), ("Add", "x, w", {"w": BIG}, True), ("Relu", "x", {"x": SMALL}, True),
        ("Add", "x, w", {"x": SMALL}, False), ("Relu", "x", {"y": BIG}, True), ("Relu", "x", {"y": SMALL}, False),
        ("Gemm", "x, w, w2", {"w2": SMALL}, False), ("Gemm", "x, w, w2", {"w": SMALL}, True),
        ("Sum", "x, w", {"x": SMALL}, False), ("Sub", "x, w", {"x": SMALL}, False),
        ("Relu", "x", {}, False), ("Identity", "x", {"x": BIG, "y": BIG}, False),
    ],
)  # fmt: skip
def test_what_is_small_counts_where_it_is_a_factor(
    operator: str, inputs: str, ranges: dict[str, Range], risky: bool
) -> None:
    weights = {name: np.ones((4, 4), np.float32) for name in ("w", "w2") if name in inputs.split(", ")}
    editor = edit(f"g (float[4, 4] x) => (float[4, 4] y) {{ y = {operator} ({inputs}) }}", weights)  # type: ignore[arg-type]
    found = find_risks(editor, Ranges(ranges))
    assert bool(found) is risky


def test_the_worst_risk_of_a_node_is_told() -> None:
    editor = edit(
        "g (float[4] x) => (float[4] y, float[4] z) { y = Mul (x, w)  z = Relu (y) }", {"w": np.ones(4, np.float32)}
    )
    found = find_risks(editor, Ranges({"x": BIG, "w": SMALL, "y": Range(2e5)}, {}))
    first, second = (found[node.name] for node in editor.graph.nodes)
    assert (first.what, first.range.largest) == ("its output y", 2e5)
    assert second.what == "its input y"
    scores = find_risks(editor, Ranges({"w": SMALL}, {editor.graph.nodes[0].name: BIG}))
    assert [risk.what for risk in scores.values()] == ["the bound on its scores"]
    assert _computed(editor) == ["x", "y", "z"]
    weighed = find_risks(editor, Ranges({"w": SMALL}))
    assert [risk.what for risk in weighed.values()] == ["its weight w"]


# The selection


def test_a_selection_s_report_has_its_own_numbers() -> None:
    rule = PlanRule(MUL, None, "too large")
    selection = Fp32Selection([rule], {"a", "b", "c"}, 0.123456, 77, "recorded", "bad", "good", 0.98765)
    found = selection.report()
    assert [(each.where, each.why) for each in found.rules] == [(str(rule), "too large")]
    assert (found.nodes, found.share_of_nodes, found.share_of_time, found.bytes) == (3, 0.1235, 0.9877, 77)
    assert (found.measured, found.without, found.within) == ("recorded", "bad", "good")
    assert Fp32Selection([], set(), 0.0, 0).report().share_of_time is None


def test_a_plan_without_a_component_leaves_it_in_fp16_and_all_are_written(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y) { a = Mul (x, w)  y = Relu (a) }"
    editor = edit(text, {"w": np.ones(4, np.float32)})
    mul, relu = editor.graph.nodes
    rule = PlanRule(find_positions(editor)[mul.name].kind, None, "it is")
    for plan, chosen in (({"unet": [rule]}, {mul.name}), ({"vae_decoder": [rule]}, set()), ({}, set())):
        editor.model.component = "unet"
        selector = Fp32Selector(tmp_path, tmp_path, plan)
        assert set(selector.select_nodes(editor, tmp_path)) == chosen
        assert selector.selections["unet"].node_share == len(chosen) / 2
        selector.write_plan(tmp_path, "rocm")
        assert read_plan(tmp_path / "fp16-plan.json") == {"unet": plan.get("unet", [])}
    assert isinstance(relu, gs.Node)


@pytest.mark.parametrize(("count", "kept"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (7, [0, 3, 6]), (6, [0, 2, 5])])
def test_the_first_the_last_and_one_between_are_kept(count: int, kept: list[int]) -> None:
    assert KEPT == 3
    feeds: Any = [{"x": np.array(number)} for number in range(count)]
    assert [int(each["x"]) for each in _some(feeds)] == kept
