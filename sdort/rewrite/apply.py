"""Applying the fusions of a stage to a graph, and accounting for every place that they leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import onnx_graphsurgeon as gs

from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import Fusion, Support, Variant
from sdort.rewrite.match import Progress, Refusal, find
from sdort.rewrite.pattern import Pattern
from sdort.rewrite.substitute import substitute


@dataclass
class Unfused:
    """An anchor that a fusion left, and why."""

    fusion: str = field(metadata={"json": None})
    node: str
    """The place's node."""
    reason: str
    """Why it did not fuse."""
    matched: int
    """Nodes of the nearest variant that matched."""
    of: int
    """Nodes of that variant; 0 where none of them matched."""
    applicable: bool
    """False where the fusion does not concern this place."""
    miss: bool = False
    """Whether it should have fused."""
    tensors: int = field(default=0, metadata={"json": None})
    """Tensors that were bound when ``matched`` nodes were: of two attempts, it tells which came further."""
    kind: str = field(default="", metadata={"json": None})
    """The reason without the graph's own names and sizes: places with one cause share it."""

    @property
    def why(self) -> str:
        """The reason, and how far the fusion came."""
        return f"{self.reason} ({self.matched} of {self.of} nodes matched)" if self.of > 1 else self.reason

    def __str__(self) -> str:
        return f"{self.fusion} left {self.node!r}: {self.why}"

    @property
    def nearness(self) -> tuple[float, int]:
        """Sort key: how near the fusion came."""
        return self.matched / max(self.of, 1), self.tensors


@dataclass
class Outcome:
    """The result of one fusion on one graph."""

    name: str = field(metadata={"json": None})
    matched: int = 0
    """Places that fused."""
    candidates: int = 0
    """Anchors that were there before the fusion ran; of a lowering, those that the target does not run."""
    declined: dict[str, int] = field(default_factory=dict, metadata={"json": None})
    """Why the target does not run the result -> how many anchors stayed as they were for it."""
    left: list[Unfused] = field(default_factory=list)
    """Places that did not fuse, and why."""

    @property
    def misses(self) -> list[Unfused]:
        return [place for place in self.left if place.miss]


def apply_stage(
    fusions: Sequence[Fusion],
    editor: Editor,
    support: Support | None = None,
    *,
    explain: bool = False,
    disabled: Sequence[Fusion] = (),
) -> list[Outcome]:
    """Apply the fusions of one stage in order, then account for every place that should have fused and did not.

    Args:
        support: the target; a rewrite into operators that it does not run is not done.
        explain: account also for the places that a fusion may leave.
        disabled: fusions of the stage that are not applied. A place where one of them fits is accounted for as left by
            that fusion, and is no miss.
    """
    refused: dict[str, dict[str, Refusal]] = {f.name: {} for f in fusions}
    outcomes: dict[str, Outcome] = {}
    others = _Taken(fusions, editor, support) if explain else None
    for fusion in fusions:
        outcomes[fusion.name] = apply_fusion(fusion, editor, support, refused[fusion.name])
        if others is not None:
            others.note(fusion, refused[fusion.name])
    unused = {f.name: _disabled(f, editor, support) for f in disabled}
    wanted = {place.node for outcome in unused.values() for place in outcome.left}
    for anchor in {f.anchor: None for f in fusions}:
        group = [f for f in fusions if f.anchor == anchor]
        must_fuse = any(f.must_fuse for f in group)
        left = _places(group[0], editor, support)
        for fusion in group:
            if fusion.stage != "extend":  # what an extension leaves is the target's operator already
                outcomes[fusion.name].declined.update(_declined(left, refused[fusion.name]))
        for node in left if must_fuse or explain else ():
            attempts = [_explain(f, editor, node, refused[f.name].get(node.name)) for f in group]
            nearest = max(attempts, key=lambda place: place.nearness)
            nearest.miss = must_fuse and all(place.applicable for place in attempts) and node.name not in wanted
            for place in attempts if explain else [nearest] if nearest.miss else []:
                outcomes[place.fusion].left.append(place)
    if others is not None:
        for place in others.places():
            outcomes[place.fusion].left.append(place)
    return [*outcomes.values(), *unused.values()]


class _Taken:
    """Anchors of a stage's fusions that another fusion took, and what had kept the fusion itself from them."""

    def __init__(self, fusions: Sequence[Fusion], editor: Editor, support: Support | None) -> None:
        self.editor, self.support = editor, support
        self.anchors = {f.name: {node.name: node for node in _places(f, editor, support)} for f in fusions}
        self.reasons: dict[str, dict[str, Unfused]] = {}
        self.takers: dict[str, str] = {}

    def note(self, fusion: Fusion, refused: dict[str, Refusal]) -> None:
        """After a fusion was applied: what it took, and why it left the others."""
        for anchors in self.anchors.values():
            gone = (name for name, node in anchors.items() if not node.outputs and name not in self.takers)
            self.takers.update(dict.fromkeys(gone, fusion.name))
        left = [node for name, node in self.anchors[fusion.name].items() if name not in self.takers]
        self.reasons[fusion.name] = {
            node.name: _explain(fusion, self.editor, node, refused.get(node.name)) for node in left
        }

    def places(self) -> Iterator[Unfused]:
        """The places of each fusion that another one took."""
        for fusion, anchors in self.anchors.items():
            for name, taker in self.takers.items():
                if name not in anchors or taker == fusion:
                    continue
                why = f"{taker} took it"
                place = self.reasons[fusion].get(name) or Unfused(fusion, name, "", 0, 0, applicable=False)
                place.reason = f"{place.reason}; {why}" if place.reason else why
                place.applicable, place.kind = False, why
                yield place


DISABLED = "it is disabled"
"""The reason of a place that a disabled fusion would take."""


def _disabled(fusion: Fusion, editor: Editor, support: Support | None) -> Outcome:
    """The places where a fusion that is not applied fits; the target is not asked."""
    places = _places(fusion, editor, support)
    taken = [node for node in places if _attempt(fusion, editor, node) is None]
    left = [Unfused(fusion.name, node.name, DISABLED, 1, 1, applicable=False, kind=DISABLED) for node in taken]
    return Outcome(fusion.name, candidates=len(places), left=left)


def explain_place(fusion: Fusion, editor: Editor, anchor: gs.Node) -> Unfused | None:
    """The cause that keeps a fusion from an anchor as the graph is now; None if it matches and its check lets it."""
    attempt = _attempt(fusion, editor, anchor)
    if attempt is None:
        return None
    return _explain(fusion, editor, anchor, attempt if isinstance(attempt, Refusal) else None)


def apply_fusion(
    fusion: Fusion, editor: Editor, support: Support | None = None, refused: dict[str, Refusal] | None = None
) -> Outcome:
    """Rewrite every place where the fusion matches, its largest variants first, until none is left.

    Args:
        refused: takes the checks' refusals, by node.
    """
    editor.step = fusion.name
    outcome = Outcome(fusion.name, candidates=len(_places(fusion, editor, support)))
    application = _Application(fusion, editor, support, {} if refused is None else refused, outcome)
    limit = 2 * len(editor.graph.nodes)
    while sum([application.sweep(variants) for variants in fusion.variants_by_size]):
        if outcome.matched > limit:
            raise RuntimeError(f"{fusion.name} matches its own result again and again")
    return outcome


@dataclass
class _Application:
    """One fusion on one graph."""

    fusion: Fusion
    editor: Editor
    support: Support | None
    refused: dict[str, Refusal]
    outcome: Outcome

    def sweep(self, variants: Sequence[Variant]) -> int:
        """Rewrite every place where one of the variants matches. Returns how many there were."""
        before = self.outcome.matched
        roots = {(pattern.root.op, pattern.root.domain) for pattern, _ in variants}
        operators = {op for op, _ in roots}
        for node in [n for n in self.editor.graph.nodes if n.op in operators and (n.op, n.domain or "") in roots]:
            if node.outputs:
                self._visit(variants, node)
        if self.outcome.matched > before:
            self.editor.finish()
        return self.outcome.matched - before

    def _visit(self, variants: Sequence[Variant], root: gs.Node) -> None:
        # Lowering is for what the target does not run, and says so.
        lowering = self.support is not None and self.fusion.stage == "lower"
        reason = self.support.unsupported(root, self.editor) if self.support and lowering else None
        if (lowering and reason is None) or not self._rewrite_at(variants, root):
            return
        self.outcome.matched += 1
        if reason and root.domain:
            self.outcome.declined[reason] = self.outcome.declined.get(reason, 0) + 1

    def _rewrite_at(self, variants: Sequence[Variant], root: gs.Node) -> bool:
        fusion, editor = self.fusion, self.editor
        refused: dict[str, Refusal] = {}  # of several variants that fit, the first one says why not
        for before, after in variants:
            match = find(editor, before, root, Progress(), through_casts=fusion.through_casts)
            if match is None:
                continue
            refusal = fusion.check(match)
            if refusal is None:
                refusal = substitute(editor, before, after, match, fusion.derive(match), self.support)
            if refusal is None:
                return True
            refused = {node.name: refusal for node in match.removed} | refused
        self.refused.update(refused)
        return False


def _places(fusion: Fusion, editor: Editor, support: Support | None) -> list[gs.Node]:
    """The fusion's anchors; a lowering's are only those that the target does not run."""
    nodes = [node for node in editor.graph.nodes if fusion.is_anchor(node)]
    if support is None or fusion.stage != "lower":
        return nodes
    return [node for node in nodes if support.unsupported(node, editor) is not None]


def _declined(left: list[gs.Node], refused: dict[str, Refusal]) -> dict[str, int]:
    refusals = {id(r): r for n in left if (r := refused.get(n.name)) is not None and r.by_target}
    return dict(Counter(r.reason for r in refusals.values()))


def _explain(fusion: Fusion, editor: Editor, anchor: gs.Node, refusal: Refusal | None) -> Unfused:
    """Explain one anchor that is left: the refusal of the check, or the furthest that any variant reached."""
    if refusal is not None:
        return Unfused(fusion.name, anchor.name, str(refusal), 1, 1, refusal.applicable, kind=refusal.reason)
    nearest, size = Progress(), 0
    for before, root in _roots(fusion, anchor):
        progress = Progress(anchor=anchor)
        find(editor, before, root, progress, through_casts=fusion.through_casts)
        if progress.reached > nearest.reached:
            nearest, size = progress, len(before.nodes)
    reason = nearest.reason or f"nothing after it looks like the end of {fusion.name}"
    return Unfused(
        fusion.name,
        anchor.name,
        reason + (f" at {nearest.node!r}" if nearest.node else ""),
        max(nearest.matched, 0),
        size,
        fusion.concerns(editor, anchor),
        tensors=nearest.tensors,
        kind=nearest.kind or reason,
    )


def _attempt(fusion: Fusion, editor: Editor, anchor: gs.Node) -> Refusal | Literal["no match"] | None:
    """The obstacle of a fusion at an anchor: the refusal of its check, or that it does not match; None without one."""
    refusal: Refusal | Literal["no match"] = "no match"
    for before, root in _roots(fusion, anchor):
        match = find(editor, before, root, Progress(), through_casts=fusion.through_casts)
        if match is None or not any(node is anchor for node in match.nodes.values()):
            continue
        found = fusion.check(match)
        if found is None:
            return None
        refusal = found
    return refusal


def _roots(fusion: Fusion, anchor: gs.Node) -> Iterator[tuple[Pattern, gs.Node]]:
    """Each Before with the nodes that may be its last one, where the anchor is in it."""
    for before, _ in fusion.variants:
        for root in _downstream(anchor, len(before.nodes)):
            yield before, root


def _downstream(anchor: gs.Node, depth: int) -> list[gs.Node]:
    """The anchor and what reads it, up to ``depth`` steps away."""
    nodes, frontier, seen = [anchor], [anchor], {id(anchor)}
    for _ in range(depth):
        frontier = [c for n in frontier for t in n.outputs for c in t.outputs if id(c) not in seen]
        frontier = list({id(n): n for n in frontier}.values())
        seen.update(id(n) for n in frontier)
        nodes.extend(frontier)
    return nodes
