"""``--fp16 auto`` and ``--fp16-plan``: the nodes of a component that stay in fp32, and the reasons."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx_graphsurgeon as gs

from sdort.engines.rounding import emulate
from sdort.errors import OutputError
from sdort.graph.model import Model
from sdort.graph.signature import Array, Feeds
from sdort.lowering.component_report import Fp32Report, Fp32Rule
from sdort.onnx_io.save import save_model
from sdort.passes import half
from sdort.passes.half import float32_inputs
from sdort.precision.cost import share, timed_run
from sdort.precision.inputs import inputs_for, recorded_inputs
from sdort.precision.plan import PLAN, PlanRule, make_rules, select, write_plan
from sdort.precision.positions import Position, find_positions, with_views
from sdort.precision.ranges import measure_ranges, open_plain, run_plain, written
from sdort.precision.risks import find_risks
from sdort.rewrite.editor import Editor
from sdort.workload.judgement import measure_errors, unfit


def run_trial(
    editor: Editor, keep: Collection[str], feed: Mapping[str, Array], expected: Mapping[str, Array], folder: Path
) -> str:
    """The result of a conversion to fp16, in words.

    Args:
        editor: the graph before it is converted; it stays as it is.
        keep: names of the nodes that stay in fp32.
        feed: the inputs.
        expected: the outputs in fp32.
        folder: where a copy of the model may be written.

    Raises:
        BadModelError: the converted graph does not run.
    """
    component = editor.model.component
    converted = Editor(Model(editor.graph.copy(), component))
    half.run(converted, keep=keep)
    path = folder / "converted.onnx"
    written = save_model(converted.model, path)
    if written.overflowed:
        return f"{len(written.overflowed)} weights are infinite"
    session = open_plain(emulate(path, component), path, component)
    return describe_result(run_plain(session, feed), expected)


def describe_result(outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> str:
    """The worst of all outputs, in words."""
    errors = {}
    for name, value in outputs.items():
        if problem := unfit(value, expected[name]):
            return f"{name} {problem}"
        errors[name] = measure_errors(value, expected[name]).mean_share
    worst = max(errors, key=errors.__getitem__)
    return f"{worst} is off by {errors[worst]:.1e} of its standard deviation in the mean"


@dataclass
class Fp32Selection:
    """The nodes that stay in fp32 in one component."""

    rules: list[PlanRule]
    nodes: set[str]
    """Their names."""
    node_share: float
    """Their part of all nodes."""
    extra_bytes: int
    """Bytes of their weights beyond fp16."""
    measured: str = ""
    """The inputs that were measured with; empty if a plan was followed."""
    without: str = ""
    """The result of fp16 alone, in words; empty if not tried."""
    within: str = ""
    """The result with these nodes in fp32; empty if not tried."""
    time_share: float | None = None
    """The nodes' part of the time of a run in fp32 on this CPU; None if not measured."""

    def report(self) -> Fp32Report:
        """The selection as reports show it."""
        return Fp32Report(
            measured=self.measured,
            rules=[Fp32Rule(str(rule), rule.reason) for rule in self.rules],
            nodes=len(self.nodes),
            share_of_nodes=round(self.node_share, 4),
            share_of_time=None if self.time_share is None else round(self.time_share, 4),
            bytes=self.extra_bytes,
            without=self.without,
            within=self.within,
        )


class Fp32Selector:
    """Selects the nodes that stay in fp32, component after component.

    Args:
        source: the original pipeline, to record inputs from.
        scratch: where a folder for the largest component in fp32 may be made for a while.
        plan: rules to follow, by component; None measures.

    Attributes:
        selections: by component, of those that :meth:`select_nodes` was called for.
    """

    def __init__(self, source: Path, scratch: Path, plan: dict[str, list[PlanRule]] | None = None) -> None:
        self.source = source
        self.scratch = scratch
        self.plan = plan
        self.selections: dict[str, Fp32Selection] = {}
        self._recorded: dict[str, list[Feeds]] | None = None

    def select_nodes(self, editor: Editor, path: Path) -> Collection[str]:
        """The names of the nodes that stay in fp32.

        Args:
            editor: the component's graph before it is converted.
            path: its original ``.onnx`` file.

        Raises:
            UsageError: the plan does not fit.
            ParityError: the component gives NaN in fp32 already.
            BadModelError: it cannot be run.
        """
        component, positions = editor.model.component, find_positions(editor)
        if self.plan is not None:
            rules = self.plan.get(component, [])
            selection = _selection(editor, rules, set(select(rules, positions, component)), len(positions))
        else:
            with TemporaryDirectory(prefix=".measured-", dir=self.scratch) as folder:
                selection = self._measured(editor, positions, path, Path(folder))
        self.selections[component] = selection
        return selection.nodes

    def _measured(self, editor: Editor, positions: Mapping[str, Position], path: Path, folder: Path) -> Fp32Selection:
        component = editor.model.component
        feeds, source = inputs_for(component, path, self._inputs())
        risks = find_risks(editor, measure_ranges(editor, feeds, folder))
        # A node without a position computes no floats, or is converted as a part of what it stands between.
        reasons = {name: risk.reason for name, risk in risks.items() if name in positions}
        selection = _selection(editor, make_rules(positions, reasons), set(reasons), len(positions))
        selection.measured = source
        if selection.nodes:
            expected, times = timed_run(written(editor.model, folder), feeds[-1], folder, component)
            selection.time_share = share(times, selection.nodes)
            selection.without, selection.within = (
                run_trial(editor, keep, feeds[-1], expected, folder) for keep in ((), selection.nodes)
            )
        return selection

    def write_plan(self, folder: Path, provider: str) -> None:
        """Write the rules of all components to ``folder``.

        Raises:
            OutputError: it cannot be written.
        """
        path = folder / PLAN
        try:
            write_plan(path, {name: selection.rules for name, selection in self.selections.items()}, provider)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error

    def _inputs(self) -> dict[str, list[Feeds]]:
        if self._recorded is None:
            self._recorded = recorded_inputs(self.source) if self.source.is_dir() else {}
        return self._recorded


def _selection(editor: Editor, rules: list[PlanRule], chosen: set[str], count: int) -> Fp32Selection:
    nodes = with_views(editor, chosen)
    return Fp32Selection(rules, nodes, len(chosen) / max(count, 1), _extra_bytes(editor, nodes))


def _extra_bytes(editor: Editor, names: Collection[str]) -> int:
    """Bytes beyond fp16 of the weights that the nodes read."""
    weights = {}
    for node in (n for n in editor.graph.nodes if n.name in names):
        always = float32_inputs(node)
        read = (t for index, t in enumerate(node.inputs) if index not in always)
        weights.update({t.name: t for t in read if isinstance(t, gs.Constant) and editor.dtype(t) == np.float32})
    return sum(int(np.prod(t.shape)) * 2 for t in weights.values())
