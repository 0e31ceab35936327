"""A fusion: Before, After and a check, from one file; and how it is applied to a graph."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any, Protocol

import onnx_graphsurgeon as gs

from sdort.model.weights import cast_values
from sdort.rewrite.editor import Editor
from sdort.rewrite.match import Match, Progress, Refusal, find, is_float, refuse
from sdort.rewrite.pattern import Capture, Pattern, check_connected, parse_pattern

STAGES = ("restore", "raise", "fuse", "fuse_nhwc", "extend", "lower")


class Support(Protocol):
    """What a target says of one node: None if it runs it, else the reason why not."""

    def unsupported(self, node: gs.Node, editor: Editor) -> str | None: ...


@dataclass(frozen=True)
class Fusion:
    """One file of ``fusions/``.

    The file defines ``STAGE``, ``BEFORE`` (one text or several variants), ``AFTER`` (one text, or one for each
    variant), ``ANCHOR`` (the operator in Before that makes a place a candidate) and ``EXAMPLE`` (sizes for the numeric
    test). It may define ``check(match)`` (returns a refusal or None), ``derive(match)`` (returns the tensors and
    attributes that After names and Before does not have), ``MUST_FUSE`` (no anchor may remain), ``concerns(editor,
    anchor)`` (whether an anchor that remains is one at all) and ``RUN_AFTER`` (names of fusions of the same stage).
    """

    module: ModuleType

    @property
    def name(self) -> str:
        return self.module.__name__.rpartition(".")[2]

    @property
    def stage(self) -> str:
        return str(self.module.STAGE)

    @property
    def anchor(self) -> str:
        return str(self.module.ANCHOR)

    @property
    def must_fuse(self) -> bool:
        return bool(getattr(self.module, "MUST_FUSE", False))

    @property
    def run_after(self) -> tuple[str, ...]:
        return tuple(getattr(self.module, "RUN_AFTER", ()))

    @property
    def through_casts(self) -> bool:
        """Whether Casts between floats count for nothing; only where no target's kernels are chosen yet."""
        return self.stage == "raise"

    @cached_property
    def variants(self) -> list[tuple[Pattern, Pattern]]:
        """(Before, After) pairs."""
        befores = _texts(self.module.BEFORE)
        afters = _texts(self.module.AFTER)
        afters = afters * len(befores) if len(afters) == 1 else afters
        pairs = [(parse_pattern(b), parse_pattern(a)) for b, a in zip(befores, afters, strict=True)]
        for before, _ in pairs:
            check_connected(before)
        return pairs

    def check(self, match: Match) -> Refusal | None:
        function: Callable[[Match], Refusal | None] | None = getattr(self.module, "check", None)
        return function(match) if function else None

    def concerns(self, editor: Editor, anchor: gs.Node) -> bool:
        function: Callable[[Editor, gs.Node], bool] | None = getattr(self.module, "concerns", None)
        return function(editor, anchor) if function else True

    def derive(self, match: Match) -> dict[str, Any]:
        function: Callable[[Match], dict[str, Any]] | None = getattr(self.module, "derive", None)
        return function(match) if function else {}


def _texts(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


@lru_cache(maxsize=1)
def load_fusions() -> Mapping[str, Fusion]:
    """All fusions by name, in the order in which their stage applies them."""
    package = importlib.import_module("sdort.fusions")
    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__))
    found = {n: Fusion(importlib.import_module(f"sdort.fusions.{n}")) for n in names}
    ordered: dict[str, Fusion] = {}

    def place(name: str) -> None:
        if name not in ordered:
            for earlier in found[name].run_after:
                place(earlier)
            ordered[name] = found[name]

    for name in names:
        place(name)
    return ordered


@dataclass
class Outcome:
    """What one fusion did to one graph."""

    name: str
    matched: int = 0
    candidates: int = 0
    """Anchors that were there before the fusion ran."""
    declined: dict[str, int] = field(default_factory=dict)
    """Why the target does not run the result -> how many anchors stayed as they were for it."""
    refusals: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each anchor left: node, reason, how much of the pattern matched, and whether it is a miss."""

    @property
    def misses(self) -> list[dict[str, Any]]:
        return [r for r in self.refusals if r["miss"]]


def apply_stage(
    fusions: Sequence[Fusion], editor: Editor, support: Support | None = None, *, explain: bool = False
) -> list[Outcome]:
    """Apply the fusions of one stage in order, then account for every place that should have fused and did not.

    Args:
        support: the target; a rewrite into operators that it does not run is not done.
        explain: account also for the places that a fusion may leave.
    """
    refused: dict[str, dict[str, Refusal]] = {f.name: {} for f in fusions}
    outcomes = {f.name: apply_fusion(f, editor, support, refused[f.name]) for f in fusions}
    for anchor in {f.anchor: None for f in fusions}:
        group = [f for f in fusions if f.anchor == anchor]
        must = any(f.must_fuse for f in group)
        left = _anchors(anchor, editor)
        for fusion in group:
            outcomes[fusion.name].declined.update(_declined(left, refused[fusion.name]))
        for node in left if must or explain else ():
            whys = [_why_not(f, editor, node, refused[f.name]) for f in group]
            nearest = max(range(len(group)), key=lambda i: whys[i]["matched"] / max(whys[i]["of"], 1))
            whys[nearest]["miss"] = must and all(w["applicable"] for w in whys)
            for fusion, why in zip(group, whys, strict=True):
                if explain or why["miss"]:
                    outcomes[fusion.name].refusals.append(why)
    return list(outcomes.values())


def apply_fusion(
    fusion: Fusion, editor: Editor, support: Support | None = None, refused: dict[str, Refusal] | None = None
) -> Outcome:
    """Rewrite every place where the fusion matches, until none is left.

    Args:
        refused: takes the checks' refusals, by node.
    """
    editor.maker = fusion.name
    outcome = Outcome(fusion.name, candidates=len(_anchors(fusion.anchor, editor)))
    limit = 2 * len(editor.graph.nodes)
    roots = {(before.root.op, before.root.domain) for before, _ in fusion.variants}
    again = True
    while again:
        again = False
        if outcome.matched > limit:
            raise RuntimeError(f"{fusion.name} matches its own result again and again")
        for node in [n for n in editor.graph.nodes if (n.op, n.domain or "") in roots]:
            if not node.outputs:
                continue
            # Lowering is for what the target does not run, and says so.
            reason = support.unsupported(node, editor) if support and fusion.stage == "lower" else ""
            if reason is not None and _rewrite_at(fusion, editor, node, support, {} if refused is None else refused):
                outcome.matched += 1
                again = True
                if reason and node.domain:
                    outcome.declined[reason] = outcome.declined.get(reason, 0) + 1
        if again:
            editor.finish()
    return outcome


def _declined(left: list[gs.Node], refused: dict[str, Refusal]) -> dict[str, int]:
    refusals = {id(r): r for n in left if (r := refused.get(n.name)) is not None and r.by_target}
    return dict(Counter(r.reason for r in refusals.values()))


def _anchors(anchor: str, editor: Editor) -> list[gs.Node]:
    domain, _, op = anchor.rpartition(".")
    return [n for n in editor.graph.nodes if n.op == op and (n.domain or "") == domain]


def _rewrite_at(
    fusion: Fusion, editor: Editor, root: gs.Node, support: Support | None, refused: dict[str, Refusal]
) -> bool:
    for before, after in fusion.variants:
        match = find(editor, before, root, Progress(), through_casts=fusion.through_casts)
        if match is None:
            continue
        refusal = fusion.check(match)
        if refusal is None:
            refusal = _substitute(editor, before, after, match, fusion.derive(match), support)
        if refusal is None:
            return True
        for node in match.removed:
            refused[node.name] = refusal
    return False


def _substitute(
    editor: Editor, before: Pattern, after: Pattern, match: Match, derived: dict[str, Any], support: Support | None
) -> Refusal | None:
    """Instantiate After in place of the match; nothing has changed if the target refuses one of its nodes."""
    circular = _reads_removed(editor, before, after, match)
    if circular:
        return refuse("the result would need a size of what it replaces", circular)
    tensors: dict[str, gs.Tensor] = dict(match.tensors)
    tensors.update({k: v for k, v in derived.items() if isinstance(v, gs.Tensor)})
    tensors.update({k: editor.constant(v, k) for k, v in after.values.items()})
    attrs = {**match.attrs, **derived}
    built = _bring_to_precision(editor, after, match, tensors)
    for node in after.nodes:
        inputs = [tensors[n] if n else gs.Variable.empty() for n in node.inputs]
        values = {k: attrs[v.name] if isinstance(v, Capture) else v for k, v in node.attrs.items()}
        values = {k: v for k, v in values.items() if v is not None}
        made = editor.node(node.op, inputs, values, outputs=len(node.outputs), domain=node.domain, hint=node.op)
        tensors.update({n: t for n, t in zip(node.outputs, made.outputs, strict=True) if n})
        built.append(made)
        reason = support.unsupported(made, editor) if support else None
        if reason:
            _discard(editor, built)
            return Refusal(reason, applicable=False, by_target=True)
    for node in match.removed:
        node.inputs.clear()
    for name in (n for n in after.outputs if n in match.tensors):
        built += _take_over(editor, match.tensors[name], tensors[name])
    for node in match.removed:
        node.outputs.clear()
    earlier = [maker for node in match.nodes.values() for maker in editor.makers.get(node.name, ())]
    for made in built:
        _trim(editor, made)
        editor.place(made)
        editor.makers[made.name] = tuple(dict.fromkeys((*earlier, *editor.makers.get(made.name, ()))))
    return None


def _bring_to_precision(editor: Editor, after: Pattern, match: Match, tensors: dict[str, gs.Tensor]) -> list[gs.Node]:
    """Give After's numbers, and where the match is of several types all that it reads, the precision of the match."""
    precision = match.precision()
    casts: list[gs.Node] = []
    if precision is None:
        return casts
    used = {n for node in after.nodes for n in node.inputs if n in tensors} if match.through_casts else {*after.values}
    for name in sorted(used):
        tensor, dtype = tensors[name], editor.dtype(tensors[name])
        if dtype is None or dtype == precision or not is_float(dtype):
            continue
        if isinstance(tensor, gs.Constant):
            tensors[name] = editor.constant(cast_values(tensor._values, precision), tensor.name)
        else:
            casts.append(editor.cast(tensor, precision))
            tensors[name] = casts[-1].outputs[0]
    return casts


def _reads_removed(editor: Editor, before: Pattern, after: Pattern, match: Match) -> str | None:
    """An input of After that is computed from what the rewrite removes."""
    removed = {id(node) for node in match.removed}
    first = min(editor.position(node) for node in match.removed)
    used = {n for node in after.nodes for n in node.inputs}
    for name in before.inputs:
        if name not in used or before.types[name].kind != "i":
            continue
        stack, seen = [match.tensors[name]], set[int]()
        while stack:
            for node in stack.pop().inputs:
                if id(node) in removed:
                    return name
                if id(node) not in seen and editor.position(node) >= first:
                    seen.add(id(node))
                    stack.extend(node.inputs)
    return None


def _discard(editor: Editor, nodes: list[gs.Node]) -> None:
    """Take out nodes that were appended last; the graph is not searched for them."""
    for node in reversed(nodes):
        node.inputs.clear()
        node.outputs.clear()
        last = editor.graph.nodes.pop()
        assert last is node


def _take_over(editor: Editor, old: gs.Tensor, new: gs.Tensor) -> list[gs.Node]:
    """Let the producer of ``new`` produce ``old`` instead, so that readers and graph outputs stay as they are.

    Returns:
        The Cast that this took where the two are of different floating-point types.
    """
    wanted, found = editor.dtype(old), editor.dtype(new)
    if wanted is not None and found is not None and wanted != found and is_float(wanted) and is_float(found):
        return [editor.cast(new, wanted, output=old)]
    (node,) = new.inputs
    old.inputs.clear()
    position = next(i for i, t in enumerate(node.outputs) if t is new)
    node.outputs[position] = old
    for consumer in list(new.outputs):
        for index, tensor in enumerate(consumer.inputs):
            if tensor is new:
                consumer.inputs[index] = old
    editor.facts.set(old, editor.facts.of(new))
    return []


def _trim(editor: Editor, node: gs.Node) -> None:
    """Leave optional outputs that nobody reads away: the last ones go, those before another lose their name."""
    for index in range(len(node.outputs) - 1, 0, -1):
        tensor = node.outputs[index]
        if tensor.name and (tensor.outputs or editor.is_output(tensor)):
            continue
        if index == len(node.outputs) - 1:
            node.outputs.pop()
        else:
            node.outputs[index] = gs.Variable.empty()


def _why_not(fusion: Fusion, editor: Editor, anchor: gs.Node, refused: dict[str, Refusal]) -> dict[str, Any]:
    """Explain one anchor that is left: a refusal of the check, or the furthest that any root reached."""
    refusal = refused.get(anchor.name)
    if refusal is not None:
        return {
            "node": anchor.name,
            "reason": str(refusal),
            "matched": 1,
            "of": 1,
            "applicable": refusal.applicable,
            "miss": False,
        }
    best, size = Progress(), 0
    for before, _ in fusion.variants:
        for root in _downstream(anchor, len(before.nodes)):
            progress = Progress()
            find(editor, before, root, progress, through_casts=fusion.through_casts)
            if progress.matched > best.matched:
                best, size = progress, len(before.nodes)
    concerned = fusion.concerns(editor, anchor)
    reason = best.reason or f"nothing after it looks like the end of {fusion.name}"
    return {
        "node": anchor.name,
        "reason": reason + (f" at {best.node!r}" if best.node else ""),
        "matched": max(best.matched, 0),
        "of": size,
        "applicable": concerned,
        "miss": False,
    }


def _downstream(anchor: gs.Node, depth: int) -> list[gs.Node]:
    """The anchor and what reads it, up to ``depth`` steps away."""
    found, frontier, seen = [anchor], [anchor], {id(anchor)}
    for _ in range(depth):
        frontier = [c for n in frontier for t in n.outputs for c in t.outputs if id(c) not in seen]
        frontier = list({id(n): n for n in frontier}.values())
        seen.update(id(n) for n in frontier)
        found.extend(frontier)
    return found
