"""``--fp16 auto`` and ``--fp16-plan``: which nodes of a component stay in fp32, and a record of why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx_graphsurgeon as gs

from sdort.errors import OutputError
from sdort.generation.recorded import Feeds
from sdort.passes.half import float32_inputs
from sdort.precision.cost import share, timed_run
from sdort.precision.inputs import inputs_for, recorded_inputs
from sdort.precision.places import Place, places, with_views
from sdort.precision.plan import PLAN, Rule, make_rules, select, write_plan
from sdort.precision.ranges import measure, written
from sdort.precision.risks import find_risks
from sdort.precision.trial import outcome
from sdort.rewrite.editor import Editor


@dataclass(frozen=True)
class Fp32Nodes:
    """One kind of nodes that stay in fp32."""

    where: str
    why: str


@dataclass(frozen=True)
class Fp32Report:
    """Nodes of one component that stay in fp32, and what that costs."""

    measured: str
    """The inputs that were measured with; empty if a plan was followed."""
    islands: list[Fp32Nodes]
    nodes: int
    share_of_nodes: float
    share_of_time: float | None
    """The nodes' part of the time of a run in fp32 on this CPU; None if not measured."""
    bytes: int
    """The weights' bytes beyond fp16."""
    without: str
    """The result of fp16 alone, in words; empty if not tried."""
    within: str = field(metadata={"json": "with"})
    """The result with these nodes in fp32; empty if not tried."""


@dataclass
class Outcome:
    """What stays in fp32 in one component.

    ``names`` are the nodes, ``share`` their part of all nodes, ``bytes`` what their weights take beyond fp16.
    """

    rules: list[Rule]
    names: set[str]
    share: float
    bytes: int
    inputs: str = ""
    """What was measured with; empty if a plan was followed."""
    without: str = ""
    """What fp16 alone would give, and ``within`` what it gives like this; empty if not tried."""
    within: str = ""
    time: float | None = None
    """The nodes' part of the time of a run in fp32 on this CPU; None if not measured."""

    def report(self) -> Fp32Report:
        """The selection as reports show it."""
        return Fp32Report(
            measured=self.inputs,
            islands=[Fp32Nodes(str(rule), rule.reason) for rule in self.rules],
            nodes=len(self.names),
            share_of_nodes=round(self.share, 4),
            share_of_time=None if self.time is None else round(self.time, 4),
            bytes=self.bytes,
            without=self.without,
            within=self.within,
        )


class Keeper:
    """Decides for component after component what stays in fp32.

    Args:
        source: the original pipeline, to record inputs from.
        scratch: where a folder for the largest component in fp32 may be made for a while.
        plan: rules to follow; None measures.
    """

    def __init__(self, source: Path, scratch: Path, plan: dict[str, list[Rule]] | None = None) -> None:
        self.source = source
        self.scratch = scratch
        self.plan = plan
        self.outcomes: dict[str, Outcome] = {}
        self._recorded: dict[str, list[Feeds]] | None = None

    def choose(self, editor: Editor, path: Path) -> Collection[str]:
        """The names of the nodes that stay in fp32.

        Args:
            editor: the component's graph before it is converted.
            path: its original ``.onnx`` file.

        Raises:
            UsageError: the plan does not fit.
            ParityError: the component gives NaN in fp32 already.
            BadModelError: it cannot be run.
        """
        component, found = editor.model.component, places(editor)
        if self.plan is not None:
            rules = self.plan.get(component, [])
            kept = _outcome(editor, rules, set(select(rules, found, component)), len(found))
        else:
            with TemporaryDirectory(prefix=".measured-", dir=self.scratch) as folder:
                kept = self._measured(editor, found, path, Path(folder))
        self.outcomes[component] = kept
        return kept.names

    def _measured(self, editor: Editor, found: Mapping[str, Place], path: Path, folder: Path) -> Outcome:
        feeds, said = inputs_for(editor.model.component, path, self._inputs())
        risks = find_risks(editor, measure(editor, feeds, folder))
        # What has no place computes no floats, or is converted as a part of what it stands between.
        reasons = {name: risk.reason for name, risk in risks.items() if name in found}
        kept = _outcome(editor, make_rules(found, reasons), set(reasons), len(found))
        kept.inputs = said
        if kept.names:
            wanted, times = timed_run(written(editor.model, folder), feeds[-1], folder, editor.model.component)
            kept.time = share(times, kept.names)
            kept.without, kept.within = (outcome(editor, keep, feeds[-1], wanted, folder) for keep in ((), kept.names))
        return kept

    def write_plan(self, folder: Path, provider: str) -> None:
        """Write what was decided to ``folder``.

        Raises:
            OutputError: it cannot be written.
        """
        path = folder / PLAN
        try:
            write_plan(path, {name: outcome.rules for name, outcome in self.outcomes.items()}, provider)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error

    def _inputs(self) -> dict[str, list[Feeds]]:
        if self._recorded is None:
            self._recorded = recorded_inputs(self.source) if self.source.is_dir() else {}
        return self._recorded


def _outcome(editor: Editor, rules: list[Rule], chosen: set[str], count: int) -> Outcome:
    names = with_views(editor, chosen)
    return Outcome(rules, names, len(chosen) / max(count, 1), _extra_bytes(editor, names))


def _extra_bytes(editor: Editor, names: Collection[str]) -> int:
    """Of weights that would be fp16 otherwise."""
    weights = {}
    for node in (n for n in editor.graph.nodes if n.name in names):
        always = float32_inputs(node)
        read = (t for index, t in enumerate(node.inputs) if index not in always)
        weights.update({t.name: t for t in read if isinstance(t, gs.Constant) and editor.dtype(t) == np.float32})
    return sum(int(np.prod(t.shape)) * 2 for t in weights.values())
