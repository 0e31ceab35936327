"""The error for a node that a target does not run and no rule lowers: the rule that came nearest, and its reason."""

from __future__ import annotations

from collections.abc import Collection

import onnx_graphsurgeon as gs

from sdort.errors import MissedFusionError
from sdort.graph.domains import MICROSOFT
from sdort.lowering.component_report import ComponentReport
from sdort.passes.upgrade import HINT
from sdort.rewrite.apply import DISABLED, Outcome, Unfused, explain_place
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import load_fusions

UNFUSED = "Give the graph as it was before ONNX Runtime's optimizer fused it, or choose another --provider."
"""The advice for an operator of ONNX Runtime that the model itself has."""


def unlowered(
    editor: Editor, lacking: list[tuple[gs.Node, str]], disabled: Collection[str], report: ComponentReport
) -> MissedFusionError:
    """The error for nodes that a target does not run.

    Args:
        lacking: the nodes in order, each with the target's reason; the first is explained.
        disabled: names of the fusions that the user left out.
        report: takes what each rule for such a node stopped at; the nearest is its miss.
    """
    node, reason = lacking[0]
    rules = sorted(
        (fusion for fusion in load_fusions().values() if fusion.is_anchor(node)), key=lambda rule: rule.stage != "lower"
    )
    places = {rule.name: explain_place(rule, editor, node) for rule in rules}
    for rule in rules:
        if rule.name in disabled and places[rule.name] is None:
            place = Unfused(rule.name, node.name, DISABLED, 1, 1, applicable=True, miss=True)
            _record(report, place)
            words = f"the rule {rule.name} would lower it; it is disabled by --disable {rule.name}"
            return _error(report, lacking, f"{reason}; {words}", f"Leave out --disable {rule.name}.")

    def is_lowering(place: Unfused) -> bool:
        return load_fusions()[place.fusion].stage == "lower"

    attempts = [place or _refused(name, node, report) for name, place in places.items() if name not in disabled]
    for place in attempts:
        _record(report, place)
    fused = node.domain == MICROSOFT and node.name not in editor.origins
    if not attempts:
        words = f"{reason}, and there is no rule that lowers {node.op}"
        return _error(report, lacking, words, UNFUSED if fused else HINT)
    nearest = max(attempts, key=lambda place: (place.nearness[0], is_lowering(place), place.nearness[1]))
    nearest.miss = True
    words = f"{reason}, and no rule lowers it. The nearest, {nearest.fusion}, stops here: {nearest.why}"
    what = UNFUSED.rstrip(".") if fused else "Choose another --provider"
    hint = f"{what}, or see what the rule takes:\n    sdort fusions {nearest.fusion}"
    return _error(report, lacking, words, hint)


def _refused(name: str, node: gs.Node, report: ComponentReport) -> Unfused:
    """A rule that fits, but whose result the target does not run."""
    outcome = report.fusions.get(name)
    reason = "; ".join(outcome.declined if outcome else ()) or "the provider does not run what it makes"
    return Unfused(name, node.name, reason, 1, 1, applicable=False, kind=reason)


def _record(report: ComponentReport, place: Unfused) -> None:
    outcome = report.fusions.setdefault(place.fusion, Outcome(place.fusion, candidates=1))
    outcome.left = [*(known for known in outcome.left if known.node != place.node), place]


def _error(report: ComponentReport, lacking: list[tuple[gs.Node, str]], words: str, hint: str) -> MissedFusionError:
    node, reason = lacking[0]
    alike = sum(other == reason for _, other in lacking[1:])
    made = node.outputs[0].name if node.outputs else ""
    name = f"{node.name}, which computes {made}" if made not in ("", node.name) else node.name
    more = f" The same holds for {alike} more." if alike else ""
    return MissedFusionError(f"{words}.{more}", component=report.component, node=name, hint=hint)
