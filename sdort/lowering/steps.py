"""The steps that a model goes through, in order, on one page.

``optimize_model`` runs the steps of :data:`PIPELINE`; the runner times them, counts their changes, honours
``--disable``, collects what every fusion did, and names the step in which something went wrong. No pass knows of any
of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

import onnx_graphsurgeon as gs

from sdort.errors import SdortError
from sdort.errors.plain_text import library_reason
from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.group_quantized import GroupFormat
from sdort.graph.model import Model
from sdort.lowering.component_report import ComponentReport, count_operators
from sdort.lowering.remaining import remaining, whole
from sdort.lowering.unlowered import unlowered
from sdort.passes import (
    attention_form,
    borrow_shapes,
    channel_biases,
    control_inputs,
    expand,
    explicit_inputs,
    half,
    narrow,
    nhwc,
    quantize_weights,
    scaled_stream,
    scales,
    sines,
    target_opset,
    tidy,
    types,
    upgrade,
)
from sdort.providers.target import Target
from sdort.rewrite.apply import apply_stage
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import load_fusions
from sdort.rewrite.provenance import PROVENANCE_KEY, provenance_json


@dataclass
class OptimizeOptions:
    """Options of one component's optimization."""

    target: Target
    fp16: bool = False
    io_fp16: bool = False
    fp32_nodes: Callable[[Editor], Collection[str]] = lambda editor: ()
    """With fp16: names of nodes that stay in fp32 beside those that always do (:mod:`sdort.precision`)."""
    weights: GroupFormat | None = None
    """The integers in which linear layers have their weights; None: floats."""
    sdort_ops: bool = False
    """Use the operators of sdort's own domain (:mod:`sdort.onnx_io.own_functions`) where the target has them."""
    disable: Collection[str] = ()
    explain: bool = False


@dataclass
class PipelineRun:
    """One model on its way through the pipeline."""

    editor: Editor
    options: OptimizeOptions
    report: ComponentReport

    @property
    def model(self) -> Model:
        return self.editor.model

    @property
    def target(self) -> Target:
        return self.options.target


class PipelineStep(NamedTuple):
    """A step of the pipeline: its name in reports, what it does (the number of changes) and why it stands there."""

    name: str
    run: Callable[[PipelineRun], int]
    reason: str


def optimize_model(model: Model, options: OptimizeOptions, report: ComponentReport | None = None) -> ComponentReport:
    """Raise, fuse, lower and convert one model, in place.

    Args:
        report: is filled step by step, and so holds what was done before an error; by default a new one.

    Raises:
        SdortError: with the component, the step and, where there is one, the node.
    """
    report = ComponentReport(model.component) if report is None else report
    report.nodes_before, report.operators_before = len(model.graph.nodes), count_operators(model)
    run = PipelineRun(Editor(model, half=options.fp16), options, report)
    for step in PIPELINE:
        _run_step(run, step)
    report.nodes_after, report.operators = len(model.graph.nodes), count_operators(model)
    model.metadata[PROVENANCE_KEY] = provenance_json(run.editor)
    return report


def _run_step(run: PipelineRun, step: PipelineStep) -> None:
    start = time.perf_counter()
    run.editor.step = step.name
    try:
        run.report.changes[step.name] = step.run(run)
    except SdortError:
        raise
    except Exception as error:
        raise SdortError(
            f"step {step.name!r} failed: {type(error).__name__}: {library_reason(error)}",
            component=run.model.component,
            hint="This is a bug in sdort; please report it with the model's architecture.",
        ) from error
    run.report.seconds[step.name] = round(time.perf_counter() - start, 4)


# --- steps that are more than one call ---


def _fusible(run: PipelineRun, stage: str) -> Target:
    """The target as fusions see it: unless sdort's own operators are used, none makes one."""
    own = [name for name in run.target.conditions if name.startswith(f"{OWN_DOMAIN}.")]
    target = run.target if run.options.sdort_ops else run.target.without(*own)
    # What a lowering asks for is what the target runs at all.
    return target.preferring() if stage == "fuse" and "separate_qkv" not in run.options.disable else target


def _stage(stage: str) -> Callable[[PipelineRun], int]:
    def apply(run: PipelineRun) -> int:
        support = None if stage in ("restore", "raise") else _fusible(run, stage)
        fusions = [f for f in load_fusions().values() if f.stage == stage and f.is_for(run.target.name)]
        fusions = [f for f in fusions if run.options.sdort_ops or not f.is_own]
        disabled = [f for f in fusions if f.name in run.options.disable]
        enabled = [f for f in fusions if f not in disabled]
        outcomes = apply_stage(enabled, run.editor, support, explain=run.options.explain, disabled=disabled)
        run.report.add_outcomes(outcomes)
        return sum(outcome.matched for outcome in outcomes)

    return apply


def _channels_last(run: PipelineRun) -> int:
    applies = run.target.channels_last and "nhwc" not in run.options.disable
    return nhwc.run(run.editor, run.target) if applies else 0


def _extend(run: PipelineRun) -> int:
    return _stage("extend")(run) if run.options.sdort_ops else 0


def _channel_biases(run: PipelineRun) -> int:
    applies = run.target.channels_last and "conv_bias" not in run.options.disable
    return channel_biases.run(run.editor, _fusible(run, "biases")) if applies else 0


def _check_types(run: PipelineRun) -> int:
    hint = "No runtime loads this file: its exporter or converter mixed precisions. Make it again, or in float32."
    types.check(run.editor, run.model.graph.opset, hint, foreign=True)
    return 0


def _refuse(run: PipelineRun) -> int:
    types.refuse_types(run.editor)
    return 0


def _count_raised(run: PipelineRun) -> int:
    run.report.operators_raised = count_operators(run.model)
    return 0


def _lacks(run: PipelineRun, node: gs.Node) -> str | None:
    """Why the target cannot run a node; None if it can."""
    reason = run.target.unsupported(node, run.editor) or upgrade.inexpressible(node, run.target.opset)
    untaken = None if reason or node.domain else types.untaken(node, run.editor, run.target.opset)
    return reason or (untaken and f"{untaken} in opset {run.target.opset}, the newest the target loads")


def _expand(run: PipelineRun) -> int:
    expansions: list[expand.Expansion] = []
    changes = expand.run(run.editor, lambda node: _lacks(run, node), expansions)
    # An operator that the model itself has is not missed by the lowerings when it was expanded: it is declined.
    original = {expansion.node for expansion in expansions if expansion.original}
    for place in (place for outcome in run.report.fusions.values() for place in outcome.left):
        place.miss = place.miss and place.node not in original
    run.report.add_outcomes([expand.outcome(expansions)])
    return changes


def _half(run: PipelineRun) -> int:
    if not run.options.fp16:
        return 0
    asked = run.options.fp32_nodes(run.editor)
    keep = {
        *asked,
        *run.editor.wide,
        *(node.name for node in run.model.graph.nodes if run.target.only_wide(node, run.editor)),
    }
    return half.run(run.editor, io_fp16=run.options.io_fp16, keep=keep, opset=run.target.opset)


def _quantize(run: PipelineRun) -> int:
    if run.options.weights is None or not quantize_weights.has_integers(run.model):
        return 0
    run.report.weights = quantize_weights.run(run.editor, run.options.weights)
    return run.report.weights.layers


def _all_supported(run: PipelineRun) -> int:
    lacking = [(node, reason) for node in run.model.graph.nodes if (reason := _lacks(run, node))]
    if lacking:
        raise unlowered(run.editor, lacking, run.options.disable, run.report)
    hint = "This is a bug in sdort; please report it with the model's architecture."
    types.check(run.editor, run.target.opset, hint)
    return 0


def _count_left(run: PipelineRun) -> int:
    run.report.remaining = remaining(run.editor, run.target, run.report.fusions)
    run.report.whole = whole(run.editor)
    return 0


def _tidy(run: PipelineRun) -> int:
    return tidy.run(run.editor)


def _narrow(run: PipelineRun) -> int:
    return narrow.run(run.editor)


PIPELINE = (
    PipelineStep("upgrade", lambda run: upgrade.run(run.editor), "patterns are written in one opset"),
    PipelineStep("types", _check_types, "what does not fit together no runtime loads, before or after"),
    PipelineStep(
        "restore", _stage("restore"), "operators of ONNX Runtime that another tool put in are standard ones again"
    ),
    PipelineStep(
        "tidy",
        lambda run: tidy.run(run.editor, tidy.BEFORE_FUSIONS),
        "folds what exporters leave, so that patterns see operators, not shape arithmetic, and one scale an attention",
    ),
    PipelineStep(
        "refuse", _refuse, "stored weights are dequantized now: what is left computes in types that sdort does not"
    ),
    PipelineStep(
        "channels first",
        lambda run: nhwc.to_first(run.editor),
        "what was channels-last, fused or not, is as exporters write it, so that patterns see it",
    ),
    PipelineStep("narrow", _narrow, "unwraps what half-precision exporters cast up and down for nothing"),
    PipelineStep("raise", _stage("raise"), "gives every exporter's graph the same standard operators"),
    PipelineStep(
        "attention",
        lambda run: attention_form.run(run.editor),
        "one form of ONNX's Attention, whoever wrote it; the rest of it is said around it",
    ),
    PipelineStep("tidy raised", _tidy, "removes the casts, reshapes and transposes that raising made pointless"),
    PipelineStep("narrow raised", _narrow, "a chain that was cast up and down and is one operator now"),
    PipelineStep("count", _count_raised, "what is there now is what the config says, on every target"),
    PipelineStep(
        "control inputs",
        lambda run: control_inputs.run(run.editor),
        "what steers a UNet parts no block's sum from the norm that takes it in, and can be left out of the result",
    ),
    PipelineStep(
        "streams",
        lambda run: scaled_stream.run(run.editor) if run.options.fp16 else 0,
        "norms are operators with an epsilon here, and not fused with the sums before them yet",
    ),
    PipelineStep("fuse", _stage("fuse"), "standard operators -> the target's, in [batch, sequence, width]"),
    PipelineStep(
        "channels last",
        _channels_last,
        "one region, before image fusions: the target's image operators are channels-last",
    ),
    PipelineStep("tidy layout", _tidy, "merges the transposes and views that meet at the region's border"),
    PipelineStep("fuse images", _stage("fuse_nhwc"), "group normalizations take in what is around them"),
    PipelineStep(
        "extend", _extend, "sdort's own operators, if they are used, take in what ONNX Runtime's have no form for"
    ),
    PipelineStep("biases", _channel_biases, "after all that reads an image is what it stays: biases that cost nothing"),
    PipelineStep("lower", _stage("lower"), "what the target lacks becomes standard operators that it has"),
    PipelineStep("expand", _expand, "what no lowering took becomes what the specification defines it by"),
    PipelineStep(
        "borrow shapes",
        lambda run: borrow_shapes.run(run.editor),
        "what is still computed from sizes reads the shape of a tensor that has it",
    ),
    PipelineStep("tidy lowered", _tidy, "drops the chains that borrowing replaced"),
    PipelineStep(
        "scales",
        lambda run: scales.scale_before(run.editor, half=run.options.fp16),
        "what is left unfused has its scale before the product, as fp16 holds that",
    ),
    PipelineStep("half", _half, "last, on the final operators: only they say what may be fp16"),
    PipelineStep("weights", _quantize, "nothing changes the linear layers any more"),
    PipelineStep(
        "sines",
        lambda run: sines.run(run.editor) if run.target.coarse_sines else 0,
        "on webgpu: what half has left in fp32 for its precision has it",
    ),
    PipelineStep("check", _all_supported, "a target never receives an operator that it cannot run"),
    PipelineStep("tidy half", _tidy, "one cast for each tensor, not one for each reader"),
    PipelineStep("count left", _count_left, "what stays in parts is read from the final graph, not from the rules"),
    PipelineStep(
        "explicit inputs",
        lambda run: explicit_inputs.run(run.editor, run.target.explicit_inputs),
        "on migraphx: its parser misreads inputs that are left out",
    ),
    PipelineStep(
        "opset",
        lambda run: target_opset.run(run.editor, run.target.opset, run.target.ir_version),
        "the newest opset for which the target has every kernel",
    ),
)
