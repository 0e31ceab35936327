"""The words of an optimization, from reports that are made by hand: groups, numbers, places, and what parameters
exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdort.cli.optimize_report import _precision, _summary, _verdict
from sdort.errors import UsageError
from sdort.lowering.component_report import ComponentReport, Fp32Report, Fp32Rule
from sdort.lowering.remaining import Remaining
from sdort.optimizer.command import _check_out, _check_precision, _check_report, _fp32_selector, _missed
from sdort.optimizer.optimize_request import OptimizeRequest
from sdort.optimizer.report import OptimizeReport
from sdort.optimizer.summary import (
    MOST_GROUPS,
    conclusion,
    explanation,
    fused_operators,
    left_places,
    miss_groups,
    miss_lines,
    miss_number,
    what_stays,
)
from sdort.rewrite.apply import DISABLED, Outcome, Unfused
from sdort.rewrite.fusion import load_fusions


def place(fusion: str, node: str = "n", kind: str = "odd", *, miss: bool = True, matched: int = 1) -> Unfused:
    return Unfused(fusion, node, f"it is {kind}", matched, 3, applicable=True, miss=miss, kind=kind)


def component(name: str, *outcomes: Outcome, **values: Any) -> ComponentReport:
    made = ComponentReport(name, **values)
    made.fusions = {outcome.name: outcome for outcome in outcomes}
    return made


def report(*components: ComponentReport, **values: Any) -> OptimizeReport:
    """Of components whose architectures are known."""
    made = OptimizeReport("in", "out", "rocm", False, **values)
    made.components = {each.component: replace(each, architecture_known=True) for each in components}
    return made


# Two fusions of one anchor, and one of another.
FIRST, SECOND = next(
    (a.name, b.name) for a in load_fusions().values() for b in load_fusions().values()
    if a.anchor == b.anchor and a.name != b.name
)  # fmt: skip
ANCHOR = load_fusions()[FIRST].anchor.rpartition(".")[2]
OTHER = next(f.name for f in load_fusions().values() if f.anchor != load_fusions()[FIRST].anchor)


# Misses


def test_misses_of_one_fusion_and_cause_are_a_group_with_the_most_candidates() -> None:
    outcomes = [
        Outcome(FIRST, candidates=3, left=[place(FIRST, "a"), place(FIRST, "b"), place(FIRST, "c", "long")]),
        Outcome(SECOND, candidates=9, left=[place(FIRST, "not one", miss=False)]),
        Outcome(OTHER, candidates=50),
    ]
    groups = miss_groups(report(component("unet", *outcomes), component("vae_decoder", *outcomes[:1])))
    assert [(group.component, group.fusion, group.count) for group in groups] == [
        ("unet", FIRST, f"2 of 9 {ANCHOR}"), ("unet", FIRST, f"1 of 9 {ANCHOR}"),
        ("vae_decoder", FIRST, f"2 of 3 {ANCHOR}"), ("vae_decoder", FIRST, f"1 of 3 {ANCHOR}"),
    ]  # fmt: skip
    assert groups[0].sentence == (f"unet: {FIRST} left 2 of 9 {ANCHOR}, such as 'a': it is odd (1 of 3 nodes matched)")
    assert groups[1].sentence == f"unet: {FIRST} left 1 of 9 {ANCHOR}, 'c': it is long (1 of 3 nodes matched)"
    fewer = miss_groups(report(component("unet", Outcome(FIRST, candidates=1, left=outcomes[0].left[:2]))))
    assert fewer[0].count == f"2 of 2 {ANCHOR}"


def test_many_groups_are_cut_short_and_counted() -> None:
    assert MOST_GROUPS == 8
    for number, last in ((8, "cause 7"), (9, "and 2 places for other reasons"), (10, "and 4 places for other reasons")):
        left = [place(FIRST, f"n{i}", f"cause {i}") for i in range(number) for _ in range(2)]
        lines = miss_lines(report(component("unet", Outcome(FIRST, left=left)), wrong_counts=["3 of 4 Conv"]))
        assert len(lines) == min(number, 9) + 1
        assert last in lines[-2]
        assert lines[-1] == "3 of 4 Conv"


@pytest.mark.parametrize(
    ("places", "counts", "words"),
    [
        (0, 0, ""), (1, 0, "1 place that should have fused did not"), (0, 1, "1 count of operators is wrong"),
        (2, 3, "2 places that should have fused did not and 3 counts of operators are wrong"),
    ],
)  # fmt: skip
def test_the_number_of_misses_in_words(places: int, counts: int, words: str) -> None:
    left = [place(FIRST) for _ in range(places)]
    made = report(component("unet", Outcome(FIRST, candidates=2, left=left)), wrong_counts=["x"] * counts)
    assert miss_number(made) == words
    if words:
        assert explanation(made) == f"{words[0].upper()}{words[1:]}."


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("disable", [(), ("attention", "nhwc")])
def test_an_error_names_the_ways_out(explain: bool, certain: bool, disable: tuple[str, ...]) -> None:
    request = OptimizeRequest(Path("in"), Path("out"), explain=explain, disable=disable)
    error = _missed(request, report(component("unet", Outcome(FIRST, left=[place(FIRST)]))), certain=certain)
    hint = error.hint or ""
    assert ("--explain shows them" in hint) is not explain
    assert ("--allow-misses writes" in hint) is not certain
    assert ("--disable leaves out: attention, nhwc." in hint) is (bool(disable) and not certain)
    assert ("\n  unet: " in error.message) is not explain
    assert error.message.startswith("1 place that should have fused did not, so nothing was written")


# What is fused, and what stays


def test_operators_of_other_domains_are_counted_by_name() -> None:
    parts = [
        ComponentReport("a", operators={"Conv": 5, "com.microsoft.GroupNorm": 2, "sdort.GroupNorm": 3}),
        ComponentReport("b", operators={"com.microsoft.GroupNorm": 4, "com.microsoft.NhwcConv": 1}),
    ]
    assert fused_operators(parts) == {"GroupNorm": 9, "NhwcConv": 1}
    made = report(*parts)
    made.components["a"].fusions = {name: Outcome(name, candidates=n) for name, n in ((FIRST, 0), (SECOND, 2))}
    made.components["b"].fusions = {name: Outcome(name, candidates=n) for name, n in ((SECOND, 0), (OTHER, 0))}
    assert explanation(made) == (
        "Everything that should fuse did: 9 GroupNorm, 1 NhwcConv; 2 fusions found nothing to do."
    )
    assert explanation(report(ComponentReport("a"))) == "Everything that should fuse did: no operator is fused."
    assert conclusion(made) == "Everything that should fuse did."


def test_what_stays_is_added_up_by_kind_with_each_reason_once() -> None:
    rows = [("group norm", 2, 5, "x"), ("transpose", 3, 0, "y"), ("group norm", 1, 4, "z"), ("group norm", 1, 1, "x")]
    parts = [ComponentReport(str(n), remaining=[Remaining(*row, "n")]) for n, row in enumerate(rows)]
    stays = "In standard operators stay 4 of 10 group norms (x; z), 3 transposes (y)."
    assert what_stays(report(*parts)) == conclusion(report(*parts)) == stays
    assert explanation(report(*parts)) == f"Fused: no operator is fused. {stays}"
    for left, of, text in ((1, 1, "1 of 1 norm"), (1, 2, "1 of 2 norms"), (1, 0, "1 norm"), (2, 0, "2 norms")):
        assert Remaining("norm", left, of, "", "").count == text


def test_of_a_graph_of_which_no_architecture_is_known_nobody_says_that_all_fused() -> None:
    named, model = ComponentReport("unet", architecture_known=True), ComponentReport("model")
    made = OptimizeReport("in", "out", "cpu", False)
    made.components = {"unet": named, "model": model}
    nobody = "No architecture is known of model, so nothing says what should fuse"
    assert conclusion(made) == f"{nobody}: none that sdort recognizes is in parts."
    named.whole, model.whole = {"Gelu": 7}, {"attention": 1}
    assert conclusion(made) == f"{nobody}: 1 attention is one operator each, none that sdort recognizes is in parts."
    model.whole = {"attention": 1, "RMS norm": 2}
    model.remaining = [Remaining("Gelu", 1, 3, "x", "n")]
    stays = f"In standard operators stay 1 of 3 Gelus (x). {nobody}: 1 attention, 2 RMS norms are one operator each."
    assert conclusion(made) == stays
    assert explanation(made) == f"Fused: no operator is fused. {stays}"


def test_places_that_stay_are_told_by_reason_with_the_graph_s_own_numbers() -> None:
    declined: list[Mapping[str, int]] = [
        {"heads of 64 or less, this one has 160": 3, "no kernel": 2}, {"heads of 64 or less, this one has 256": 4},
        {"no kernel": 5, "8 channels, this one has 7": 1},
    ]  # fmt: skip
    parts = [ComponentReport(name, declined=dict(each)) for name, each in zip("abc", declined, strict=True)]
    off = Outcome(FIRST, left=[place(FIRST, kind=DISABLED), place(FIRST, kind="else"), place(FIRST, kind=DISABLED)])
    parts[0].fusions, parts[2].fusions = {FIRST: off, OTHER: Outcome(OTHER, left=[place(OTHER)])}, {FIRST: off}
    assert left_places(report(*parts)) == [
        (7, "a, b", "heads of 64 or less; here: 160 (3), 256 (4)"), (7, "a, c", "no kernel"),
        (1, "c", "8 channels, this one has 7"), (4, "a, c", f"--disable {FIRST}"),
    ]  # fmt: skip


def test_reasons_of_several_fusions_at_one_place_count_once() -> None:
    made = ComponentReport("unet")
    made.add_outcomes([Outcome("a", declined={"x": 2, "y": 1}), Outcome("b", declined={"x": 3})])
    made.add_outcomes([Outcome("c", declined={"y": 4})])
    assert made.declined == {"x": 3, "y": 4}
    assert list(made.fusions) == ["a", "b", "c"]


# What is printed


def test_a_component_s_line_and_the_verdict() -> None:
    part = ComponentReport(
        "unet", nodes_before=1500, nodes_after=700, seconds={"load": 1.25, "fuse": 2.0}, bytes=2_000_000,
        bytes_before=4_000_000, operators={"Conv": 3, "com.microsoft.NhwcConv": 2, "sdort.GroupNorm": 8},
    )  # fmt: skip
    other = ComponentReport("vae_decoder", nodes_before=9, nodes_after=8, bytes=1_000_000, bytes_before=1_000_000)
    made = report(part, other, seconds=4.5, peak_rss_mb=321)
    made.precision = "fp16"
    rows = [[cell.replace("\u00a0", " ") for cell in row.cells] for row in _summary(made).rows]
    assert rows == [
        ["unet", "1,500 -> 700", "3.2", "2.0 MB", "8 GroupNorm, 2 NhwcConv"],
        ["vae_decoder", "9 -> 8", "0.0", "1.0 MB", "none"],
    ]  # fmt: skip
    start = "optimized for rocm in fp16: 5.0 MB -> 3.0 MB in out, 4.5 s, peak memory 321 MB. "
    assert _verdict(made, False) == f"2 components {start}Everything that should fuse did."
    assert "8 GroupNorm" in _verdict(made, True)
    missed = replace(made, wrong_counts=["x"])
    assert _verdict(missed, False).endswith("321 MB. But 1 count of operators is wrong.")
    assert _verdict(report(other), False).startswith("vae_decoder optimized for rocm in fp32")


def test_nodes_that_stay_in_fp32_are_told_with_their_share() -> None:
    rules = [Fp32Rule(f"where {n}", f"why {n}") for n in range(6)]
    made = Fp32Report("recorded", rules, 12, 0.125, 0.25, 3_000_000, "bad", "good")
    assert list(_precision(made, False)) == [
        "in fp32: 12 nodes (12.5%), 25.0% of the time of a run in fp32 on this CPU, 3.0 MB more",
        "  in fp16 alone bad; like this good", *(f"  where {n}: why {n}" for n in range(4)),
        "  and 2 more kinds of nodes: --explain",
    ]  # fmt: skip
    assert list(_precision(made, True))[2:] == [f"  where {n}: why {n}" for n in range(6)]
    assert list(_precision(replace(made, rules=rules[:4]), False))[2:] == [f"  where {n}: why {n}" for n in range(4)]
    plan = replace(made, rules=rules[:1], share_of_time=None, without="", measured="")
    assert list(_precision(plan, False)) == ["in fp32: 12 nodes (12.5%), 3.0 MB more", "  where 0: why 0"]
    for measured, ends in (("random", " (inputs random)"), ("", "")):
        [line] = _precision(replace(made, rules=[], measured=measured), False)
        assert line == f"nothing that fp16 could not hold{ends}"
    assert list(_precision(None, True)) == []


# Parameters


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"fp16_plan": Path("p"), "fp16": "auto"}, "--fp16 auto makes its own plan"),
        ({"bf16": True, "fp16": True, "provider": "migraphx"}, "--bf16 and --fp16 exclude each other"),
        ({"bf16": True, "provider": "rocm"}, "bf16"), ({"fp16": True, "io_fp16": True, "fp16_plan": Path("p")}, ""),
        ({"bf16": True, "provider": "migraphx"}, ""), ({"fp16": "auto", "io_fp16": True}, ""),
    ],
)  # fmt: skip
def test_precisions_that_exclude_each_other(values: dict[str, Any], words: str) -> None:
    request = OptimizeRequest(Path("in"), Path("out"), **values)
    if not words:
        _check_precision(request)
        return
    with pytest.raises(UsageError, match=words):
        _check_precision(request)


def test_places_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for out, words in (("in", "is the input"), ("in/fast", "lies in the input"), ("in/../in/x/y", "lies in the")):
        with pytest.raises(UsageError, match=words):
            _check_out(OptimizeRequest(tmp_path / "in", tmp_path / out))
    for out in ("inside", "out", "."):
        _check_out(OptimizeRequest(tmp_path / "in", tmp_path / out))
    for inside in ("out", "out/report.json", "out/unet/x"):
        with pytest.raises(UsageError, match="lies in the output folder"):
            _check_report(OptimizeRequest(tmp_path / "in", tmp_path / "out", report=tmp_path / inside))
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    with pytest.raises(Exception, match="belongs to the input"):
        _check_report(OptimizeRequest(tmp_path / "in", tmp_path / "out", overwrite=True, fp16_plan=plan, report=plan))
    _check_report(OptimizeRequest(tmp_path / "in", tmp_path / "out", report=tmp_path / "out.json"))


def test_nodes_are_selected_only_in_fp16_and_where_it_is_asked_for(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"fp16-plan": 1, "components": {"unet": []}}')
    for values, found in (
        ({}, None), ({"fp16": True}, None), ({"fp16_plan": plan}, None),
        ({"fp16": "auto"}, "measured"), ({"fp16": True, "fp16_plan": plan}, {"unet": []}),
    ):  # fmt: skip
        selector = _fp32_selector(OptimizeRequest(tmp_path / "in", tmp_path / "out", **values), tmp_path)
        assert (selector and ("measured" if selector.plan is None else selector.plan)) == found
        assert selector is None or (selector.source, selector.scratch) == (tmp_path / "in", tmp_path)
    assert [
        OptimizeRequest(Path("a"), Path("b"), fp16=fp16, bf16=bf16).precision
        for fp16, bf16 in ((False, False), (True, False), (False, True))
    ] == ["fp32", "fp16", "bf16"]
