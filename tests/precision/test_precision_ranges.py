"""What is measured of a graph, and what of it is a risk."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.small_graphs import Array, edit, parse

from sdort.errors import BadModelError, ParityError
from sdort.precision import probes, ranges
from sdort.precision.inputs import inputs_for, recorded_inputs
from sdort.precision.ranges import Range, Ranges, measure_ranges, range_of
from sdort.precision.risks import find_risks
from sdort.rewrite.editor import Editor

RNG = np.random.default_rng(0)


def measured(
    text: str, tmp_path: Path, feeds: list[Mapping[str, Any]], weights: Mapping[str, Array] | None = None
) -> tuple[Editor, Ranges]:
    editor = edit(text, weights)
    return editor, measure_ranges(editor, feeds, tmp_path)


def risky(editor: Editor, found: Ranges) -> dict[str, str]:
    """The operators at risk and why."""
    risks = find_risks(editor, found)
    return {node.op: risks[node.name].reason for node in editor.graph.nodes if node.name in risks}


CHAIN = "g (float[B, H] x) => (float[B, H] y) { a = Mul (x, k)  n = Neg (a)  y = Div (n, k) }"


def test_the_largest_of_every_tensor_over_all_inputs(tmp_path: Path) -> None:
    k, x = np.array(3.0, np.float32), np.array([[1.0, -2.0]], np.float32)
    _, found = measured(CHAIN, tmp_path, [{"x": x}, {"x": -5 * x}, {"x": x}], {"k": k})
    wanted = {"x": 10.0, "k": 3.0, "a": 30.0, "n": 30.0, "y": 10.0}
    assert {name: found.tensors[name].largest for name in wanted} == wanted


def test_the_shares_of_what_overflows_and_of_what_vanishes(tmp_path: Path) -> None:
    x = np.array([[1e5, -7e4, 65504.0, 3.0, 2.0**-25, -1e-9, 0.0, 1.0]], np.float32)
    _, found = measured("g (float[B, 8] x) => (float[B, 8] y) { y = Neg (x) }", tmp_path, [{"x": x}])
    assert found.tensors["y"] == Range(1e5, 2 / 8, 2 / 8)
    assert range_of([x[:, :3], x[:, 3:]]) == found.tensors["y"]
    # As numpy rounds.
    with np.errstate(over="ignore"):
        rounded = x.astype(np.float16)
    assert (np.isinf(rounded).sum(), ((rounded == 0) & (x != 0)).sum()) == (2, 2)


def test_what_stands_for_infinity_does_not_count(tmp_path: Path) -> None:
    x = np.array([[2.0, 0.0]], np.float32)
    body = "a = Where (c, x, m)  y = Softmax (a)"
    made = {"m": np.array(np.finfo(np.float32).min), "c": np.array([True, False])}
    editor, found = measured(f"g (float[B, 2] x) => (float[B, 2] y) {{ {body} }}", tmp_path, [{"x": x}], made)
    assert found.tensors["a"].largest == 2.0
    assert found.tensors["m"] == Range()
    assert risky(editor, found) == {}


def test_more_tensors_than_are_looked_at_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "CLOSER", 2)
    body = "a = Abs (x)  b = Neg (a)  c = Abs (b)  d = Neg (c)  y = Abs (d)"
    x = np.array([[1e6, 1.0]], np.float32)
    _, found = measured(f"g (float[B, 2] x) => (float[B, 2] y) {{ {body} }}", tmp_path, [{"x": x}])
    assert {found.tensors[name] for name in "xabcdy"} == {Range(1e6, 0.5, 0.0)}


ATTENTIONS = {
    "apart": ("float[B, S, 8] q, float[B, L, 8] k, float[B, L, 8] v", "q, k, v"),
    "packed": ("float[B, S, 2, 3, 4] p", "p"),
    "packed key and value": ("float[B, S, 8] q, float[B, L, 2, 2, 4] k", "q, k"),
}


@pytest.mark.parametrize("scale", ["", ", scale = 0.125"])
@pytest.mark.parametrize("form", ATTENTIONS.values(), ids=ATTENTIONS)
def test_no_score_exceeds_the_bound(form: tuple[str, str], scale: str, tmp_path: Path) -> None:
    inputs, names = form
    node = f"y = com.microsoft.MultiHeadAttention <num_heads = 2{scale}> ({names})"
    sizes = {"q": (2, 5, 8), "k": (2, 7, 8), "v": (2, 7, 8), "p": (2, 5, 2, 3, 4)}
    if "2, 2, 4" in inputs:
        sizes["k"] = (2, 7, 2, 2, 4)
    feed = {n: 300 * RNG.standard_normal(sizes[n]).astype(np.float32) for n in names.split(", ")}
    # Keys are far smaller than queries.
    (feed["p"][..., 1, :] if "p" in feed else feed["k"])[...] /= 50
    editor, found = measured(f"g ({inputs}) => (float[B, S, 8] y) {{ {node} }}", tmp_path, [feed])
    (bound,) = found.logits.values()
    if "p" in feed:
        q, k = feed["p"][..., 0, :], feed["p"][..., 1, :]
    else:
        q = feed["q"].reshape(2, 5, 2, 4)
        k = feed["k"][..., 0, :] if feed["k"].ndim == 5 else feed["k"].reshape(2, 7, 2, 4)
    scores = np.abs(np.einsum("bshd,blhd->bhsl", q, k)) * (0.125 if scale else 0.5)
    assert scores.max() <= bound.largest <= 4 * scores.max()
    assert ("the bound on its scores" in risky(editor, found).get("MultiHeadAttention", "")) == bound.too_large


def test_the_projections_of_attention_are_inside_its_bound(tmp_path: Path) -> None:
    text = """g (float[B, S, 6] x) => (float[B, S, 8] y) {
        y = com.microsoft.Attention <num_heads = 2, unidirectional = 1> (x, w, b)
    }"""
    made: dict[str, Array] = {n: RNG.standard_normal(s).astype(np.float32) for n, s in (("w", (6, 24)), ("b", (24,)))}
    x = 1000 * RNG.standard_normal((2, 5, 6)).astype(np.float32)
    editor, found = measured(text, tmp_path, [{"x": x}], made)
    q, k = ((x @ made["w"] + made["b"])[..., 8 * i : 8 * i + 8].reshape(2, 5, 2, 4) for i in (0, 1))
    scores = np.abs(np.einsum("bshd,blhd->bhsl", q, k)) / 2
    (bound,) = found.logits.values()
    assert scores.max() <= bound.largest <= 4 * scores.max()
    assert list(risky(editor, found)) == ["Attention"]


def test_views_have_the_range_of_what_they_show(tmp_path: Path) -> None:
    body = "a = Neg (x)  t = Transpose <perm = [1, 0]> (a)  r = Reshape (t, s)  y = Abs (r)"
    text = f"g (float[2, 3] x) => (float[6] y) <int64[1] s = {{6}}> {{ {body} }}"
    editor, found = measured(text, tmp_path, [{"x": np.full((2, 3), 1e6, np.float32)}])
    assert found.tensors["r"] == found.tensors["t"] == found.tensors["a"] == Range(1e6, 1.0, 0.0)
    assert set(risky(editor, found)) == {"Neg", "Abs"}, "views follow what is around them"


# --- risks ---


@pytest.mark.parametrize(
    ("largest", "told"),
    [
        (1e5, {"Mul": "its output a reaches 1e+05, 50.0% of it overflows"}),
        (30000, {"Mul": "its output a reaches 3e+04, fp16 ends at 65504"}),
        (16000, {}),
    ],
)
def test_what_writes_and_what_reads_a_large_tensor(largest: float, told: dict[str, str], tmp_path: Path) -> None:
    text = "g (float[B, H] x) => (float[B, H] y) { a = Mul (x, k)  s = Softmax (a)  y = Neg (s) }"
    feed = {"x": np.array([[largest / 100, 1.0]], np.float32)}
    editor, found = measured(text, tmp_path, [feed], {"k": np.array(100.0, np.float32)})
    wanted = {**told, "Softmax": told["Mul"].replace("output", "input")} if told else {}
    assert risky(editor, found) == wanted


def test_small_factors_count_and_small_summands_do_not(tmp_path: Path) -> None:
    body = "m = MatMul (x, w)  a = Add (m, b)  y = Add (a, x)"
    made = {"w": np.full((4, 4), 1e-6, np.float32), "b": np.full(4, 1e-6, np.float32)}
    feed = {"x": np.full((1, 4), 1e4, np.float32)}
    editor, found = measured(f"g (float[B, 4] x) => (float[B, 4] y) {{ {body} }}", tmp_path, [feed], made)
    assert risky(editor, found) == {"MatMul": "its weight w is at most 1.0e-06"}
    vanishing = {**made, "w": np.full((4, 4), 2.0**-26, np.float32)}
    editor, found = measured(f"g (float[B, 4] x) => (float[B, 4] y) {{ {body} }}", tmp_path, [feed], vanishing)
    assert risky(editor, found)["MatMul"] == "its weight w is at most 1.5e-08, 100.0% of it becomes zero"


def test_a_small_tensor_is_a_risk_where_it_is_no_summand(tmp_path: Path) -> None:
    feed = {"x": np.full((1, 4), 1e-3, np.float32)}
    text = "g (float[B, 4] x) => (float[B, 4] y) {{ a = Mul (x, x)  b = Neg (a)  y = {} }}"
    editor, found = measured(text.format("Div (b, x)"), tmp_path, [feed])
    assert set(risky(editor, found)) == {"Mul", "Neg", "Div"}
    (tmp_path / "sum").mkdir()
    editor, found = measured(text.format("Add (b, x)").replace("Neg (a)", "Add (a, x)"), tmp_path / "sum", [feed])
    assert risky(editor, found) == {}
    (tmp_path / "view").mkdir()
    shown = "g (float[1, 4] x) => (float[4] y) {{ a = Mul (x, x)  b = Reshape (a, s)  y = {} }}"
    text, made = shown.format("Add (b, k)"), {"s": np.array([4]), "k": np.ones(4, np.float32)}
    assert risky(*measured(text, tmp_path / "view", [feed], made)) == {}
    assert set(risky(*measured(shown.format("Mul (b, k)"), tmp_path / "view", [feed], made))) == {"Mul"}


# --- what cannot be measured ---


def test_a_model_that_is_broken_in_fp32(tmp_path: Path) -> None:
    text = "g (float[B, 4] x) => (float[B, 4] y) { y = Log (x) }"
    with pytest.raises(ParityError, match="output 'y' has NaN or infinite values in fp32 already"):
        measured(text, tmp_path, [{"x": -np.ones((1, 4), np.float32)}])


def test_a_model_that_does_not_run(tmp_path: Path) -> None:
    text = "g (float[B, 4] x, float[B, 5] z) => (float[B, 4] y) { y = Add (x, z) }"
    with pytest.raises(BadModelError, match="cannot be measured"):
        measured(text, tmp_path, [{"x": np.ones((1, 4)), "z": np.ones((1, 5))}])


def test_memory_is_that_of_a_run(tmp_path: Path) -> None:
    """Every tensor is gone before the next but one is made, also with its reductions."""
    editor = edit("g (float[N] x) => (float[N] y) { " + " ".join(_links(40)) + " }")
    proto = ranges.written(editor.model, tmp_path)
    probes.add_extremes(proto, [f"t{i}" for i in range(40)])
    names = [node.op_type for node in proto.graph.node]
    assert names[:6] == ["Neg", "ReduceMax", "ReduceMin"] * 2
    session = ranges.open_plain(proto, tmp_path / ranges.GRAPH_FILE, "test")
    size = 1 << 20
    before = _peak()
    ranges.run_plain(session, {"x": np.ones(size, np.float32)})
    assert _peak() - before < 12 * 4 * size, "forty tensors of 4 MiB were alive at once"


def _links(count: int) -> list[str]:
    names = ["x", *(f"t{i}" for i in range(count)), "y"]
    return [f"{after} = Neg ({before})" for before, after in pairwise(names)]


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# --- inputs ---


def test_random_inputs_where_nothing_can_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = parse("g (float[B, 4, H, W] latent_sample) => (float[B, 4, H, W] y) { y = Neg (latent_sample) }")
    onnx.save(model, tmp_path / "model.onnx")
    feeds, said = inputs_for("vae_decoder", tmp_path / "model.onnx", recorded_inputs(tmp_path))
    assert (said, [feed["latent_sample"].shape for feed in feeds]) == ("random", [(1, 4, 16, 16)] * 3)
    assert not np.array_equal(feeds[0]["latent_sample"], feeds[1]["latent_sample"])
    assert "random inputs, as none can be recorded" in capsys.readouterr().err
    for folder in ("scheduler", "tokenizer"):
        (tmp_path / folder).mkdir()
    (tmp_path / "model.onnx").unlink()
    assert recorded_inputs(tmp_path) == {}
    assert "holds no ONNX pipeline" in " ".join(capsys.readouterr().err.split())


def test_inputs_recorded_for_another_form_of_the_component_are_not_taken(tmp_path: Path) -> None:
    model = parse("g (float[B, 4, H, W] latent) => (float[B, 4, H, W] y) { y = Neg (latent) }")
    onnx.save(model, tmp_path / "model.onnx")
    drawn: list[Mapping[str, Array]] = [{"latent": np.full((1, 4, 2, 2), i, np.float32)} for i in range(6)]
    feeds, said = inputs_for("vae_decoder", tmp_path / "model.onnx", {"vae_decoder": drawn})
    assert (said, [feed["latent"].mean() for feed in feeds]) == ("recorded while generating", [0, 2, 5])
    other: dict[str, list[Mapping[str, Array]]] = {"vae_decoder": [{"sample": drawn[0]["latent"]}]}
    assert inputs_for("vae_decoder", tmp_path / "model.onnx", other)[1] == "random"
