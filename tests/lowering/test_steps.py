"""The steps of the pipeline by themselves: what each option and each target switches, and how a step fails."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.small_graphs import Array, edit, operators

from sdort.errors import BadModelError, SdortError, UsageError
from sdort.lowering import steps
from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import PIPELINE, OptimizeOptions, PipelineRun, PipelineStep
from sdort.optimizer.command import _check_disable
from sdort.optimizer.fusion_list import DISABLED_STEPS
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.rewrite.apply import Outcome, Unfused
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import load_fusions

RNG = np.random.default_rng(0)
WEIGHTS: dict[str, Array] = {
    "w": RNG.standard_normal((8, 8, 3, 3)).astype(np.float32),
    "o": RNG.standard_normal((8, 3, 3, 8)).astype(np.float32),
    "b": RNG.standard_normal(8).astype(np.float32),
    "m": RNG.standard_normal((12, 12)).astype(np.float32),
}
STEPS = {step.name: step for step in PIPELINE}
IMAGES = """g (float[2, 8, 6, 5] x, float[2, 8, 6, 5] z) => (float[] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w, b)  s = Add (a, z)  r = Sigmoid (s)  n = Mul (s, r)
    y = Conv <pads = [1, 1, 1, 1]> (n, w) }"""


def run_of(text: str, target: str, **options: Any) -> PipelineRun:
    weights = {name: value for name, value in WEIGHTS.items() if f"{name})" in text or f"{name}," in text}
    editor = edit(text, weights, options.pop("opset", 23))
    return PipelineRun(editor, OptimizeOptions(load_target(target), **options), ComponentReport("unet"))


def done(run: PipelineRun, *names: str) -> dict[str, int]:
    for name in names:
        steps._run_step(run, STEPS[name])
    return operators(run.editor)


# --- a step ---


def test_a_step_is_counted_and_timed_and_named_on_what_it_makes() -> None:
    run = run_of("g (float[4] x) => (float[] y) { y = Neg (x) }", "cpu")

    def change(run: PipelineRun) -> int:
        made = run.editor.node("Abs", [run.editor.graph.inputs[0]])
        assert run.editor.origins[made.name] == ("mine",)
        return 3

    steps._run_step(run, PipelineStep("mine", change, "because"))
    assert run.report.changes == {"mine": 3}
    assert run.report.seconds.keys() == {"mine"}
    assert run.report.seconds["mine"] >= 0


def test_errors_of_sdort_stay_what_they_are_and_others_are_bugs() -> None:
    run, told = run_of("g (float[4] x) => (float[] y) { y = Neg (x) }", "cpu"), BadModelError("so it is", node="Neg.0")

    def failing(error: Exception) -> Callable[[PipelineRun], int]:
        def fail(run: PipelineRun) -> int:
            raise error

        return fail

    with pytest.raises(BadModelError) as caught:
        steps._run_step(run, PipelineStep("mine", failing(told), ""))
    assert caught.value is told
    with pytest.raises(SdortError, match=r"step 'mine' failed: KeyError: 'k'") as other:
        steps._run_step(run, PipelineStep("mine", failing(KeyError("k")), ""))
    assert not isinstance(other.value, BadModelError)
    assert (other.value.component, isinstance(other.value.__cause__, KeyError)) == ("test", True)
    assert "This is a bug in sdort" in (other.value.hint or "")
    assert run.report.changes == {}


def test_steps_have_names_of_their_own_and_say_why_they_are_there() -> None:
    assert len(STEPS) == len(PIPELINE)
    assert all(step.reason for step in PIPELINE)


# --- what options and targets switch ---


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("disable", [(), ("nhwc",), ("conv_bias",)])
def test_images_turn_where_the_target_has_them_so(target: str, disable: Collection[str]) -> None:
    found = done(run_of(IMAGES, target, disable=disable), "channels last")
    turned = load_target(target).channels_last and "nhwc" not in disable
    assert found.get("com.microsoft.NhwcConv", 0) == 2 * turned
    assert found.get("Conv", 0) == 2 * (not turned)


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("disable", [(), ("nhwc",), ("conv_bias",)])
def test_biases_move_where_images_turn(target: str, disable: Collection[str]) -> None:
    text = """g (float[2, 6, 5, 8] x, float[2, 6, 5, 8] z) => (float[] y) {
        a = com.microsoft.NhwcConv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, o, b)
        s = Add (a, z)  y = Neg (s) }"""
    found = done(run_of(text, target, disable=disable), "biases")
    moved = load_target(target).channels_last and "conv_bias" not in disable
    assert found.get("com.microsoft.BiasAdd", 0) == moved
    assert found.get("Add", 0) == (not moved)


PACKED = """g (float[2, 5, 12] x) => (float[] y) {
    q = MatMul (x, m)  k = MatMul (x, m)  v = MatMul (x, m)
    y = Attention <q_num_heads = 3, kv_num_heads = 3> (q, k, v) }"""


@pytest.mark.parametrize(
    ("target", "disable", "inputs"),
    [("cuda", (), 3), ("cuda", ("separate_qkv",), 1), ("rocm", (), 1), ("rocm", ("packed_qkv", "packed_kv"), 3),
     ("cpu", (), 3), ("cpu", ("separate_qkv",), 3)],
)  # fmt: skip
def test_projections_are_packed_where_that_is_the_faster_form(
    target: str, disable: Collection[str], inputs: int
) -> None:
    run = run_of(PACKED, target, disable=disable)
    assert done(run, "fuse")["com.microsoft.MultiHeadAttention"] == 1
    (attention,) = (node for node in run.editor.graph.nodes if node.op == "MultiHeadAttention")
    assert len(attention.inputs) == inputs


@pytest.mark.parametrize(
    ("target", "own", "made"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)]
)
def test_sdorts_operators_are_made_where_they_are_asked_for(target: str, own: bool, made: bool) -> None:
    text = """g (float[2, 5, 288] q, float[2, 5, 288] k, float[2, 5, 288] v) => (float[] y) {
        y = com.microsoft.MultiHeadAttention <num_heads = 1> (q, k, v) }"""
    run = run_of(text, target, sdort_ops=own)
    assert done(run, "extend") == {f"{'sdort' if made else 'com.microsoft'}.MultiHeadAttention": 1}
    assert ("wide_attention" in run.report.fusions) == own
    names = [name for name in run.target.conditions if name.startswith("sdort.")]
    kept = {name for name in names if name in steps._fusible(run, "extend").conditions}
    assert kept == ({*names} if own else set())


@pytest.mark.parametrize("own", [True, False])
def test_fusions_into_own_operators_alone_are_left_out_where_none_is_made(own: bool) -> None:
    """So that a target declines nothing that was not asked for; ONNX Runtime's has another form of BiasSplitGelu."""
    text = """g (float[2, 5, 8] x, float[2, 5, 8] z, float[2, 1, 8] gate) => (float[] y) {
        a = Mul (z, gate)  y = Add (x, a) }"""
    run = run_of(text, "rocm", sdort_ops=own)
    assert done(run, "fuse") == ({"sdort.GatedSum": 1} if own else {"Mul": 1, "Add": 1})
    assert ("gated_sum" in run.report.fusions) == own
    assert "bias_split_gelu" in run.report.fusions
    assert not any(outcome.declined for outcome in run.report.fusions.values())


def test_a_fusion_for_one_provider_is_applied_there_alone() -> None:
    text = """g (float[1, 8, 6, 5] x) => (float[] y) <float[4] scales = {1.0, 1.0, 2.0, 2.0}> {
        r = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , scales)
        y = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (r, w) }"""
    for target in PROVIDER_NAMES:
        run = run_of(text, target)
        done(run, "fuse")
        assert ("upsampling_phases" in run.report.fusions) == (target == "cpu")
    run = run_of(text, "cpu", disable=["upsampling_phases"])
    assert done(run, "fuse") == {"Conv": 1, "Resize": 1}
    assert [place.reason for place in run.report.fusions["upsampling_phases"].left] == ["it is disabled"]


@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize("io", [False, True])
def test_half_keeps_what_it_is_told_to(fp16: bool, io: bool) -> None:
    asked: list[Editor] = []

    def keep(editor: Editor) -> list[str]:
        asked.append(editor)
        return ["Exp.0"]

    text = "g (float[4] x) => (float[4] y) { e = Exp (x)  s = Sigmoid (e)  y = Neg (s) }"
    run = run_of(text, "rocm", fp16=fp16, io_fp16=io, fp32_nodes=keep)
    done(run, "half")
    kinds = {node.op: run.editor.dtype(node.outputs[0]) for node in run.editor.graph.nodes if node.op != "Cast"}
    half, single = np.dtype(np.float16), np.dtype(np.float32)
    assert kinds == {"Exp": single, "Sigmoid": half if fp16 else single, "Neg": half if fp16 else single}
    ends = {run.editor.dtype(tensor) for tensor in (*run.editor.graph.inputs, *run.editor.graph.outputs)}
    assert ends == {half if fp16 and io else single}
    assert asked == [run.editor] * fp16


# --- what a target lacks ---


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[4] x) => (float[] y) { y = Neg (x) }", None),
        ("g (float[2, 4] x) => (float[] y) { y = com.microsoft.BiasAdd (x, x, x) }", "cpu has no kernel for BiasAdd"),
        ("g (float[2, 4] x) => (float[] y) { y = com.microsoft.Gelu (x) }", None),
    ],
)
def test_what_a_target_lacks_is_said(text: str, reason: str | None) -> None:
    run = run_of(text, "cpu")
    assert steps._lacks(run, run.editor.graph.nodes[0]) == reason


def test_an_operator_or_a_type_that_the_opset_lacks_is_said() -> None:
    run = run_of("g (float[2, 4] x) => (float[] y) { y = RMSNormalization (x, x) }", "cpu")
    run.options.target = replace(run.target, opset=18)
    reason = steps._lacks(run, run.editor.graph.nodes[0])
    assert reason is not None
    assert "in opset 18, the newest the target loads" in reason
    assert done(run, "expand").get("RMSNormalization", 0) == 0


def test_what_the_model_asked_for_itself_is_no_miss_where_it_is_expanded() -> None:
    run = run_of("g (float[2, 4] x) => (float[] y) { a = Gelu (x)  n = Neg (a)  y = Gelu (n) }", "cpu")
    run.options.target = replace(run.target, opset=18)
    first, _, second = run.editor.graph.nodes
    run.editor.origins[second.name] = ("gelu_erf",)  # a pass made it
    places = [Unfused("f", node, "", 1, 1, applicable=True, miss=True) for node in (first.name, second.name, "Neg.1")]
    run.report.add_outcomes([Outcome("f", left=places)])
    assert done(run, "expand").get("Gelu", 0) == 0
    assert [place.miss for place in places] == [False, True, True]
    assert run.report.fusions["expand"].matched == 2


def test_steps_that_are_no_fusions_can_be_left_out_too() -> None:
    _check_disable([*DISABLED_STEPS, *load_fusions()])
    assert DISABLED_STEPS
    with pytest.raises(UsageError, match="sdort fusions"):
        _check_disable(["conv_biass"])
