"""What becomes of measured numbers: in ranges, in risks, in positions, and in the selection of a component."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from support.small_graphs import edit, parse

from sdort.errors import BadModelError, ParityError, ProviderError, UsageError
from sdort.onnx_io.save import save_model
from sdort.passes import half
from sdort.precision import fp32_selection, probes, ranges
from sdort.precision.fp32_selection import Fp32Selector
from sdort.precision.plan import PlanRule, _to_json
from sdort.precision.positions import NodeKind, _levels, _reads, find_positions
from sdort.precision.ranges import MOVES, Range, Ranges
from sdort.precision.risks import find_risks

SMALL, BIG = Range(1e-6), Range(1e5)


def test_extremes_are_joined_over_runs_by_tensor_and_node() -> None:
    found = Ranges({"w": Range(7.0)})
    for highest, lowest, bound in ((3.0, -2.0, 5.0), (-1.0, -4.0, 9.0), (2.0, 0.5, 1.0)):
        outputs = {
            "a//highest": np.array(highest), "a//lowest": np.array(lowest), "b/c//x//highest": np.array(-highest),
            "attention//logits": np.array([bound]), "y": np.array([100.0]), "odd//other": np.array([100.0]),
        }  # fmt: skip
        ranges._note_extremes(found, outputs)
    assert found.tensors == {"w": Range(7.0), "a": Range(4.0), "b/c//x": Range(3.0)}
    assert found.logits == {"attention": Range(9.0)}


def test_shares_are_joined_over_runs_each_by_its_worst() -> None:
    found = Ranges()
    for shares in ((1e5, 0.5, 0.0), (2e4, 0.0, 0.25)):
        ranges._note_shares(found, {"a//x//shares": np.array(shares), "y": np.array([9.0]), "b//highest": np.array(9)})
    assert found.tensors == {"a//x": Range(1e5, 0.5, 0.25)}


def test_views_of_views_show_the_first_tensor() -> None:
    editor = edit(
        """g (float[2, 3, 4] x) => (float[a, b, c] y, float[d, e, f] z) {
        t = Transpose <perm = [2, 0, 1]> (x)  r = Reshape (t, s)  i = Identity (r)  u = Unsqueeze (i, n)
        q = Squeeze (u, n)  y = Relu (q)  e = Expand (x, w)  f = Flatten (e)  o = Cast <to = 1> (e)  z = Relu (o) }""",
        {"s": np.array([6, 2, 2]), "n": np.array([0]), "w": np.array([2, 3, 4])},
    )
    found = Ranges({"x": Range(4.0)})
    ranges._fill_views(editor, found)
    assert found.tensors == dict.fromkeys(["x", "t", "r", "i", "u", "q", "e", "f"], Range(4.0))


def test_the_first_output_that_is_no_number_is_named() -> None:
    good = {"a": np.ones(3, np.float32), "whole": np.array([2**40]), "said": np.array([True])}
    ranges._refuse_infinite(good, "unet")
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ParityError) as raised:
            ranges._refuse_infinite({**good, "b": np.array([1, bad], np.float32)}, "unet")
        assert (raised.value.component, "output 'b'" in raised.value.message) == ("unet", True)


@pytest.mark.parametrize("error", [BadModelError("it is odd"), ProviderError("it is odd"), UsageError("no"), OSError()])
def test_what_the_cpu_does_not_run_is_the_model_s(error: Exception) -> None:
    own = isinstance(error, BadModelError | ProviderError)
    with pytest.raises(BadModelError if own else type(error)) as raised, ranges._measured("unet"):
        raise error
    if own:
        assert isinstance(raised.value, BadModelError)
        assert (raised.value.message, raised.value.component) == ("it cannot be measured: it is odd", "unet")


def test_all_inputs_are_run_in_one_session_of_the_plain_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Any, ...]] = []

    def opening(*arguments: Any) -> Any:
        opened.append(arguments)
        return SimpleNamespace(component="unet", run=lambda feed: {"y": feed["x"]})

    monkeypatch.setattr(ranges, "open_graph", opening)
    proto = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    results = list(ranges._run_all(proto, tmp_path, [{"x": np.ones(2)}, {"x": np.zeros(2)}], "unet"))
    assert [float(result["y"][0]) for result in results] == [1.0, 0.0]
    ((_, path, component, provider, options, _),) = opened
    assert (path, component, provider.name) == (tmp_path / "model.onnx", "unet", "cpu")
    assert (options.provider, options.custom_ops, options.profile) == ("cpu", "off", "")
    assert (options.control_inputs, options.split) == (True, False)
    ranges.open_inlined(proto, tmp_path / "other", "vae_decoder", "times")
    assert (opened[1][1:3], opened[1][4].profile) == ((tmp_path / "other", "vae_decoder"), "times")


# Probes


def test_probes_stand_where_the_tensors_are_made() -> None:
    proto = parse("g (float[2] x, float[2] u) => (float[2] y) { a = Relu (x)  b = Neg (u)  y = Add (a, b) }")
    probes.add_extremes(proto, ["u", "a", "y"])
    assert [node.output[0] for node in proto.graph.node] == [
        "u//highest", "u//lowest", "a", "a//highest", "a//lowest", "b", "y", "y//highest", "y//lowest",
    ]  # fmt: skip
    assert [node.op_type for node in proto.graph.node if "//" in node.output[0]] == ["ReduceMax", "ReduceMin"] * 3
    assert [output.name for output in proto.graph.output][1:] == [
        f"{name}//{what}" for name in "uay" for what in ("highest", "lowest")
    ]
    shares = parse("g (float[2] x) => (float[2] a, float[2] b) { a, b = Split <num_outputs = 2> (x) }")
    probes.add_shares(shares, ["b", "a"])
    assert [node.output[0] for node in shares.graph.node] == ["a", "a//shares", "b//shares"]


# Risks

READS: dict[str, tuple[str, dict[str, Range], set[str]]] = {
    # Operators of the standard: what is a factor, and what is added.
    "filters": ("y = Conv (x, w, c)", {"w": SMALL}, {"weight w"}),
    "a convolution's bias": ("y = Conv (x, w, c)", {"c": SMALL}, set()),
    "filters turned": ("y = ConvTranspose (x, w, c)", {"w": SMALL}, {"weight w"}),
    "the bias of those": ("y = ConvTranspose (x, w, c)", {"c": SMALL}, set()),
    "a matrix": ("y = MatMul (x, w)", {"w": SMALL}, {"weight w"}),
    "the left matrix": ("y = MatMul (w, x)", {"w": SMALL}, {"weight w"}),
    "a dividend": ("y = Div (w, x)", {"w": SMALL}, {"weight w"}),
    "keys": ("y = Attention <q_num_heads = 1, kv_num_heads = 1> (x, w, x)", {"w": SMALL}, {"weight w"}),
    "values": ("y = Attention <q_num_heads = 1, kv_num_heads = 1> (x, x, w)", {"w": SMALL}, set()),
    "what is put together": ("y = Concat <axis = 0> (x, w)", {"x": SMALL, "w": SMALL}, set()),
    "what is put together and large": ("y = Concat <axis = 0> (x, w)", {"w": BIG}, {"weight w"}),
    "a norm's weight": ("y = LayerNormalization (x, w, c)", {"w": SMALL}, set()),
    "an own operator's bias": ("y = com.microsoft.BiasAdd (x, w, c)", {"w": SMALL}, set()),
    # Small results count if anything but a sum reads them, views or not.
    "a sum of views": ("t = Relu (x)  i = Identity (t)  j = Identity (i)  y = Add (j, x)", {"t": SMALL}, set()),
    "a product of views": ("t = Relu (x)  i = Identity (t)  j = Identity (i)  y = Mul (j, x)", {"t": SMALL},
                           {"output t"}),
    "one of two readers": ("t = Relu (x)  y = Add (t, x)  z = Neg (t)", {"t": SMALL}, {"output t", "input t"}),
    "a view's second reader": ("t = Relu (x)  i = Identity (t)  y = Add (i, x)  z = Neg (i)", {"t": SMALL},
                               {"output t"}),
    "large for a sum": ("t = Relu (x)  y = Add (t, x)", {"t": BIG}, {"output t", "input t"}),
}  # fmt: skip


@pytest.mark.parametrize(("body", "measured", "risky"), READS.values(), ids=READS)
def test_each_input_counts_as_its_operator_computes_with_it(
    body: str, measured: dict[str, Range], risky: set[str]
) -> None:
    weights = {name: np.ones((1, 4, 4), np.float32) for name in "wc" if f" {name})" in body or f"{name}," in body}
    editor = edit(f"g (float[1, 4, 4] x) => (float[a, b, c] y) {{ {body} }}", weights)
    found = find_risks(editor, Ranges(measured))
    assert {risk.what.removeprefix("its ") for risk in found.values()} == risky


# Positions


def positions_of(body: str, *weights: str) -> tuple[Any, dict[str, str]]:
    made: dict[str, Any] = {name: np.ones((2, 2, 1, 1), np.float32) for name in weights}
    made |= {"four": np.array([1, 1, 2, 2], np.float32)} if "four" in body else {}
    editor = edit(f"g (float[1, 2, 8, 6] x) => (float[a, b, c, d] y) {{ {body} }}", made)
    return editor, {node.outputs[0].name: node.name for node in editor.graph.nodes}


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("y = Conv <strides = [2, 1]> (a, w)", (1, 1, 3)),
        ("y = Conv <strides = [1, 3]> (a, w)", (1, 1, 3)),
        ("y = Conv <strides = [1, 1]> (a, w)", (0, 1, 3)),
        ("y = ConvTranspose <strides = [2, 2]> (a, w)", (1, 2, 2)),
        ('y = Resize <mode = "nearest"> (a, , four)', (0, 2, 2)),
        ("y = DepthToSpace <blocksize = 2> (a)", (0, 2, 2)),
        ("y = MatMul (a, x)", (0, 1, 3)),
        ("y = Gemm (a, x)", (0, 1, 3)),
        ("y = Softmax (a)", (0, 1, 3)),
        ("y = LayerNormalization (a, w)", (0, 1, 3)),
        ("y = InstanceNormalization (a, w, w)", (0, 1, 3)),
        ("y = Attention (a, x, x)", (0, 1, 3)),
        ("y = com.microsoft.NhwcConv (a, w)", (0, 1, 3)),
        ("y = com.microsoft.SkipLayerNormalization (a, x, w)", (0, 1, 3)),
        ("y = com.microsoft.MultiHeadAttention <num_heads = 1> (a, x, x)", (0, 1, 3)),
        ("y = com.microsoft.FusedMatMul (a, x)", (0, 1, 3)),
        ("y = Relu (a)", (0, 1, 2)),
        ("y = Mul (x, a)", (0, 1, 2)),
        ("y = Mul (x, x)", (0, 0, 0)),
    ],
)
def test_levels_are_counted_along_the_longest_path(line: str, level: tuple[int, int, int]) -> None:
    body = f'u = Resize <mode = "nearest"> (x, , four)  v = Conv (u, w)  a = Conv (v, w)  {line}'
    editor, names = positions_of(body, "w")
    assert _levels(editor)[names["y"]] == level


READS_OF: dict[str, tuple[str, tuple[str, ...]]] = {
    "of a sum in any order": ("a = Relu (x)  b = Conv (x, w)  y = Add (a, b)", ("Conv", "Relu")),
    "of a product in any order": ("a = Relu (x)  y = Mul (a, w)", ("Relu", "weight")),
    "of a difference in its own": ("a = Relu (x)  y = Sub (x, a)", ("input", "Relu")),
    "through views and casts": ("a = Relu (x)  b = Cast <to = 10> (a)  c = Identity (b)  d = Cast <to = 1> (c)"
                                "  y = Sub (d, w)", ("Relu", "weight")),
    "of floats alone": ("a = Shape (x)  b = Relu (x)  y = Reshape (b, a)", ("Relu",)),
    "gathered in two spellings": ("i = Cast <to = 7> (x)  a = GatherND (x, i)  y = Neg (a)", ("Gather",)),
}  # fmt: skip


@pytest.mark.parametrize(("body", "sources"), READS_OF.values(), ids=READS_OF)
def test_where_a_node_reads_from(body: str, sources: tuple[str, ...]) -> None:
    editor, names = positions_of(body, "w")
    node = next(node for node in editor.graph.nodes if node.name == names["y"])
    assert _reads(editor, node) == sources


FEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "both inputs of one": ("y = Sub (t, t)", ("Sub.0", "Sub.1")),
    "one without an order": ("y = Mul (t, x)", ("Mul",)),
    "through a cast and a view": ("i = Cast <to = 10> (t)  j = Identity (i)  y = Neg (j)", ("Neg.0",)),
    "the second input of a view is read": ("c = Cast <to = 7> (t)  y = Reshape (x, c)", ("Reshape.1",)),
    "a shape is nothing": ("s = Shape (t)  y = Reshape (x, s)  z = Neg (t)", ("Neg.0",)),
    "two places": ("y = Sub (x, t)  z = Neg (t)", ("Neg.0", "Sub.1")),
}


@pytest.mark.parametrize(("body", "feeds"), FEEDS.values(), ids=FEEDS)
def test_where_a_node_s_output_goes(body: str, feeds: tuple[str, ...]) -> None:
    editor, names = positions_of(f"t = Relu (x)  {body}")
    assert find_positions(editor)[names["t"]].kind.feeds == feeds


def test_a_rule_is_written_with_every_part_in_its_place() -> None:
    kind = NodeKind("Mul", ("Conv", "weight"), ("Add",))
    parts = {"operator": "Mul", "reads": ("Conv", "weight"), "feeds": ("Add",), "reason": "too large"}
    assert _to_json(PlanRule(kind, None, "too large")) == {**parts, "blocks": "every"}
    for blocks in ({}, {"up 1": [0, 2]}):
        assert _to_json(PlanRule(kind, blocks, "too large")) == {**parts, "blocks": blocks}


# The selection


@pytest.fixture
def selector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Fp32Selector, list[tuple[Any, ...]]]]:
    """A selector whose runs are noted and not done."""
    calls: list[tuple[Any, ...]] = []
    feeds = [{"x": np.ones(4)}, {"x": np.zeros(4)}]

    def inputs(component: str, path: Path, recorded: Any) -> Any:
        calls.append(("inputs", component, path.name, recorded))
        return feeds, "two prompts"

    def timed(proto: onnx.ModelProto, feed: Any, folder: Path, component: str) -> Any:
        calls.append(("timed", [node.op_type for node in proto.graph.node], feed is feeds[-1], folder.is_dir()))
        return {"y": "expected"}, {"Mul.1": 3.0, "Relu.0": 1.0}

    def tried(editor: Any, keep: Any, feed: Any, expected: Any, folder: Path) -> str:
        calls.append(("tried", sorted(keep), feed is feeds[-1], expected))
        return f"{len(keep)} kept"

    monkeypatch.setattr(fp32_selection, "inputs_for", inputs)
    monkeypatch.setattr(fp32_selection, "timed_run", timed)
    monkeypatch.setattr(fp32_selection, "run_trial", tried)
    monkeypatch.setattr(fp32_selection, "share", lambda times, names: len(names) * times["Mul.1"] / 12)
    yield Fp32Selector(tmp_path / "file.onnx", tmp_path), calls
    assert list(tmp_path.iterdir()) == []


BODY = "g (float[4] x) => (float[4] y) { a = Relu (x)  b = Mul (a, w)  i = Identity (b)  y = Neg (i) }"


@pytest.mark.parametrize("large", ["b", "nothing"])
def test_a_measured_selection_is_tried_without_and_with_it(
    large: str, selector: tuple[Fp32Selector, list[tuple[Any, ...]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    selects, calls = selector
    measured: list[int] = []

    def measure(editor: Any, feeds: Any, folder: Path) -> Ranges:
        measured.append(len(feeds))
        return Ranges({name: BIG for name in ("b", "i") if large == "b"})

    monkeypatch.setattr(fp32_selection, "measure_ranges", measure)
    editor = edit(BODY, {"w": np.ones(4, np.float32)})
    nodes = selects.select_nodes(editor, tmp_path / "model.onnx")
    selection = selects.selections["test"]
    assert (measured, selection.measured) == ([2], "two prompts")
    assert calls[0] == ("inputs", "test", "model.onnx", {})
    if large == "nothing":
        assert (nodes, calls[1:], selection.time_share, selection.without) == (set(), [], None, "")
        return
    chosen = ["Identity.2", "Mul.1", "Neg.3"]  # what makes it, what reads it, and the view between
    assert sorted(nodes) == chosen
    assert calls[1:] == [
        ("timed", ["Relu", "Mul", "Identity", "Neg"], True, True),
        ("tried", [], True, {"y": "expected"}),
        ("tried", chosen, True, {"y": "expected"}),
    ]
    assert (selection.without, selection.within, selection.time_share) == ("0 kept", "3 kept", 0.75)
    assert (selection.node_share, selection.extra_bytes) == (2 / 3, 8)
    assert [rule.kind.operator for rule in selection.rules] == ["Mul", "Neg"]


def test_inputs_are_recorded_once_for_all_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Path] = []

    def record(folder: Path) -> dict[str, Any]:
        recorded.append(folder)
        return {"unet": []}

    monkeypatch.setattr(fp32_selection, "recorded_inputs", record)
    selects = Fp32Selector(tmp_path, tmp_path)
    assert [selects._inputs(), selects._inputs()] == [{"unet": []}] * 2
    assert recorded == [tmp_path]
    assert Fp32Selector(tmp_path / "a.onnx", tmp_path)._inputs() == {}
    assert len(recorded) == 1


@pytest.mark.parametrize("overflowed", [[], ["a", "b"]])
def test_a_trial_converts_a_copy_and_compares_what_it_gives(
    overflowed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    real = half.run

    def convert(editor: Any, **options: Any) -> Any:
        kept.append(options)
        return real(editor, **options)

    monkeypatch.setattr(half, "run", convert)
    save = save_model

    def saving(model: Any, path: Path) -> Any:
        save(model, path)
        return SimpleNamespace(overflowed=overflowed)

    monkeypatch.setattr(fp32_selection, "save_model", saving)
    editor = edit("g (float[4] x) => (float[4] y) { a = Mul (x, x)  y = Neg (a) }")
    x = np.array([300.0, 1.0, 2.0, 3.0], np.float32)
    squares = {"y": -x * x}
    words = {
        keep: fp32_selection.run_trial(editor, keep, {"x": x}, squares, tmp_path) for keep in ((), ("Mul.0", "Neg.1"))
    }
    assert [sorted(options["keep"]) for options in kept] == [[], ["Mul.0", "Neg.1"]]
    assert len(editor.graph.nodes) == 2
    if overflowed:
        assert set(words.values()) == {"2 weights are infinite"}
    else:
        assert words[()] != words["Mul.0", "Neg.1"]
        assert "infinite" in words[()].lower() or "nan" in words[()].lower()


def test_moves_are_what_keeps_every_number() -> None:
    assert {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten", "Expand"} == MOVES
