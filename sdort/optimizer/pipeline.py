"""What happens to a model, in order, on one page.

``optimize_model`` runs the steps of :data:`PIPELINE`; the runner times them, honours ``--disable``, collects what every
fusion did, and names the step in which something went wrong. No pass knows of any of that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import onnx_graphsurgeon as gs

from sdort.errors import BadModelError, SdortError
from sdort.model.model import Model
from sdort.passes import attention, expand, half, narrow, nhwc, reshape, spell_out, tidy, types, upgrade
from sdort.providers.target import Target
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import Outcome, apply_stage, load_fusions
from sdort.rewrite.provenance import KEY, describe


@dataclass
class Options:
    """How to optimize."""

    target: Target
    fp16: bool = False
    io_fp16: bool = False
    islands: Callable[[Editor], Collection[str]] = lambda editor: ()
    """With fp16: names of nodes that stay in fp32 beside those that always do (:mod:`sdort.precision`)."""
    sdort_ops: bool = False
    """Use the operators of sdort's own domain (:mod:`sdort.onnx_io.own_functions`) where the target has them."""
    disable: Collection[str] = ()
    explain: bool = False


@dataclass
class ComponentReport:
    """What became of one component."""

    component: str
    nodes_before: int = 0
    nodes_after: int = 0
    operators_before: dict[str, int] = field(default_factory=dict)
    operators_raised: dict[str, int] = field(default_factory=dict)
    """After raising: the standard operators that the architecture's config can be held against, whatever the target."""
    operators: dict[str, int] = field(default_factory=dict)
    fusions: dict[str, Outcome] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def declined(self) -> dict[str, int]:
        """What stayed unfused because the target has no kernel for it: reason -> places."""
        total: Counter[str] = Counter()
        for outcome in self.fusions.values():
            total |= Counter(outcome.declined)  # several fusions may stop at one place for one reason
        return dict(total)

    @property
    def misses(self) -> list[dict[str, Any]]:
        """Places that should have fused and did not."""
        return [{"fusion": o.name, **m} for o in self.fusions.values() for m in o.misses]


@dataclass
class Run:
    """One model on its way through the pipeline."""

    model: Model
    options: Options
    report: ComponentReport
    editor: Editor

    @property
    def target(self) -> Target:
        return self.options.target


Step = tuple[str, Callable[[Run], None], str]


def optimize_model(model: Model, options: Options) -> ComponentReport:
    """Raise, fuse, lower and convert one model, in place.

    Raises:
        SdortError: with the component, the step and, where there is one, the node.
    """
    report = ComponentReport(model.component, len(model.graph.nodes), operators_before=count_operators(model))
    start = time.perf_counter()
    upgrade.to_pattern_opset(model)
    run = Run(model, options, report, Editor(model))
    report.seconds["upgrade"] = time.perf_counter() - start
    for name, step, _ in PIPELINE:
        start = time.perf_counter()
        run.editor.maker = name
        try:
            step(run)
        except SdortError:
            raise
        except Exception as error:
            raise SdortError(
                f"step {name!r} failed: {type(error).__name__}: {error}",
                component=model.component,
                hint="This is a bug in sdort; please report it with the model's architecture.",
            ) from error
        report.seconds[name] = time.perf_counter() - start
    report.nodes_after, report.operators = len(model.graph.nodes), count_operators(model)
    model.metadata[KEY] = describe(run.editor)
    return report


def count_operators(model: Model) -> dict[str, int]:
    """Operators by name; those of other domains as ``domain.name``."""
    names = (f"{n.domain}.{n.op}" if n.domain else n.op for n in model.graph.nodes)
    return dict(sorted(Counter(names).items()))


# --- steps ---


def _tidy(run: Run) -> None:
    tidy.run(run.editor)


def _stage(stage: str) -> Callable[[Run], None]:
    def apply(run: Run) -> None:
        support = None if stage in ("restore", "raise") else run.target
        fusions = [f for f in load_fusions().values() if f.stage == stage and f.name not in run.options.disable]
        outcomes = apply_stage(fusions, run.editor, support, explain=run.options.explain)
        run.report.fusions.update({outcome.name: outcome for outcome in outcomes})

    return apply


def _channels_last(run: Run) -> None:
    if run.target.channels_last and "nhwc" not in run.options.disable:
        nhwc.run(run.editor, run.target)


def _attention(run: Run) -> None:
    attention.run(run.editor)


def _extend(run: Run) -> None:
    if run.options.sdort_ops:
        _stage("extend")(run)


def _check_types(run: Run) -> None:
    hint = "No runtime loads this file: its exporter or converter mixed precisions. Make it again, or in float32."
    types.check(run.editor, run.model.graph.opset, hint)


def _refuse(run: Run) -> None:
    types.refuse(run.editor)


def _narrow(run: Run) -> None:
    narrow.run(run.editor)


def _count_raised(run: Run) -> None:
    run.report.operators_raised = count_operators(run.model)


def _lacks(run: Run, node: gs.Node) -> str | None:
    """Why the target cannot run a node; None if it can."""
    reason = run.target.unsupported(node, run.editor) or upgrade.inexpressible(node, run.target.opset)
    untaken = None if reason or node.domain else types.untaken(node, run.editor, run.target.opset)
    return reason or (untaken and f"{untaken} in opset {run.target.opset}, the newest the target loads")


def _expand(run: Run) -> None:
    outcome, given = expand.run(run.editor, lambda node: _lacks(run, node))
    # An operator that the model itself has is not missed by the lowerings when it was expanded: it is told as declined.
    for each in run.report.fusions.values():
        each.refusals = [r if r["node"] not in given else {**r, "miss": False} for r in each.refusals]
    run.report.fusions[outcome.name] = outcome


def _borrow(run: Run) -> None:
    reshape.borrow_shapes(run.editor)


def _half(run: Run) -> None:
    if not run.options.fp16:
        return
    earlier, names = run.editor, {node.name for node in run.model.graph.nodes}
    keep = run.options.islands(earlier)
    run.editor = half.run(earlier, io_fp16=run.options.io_fp16, keep=keep, opset=run.target.opset)
    run.editor.layouts.update(earlier.layouts)
    run.editor.makers.update({node.name: ("half",) for node in run.model.graph.nodes if node.name not in names})
    run.editor.makers.update(earlier.makers)


def _all_supported(run: Run) -> None:
    for node in run.model.graph.nodes:
        reason = _lacks(run, node)
        if reason:
            raise BadModelError(
                f"{reason}, and sdort knows no other form of it",
                component=run.model.component,
                node=node.name,
                hint=upgrade.HINT,
            )
    hint = "This is a bug in sdort; please report it with the model's architecture."
    types.check(run.editor, run.target.opset, hint)


def _spell_out(run: Run) -> None:
    spell_out.run(run.editor, run.target.spelled)


def _target_opset(run: Run) -> None:
    upgrade.to_target_opset(run.model, run.target.opset)
    run.model.graph.ir_version = run.target.ir_version
    # What ONNX Runtime infers itself is never stale.
    ends = {id(t) for t in (*run.model.graph.inputs, *run.model.graph.outputs)}
    for tensor in (t for n in run.model.graph.nodes for t in n.outputs if id(t) not in ends):
        tensor.shape = tensor.dtype = None


PIPELINE: list[Step] = [
    ("types", _check_types, "what does not fit together no runtime loads, before or after"),
    ("restore", _stage("restore"), "operators of ONNX Runtime that another tool put in are standard ones again"),
    ("tidy", _tidy, "folds what exporters leave, so that patterns see operators and not shape arithmetic"),
    (
        "refuse",
        _refuse,
        "stored weights are dequantized now: what is left computes in types that sdort does not",
    ),
    ("narrow", _narrow, "unwraps what half-precision exporters cast up and down for nothing"),
    ("raise", _stage("raise"), "gives every exporter's graph the same standard operators"),
    ("attention", _attention, "one form of ONNX's Attention, whoever wrote it; the rest of it is said around it"),
    ("tidy raised", _tidy, "removes the casts, reshapes and transposes that raising made pointless"),
    ("narrow raised", _narrow, "a chain that was cast up and down and is one operator now"),
    ("count", _count_raised, "what is there now is what the config says, on every target"),
    ("fuse", _stage("fuse"), "standard operators -> the target's, in [batch, sequence, width]"),
    (
        "channels last",
        _channels_last,
        "one region, before image fusions: the target's image operators are channels-last",
    ),
    ("tidy layout", _tidy, "merges the transposes and views that meet at the region's border"),
    ("fuse images", _stage("fuse_nhwc"), "group normalizations take in what is around them"),
    ("extend", _extend, "with --sdort-ops: sdort's own operators take in what ONNX Runtime's have no form for"),
    ("lower", _stage("lower"), "what the target lacks becomes standard operators that it has"),
    ("expand", _expand, "what no lowering took becomes what the specification defines it by"),
    ("borrow shapes", _borrow, "what is still computed from sizes reads the shape of a tensor that has it"),
    ("tidy lowered", _tidy, "drops the chains that borrowing replaced"),
    ("half", _half, "last, on the final operators: only they say what may be fp16"),
    ("check", _all_supported, "a target never receives an operator that it cannot run"),
    ("tidy half", _tidy, "one cast for each tensor, not one for each reader"),
    ("spell out", _spell_out, "on migraphx: its parser misreads inputs that are left out"),
    ("opset", _target_opset, "the newest opset for which the target has every kernel"),
]
