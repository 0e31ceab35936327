"""Operators by their definition in ONNX's specification: what is expanded, what is told, and what is left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.small_graphs import Array, edit, feeds_for, load, operators, parse, run

from sdort.errors import MissedFusionError
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.passes import expand
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import load_fusions
from sdort.rewrite.match import refuse

RMS = "g (float[B, S, 8] x, float[8] w) => (float[B, S, 8] y) { y = RMSNormalization <epsilon = 0.001> (x, w) }"
SIZES = {"B": 2, "S": 5}


def rms(x: Array, w: Array) -> Array:
    """The specification's formula, over the last axis, with an epsilon that matters."""
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.001) * w)


@pytest.mark.parametrize("target", PROVIDER_NAMES)
def test_an_operator_that_a_target_lacks_is_expanded_and_told(target: str) -> None:
    """MIGraphX's norm takes the mean square over one axis."""
    text = RMS.replace("S, 8]", "3, 8]").replace("float[8]", "float[3, 8]").replace("<epsilon", "<axis = -2, epsilon")
    model = load(text)
    report = optimize_model(model, OptimizeOptions(load_target(target)))
    assert "RMSNormalization" not in report.operators
    told = [number for reason, number in report.declined.items() if "no kernel for RMSNormalization" in reason]
    has_kernel = any(name.endswith("SimplifiedLayerNormalization") for name in report.operators)
    assert (has_kernel, told) == ((False, [1]) if target in ("migraphx", "openvino") else (True, []))
    assert report.misses == []
    feeds = feeds_for(parse(text), SIZES)
    feeds["x"] = feeds["x"] * np.float32(0.03)
    rows, scale = feeds["x"].reshape(2, 24), feeds["w"].reshape(24)
    np.testing.assert_allclose(run(model, feeds)[0].reshape(2, 24), rms(rows, scale), rtol=1e-5, atol=1e-6)


def test_a_norm_whose_mean_square_the_target_rounds_to_fp16_stays_in_fp32() -> None:
    """Elements of 300 have a mean square that fp16 does not hold, and are fp16 themselves."""
    for target, dtype in (("migraphx", np.float32), ("rocm", np.float16)):
        model = load(RMS)
        optimize_model(model, OptimizeOptions(load_target(target), fp16=True, io_fp16=True))
        (norm,) = (node for node in model.graph.nodes if node.op == "SimplifiedLayerNormalization")
        assert Editor(model).dtype(norm.inputs[0]) == dtype
        assert model.graph.outputs[0].dtype == np.float16


def test_what_the_target_has_stays() -> None:
    editor = edit(RMS)
    expansions: list[expand.Expansion] = []
    assert expand.run(editor, lambda node: None, expansions) == 0
    outcome = expand.outcome(expansions)
    assert (outcome.matched, outcome.declined, expansions) == (0, {}, [])
    assert operators(editor) == {"RMSNormalization": 1}


def test_bodies_are_expanded_too() -> None:
    """Mish is defined by Softplus, which is defined by Exp and Log."""
    text = "g (float[S, 8] x) => (float[S, 8] y) { y = Mish (x) }"
    editor = edit(text)
    lacking = {"Mish", "Softplus"}
    expand.run(editor, lambda node: f"no {node.op}" if node.op in lacking else None)
    assert not lacking & set(operators(editor))
    feeds = feeds_for(parse(text), SIZES)
    wanted = feeds["x"] * np.tanh(np.log1p(np.exp(feeds["x"])))
    np.testing.assert_allclose(run(editor.model, feeds)[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("attributes", "alpha"), [("", 1.0), ("<alpha = 2.5>", 2.5)])
def test_attributes_that_are_left_out_are_at_their_defaults(attributes: str, alpha: float) -> None:
    text = f"g (float[S, 8] x) => (float[S, 8] y) {{ y = Celu {attributes} (x) }}"
    editor = edit(text)
    assert expand.run(editor, lambda node: "no" if node.op == "Celu" else None) == 1
    feeds = feeds_for(parse(text), SIZES)
    x = feeds["x"]
    wanted = np.maximum(x, 0) + np.minimum(0, alpha * (np.exp(x / alpha) - 1))
    np.testing.assert_allclose(run(editor.model, feeds)[0], wanted, rtol=1e-5, atol=1e-6)


def test_an_operator_of_a_newer_opset_is_expanded_before_everything_else() -> None:
    text = "g (float[S, 8] x) => (float[S, 8] y) { y = Swish <alpha = 0.5> (x) }"
    model = load(text, opset=24)
    optimize_model(model, OptimizeOptions(load_target("cpu")))
    feeds = feeds_for(parse(text, opset=24), SIZES)
    wanted = feeds["x"] / (1 + np.exp(-0.5 * feeds["x"]))
    np.testing.assert_allclose(run(model, feeds)[0], wanted, rtol=1e-5, atol=1e-6)


DEFAULTS: dict[str, Callable[[Array], Array]] = {
    "Elu": lambda x: np.where(x < 0, np.exp(x) - 1, x),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "LeakyRelu": lambda x: np.where(x < 0, 0.01 * x, x),
    "Shrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "ThresholdedRelu": lambda x: np.where(x > 1, x, 0),
}


@pytest.mark.parametrize("operator", DEFAULTS)
def test_bodies_that_refer_to_an_attribute_have_its_default(operator: str) -> None:
    text = f"g (float[S, 8] x) => (float[S, 8] y) {{ y = {operator} (x) }}"
    editor = edit(text)
    expand.run(editor, lambda node: "no" if node.op == operator else None)
    assert operator not in operators(editor)
    feeds = feeds_for(parse(text), {"S": 50})
    np.testing.assert_allclose(run(editor.model, feeds)[0], DEFAULTS[operator](feeds["x"]), rtol=1e-5, atol=1e-6)


LEFT = {
    "a body with branches": "g (float[1, 2, 3] x, int64[4] n) => (float[a, b, c, d] y) { y = AffineGrid (x, n) }",
    "no body": "g (float[1, 8, 1] x) => (float[a, b, c] y) { y = DFT (x) }",
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_what_has_no_definition_of_plain_operators_is_refused_by_its_own_name(text: str) -> None:
    (operator,) = operators(edit(text))
    with pytest.raises(MissedFusionError, match=f"{operator} of opset 23 cannot be expressed in opset 18"):
        optimize_model(load(text), OptimizeOptions(load_target("cuda")))


def test_a_type_that_the_targets_opset_does_not_take_is_refused_in_words() -> None:
    text = "g (bool[S, 8] x) => (bool[S] y) <int64[1] last = {1}> { y = ReduceMax <keepdims = 0> (x, last) }"
    with pytest.raises(MissedFusionError, match="is bool, which it does not take in opset 18") as refusal:
        optimize_model(load(text), OptimizeOptions(load_target("cpu")))
    assert "bug" not in str(refusal.value)


RAISED = """g (float[2, 8, 3, 5] x) => (float[2, 8, 3, 5] y)
<float[2] one = {1.0, 1.0}, float[2] zero = {0.0, 0.0}, int64[3] rows = {2, 2, 60}, int64[4] back = {2, 8, 3, 5}> {
    grouped = Reshape (x, rows)
    normal = InstanceNormalization (grouped, one, zero)
    image = Reshape (normal, back)
    scaled = Mul (image, w)
    y = Add (scaled, b)
}"""
GIVEN = "g (float[2, 8, 3, 5] x) => (float[2, 8, 3, 5] y) { y = GroupNormalization <num_groups = 2> (x, w, b) }"


@pytest.mark.parametrize(("text", "shape", "misses"), [(RAISED, (8, 1, 1), 1), (GIVEN, (8,), 0)])
def test_what_sdort_raised_itself_and_no_lowering_took_is_missed(
    monkeypatch: pytest.MonkeyPatch, text: str, shape: tuple[int, ...], misses: int
) -> None:
    """Expanded, it is right, but slower than what the model had."""
    lowering = load_fusions()["group_normalization_to_standard"]
    monkeypatch.setattr(lowering.module, "check", lambda match: refuse("not this one"))
    weights = {name: np.linspace(0.5, 2, 8, dtype=np.float32).reshape(shape) for name in ("w", "b")}
    model = load(text, weights)
    report = optimize_model(model, OptimizeOptions(load_target("cpu")))
    assert report.operators_raised["GroupNormalization"] == 1
    assert "GroupNormalization" not in report.operators
    assert report.declined == {"cpu has no kernel for GroupNormalization": 1}
    assert [miss.reason for miss in report.misses] == ["not this one"] * misses


def test_group_normalization_of_a_symbolic_number_of_channels() -> None:
    """The kernels ask for a number; gamma has as many elements as the image has channels, whatever that is."""
    inputs = "float[B, C, H, W] x, float[C] w, float[C] b"
    text = f"g ({inputs}) => (float[B, C, H, W] y) {{ y = GroupNormalization <num_groups = 2> (x, w, b) }}"
    model = load(text)
    optimize_model(model, OptimizeOptions(load_target("cuda")))
    feeds = feeds_for(parse(text), {"B": 2, "C": 6, "H": 3, "W": 5})
    np.testing.assert_allclose(run(model, feeds)[0], run(parse(text), feeds)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 8), (2, 8, 5), (2, 8, 3, 5), (2, 8, 2, 3, 5)], ids=str)
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_group_normalization_of_any_rank(shape: tuple[int, ...], constant: bool, target: str) -> None:
    """With weights that are constants, or not; a mean far from 0 is not lost in the variance's rounding."""
    rng = np.random.default_rng(1)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in (shape, (8,), (8,)))
    x += 100
    dims = ", ".join(map(str, shape))
    inputs = f"float[{dims}] x" + ("" if constant else ", float[8] w, float[8] b")
    body = "{ y = GroupNormalization <num_groups = 2, epsilon = 0.001> (x, w, b) }"
    model = load(f"g ({inputs}) => (float[{dims}] y) {body}", {"w": w, "b": b} if constant else None)
    optimize_model(model, OptimizeOptions(load_target(target)))
    grouped = x.astype(np.float64).reshape(shape[0], 2, -1)
    normal = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 0.001)
    column = (8, *[1] * (len(shape) - 2))
    wanted = normal.reshape(shape) * w.reshape(column) + b.reshape(column)
    feeds = {"x": x} if constant else {"x": x, "w": w, "b": b}
    np.testing.assert_allclose(run(model, feeds)[0], wanted, rtol=1e-3, atol=2e-3)
