"""Counts of the attentions, norms, Gelus, rotary embeddings and transposes that a graph has left, and why.

They are read from the graph as it is written (:mod:`sdort.rewrite.decomposed`), not from what the rules report of
themselves: a form that no rule knows is no miss of any rule, and stands here all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from sdort.graph.domains import MICROSOFT
from sdort.graph.element_operators import BROADCAST, UNARY
from sdort.graph.operator import Category
from sdort.operators import of_category
from sdort.providers.target import Target
from sdort.rewrite.apply import DISABLED, Outcome, explain_place
from sdort.rewrite.decomposed import (
    ATTENTION,
    GELU,
    GROUP_NORM,
    LAYER_NORM,
    OTHER_NORM,
    RMS_NORM,
    ROTARY,
    find_decomposed,
)
from sdort.rewrite.editor import Editor, producer
from sdort.rewrite.fusion import load_fusions

TRANSPOSE = "transpose"
NO_RULE = "no rule takes this form"
NO_IMAGE = "GroupNorm takes images of four axes, channels last"
_SIMPLIFIED = frozenset({"SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"})
_FUSED = {
    ATTENTION: of_category(Category.ATTENTION),
    GROUP_NORM: frozenset({"GroupNorm", "SkipGroupNorm", "BiasGroupNorm", "GroupNormalization"}),
    LAYER_NORM: frozenset(name for name in of_category(Category.NORMALIZATION) if name.endswith("LayerNormalization"))
    - _SIMPLIFIED
    | {"LayerNormalization"},
    RMS_NORM: frozenset(
        name
        for name in of_category(Category.NORMALIZATION)
        if name.startswith("RMS") or name.endswith("RMSNormalization")
    )
    | _SIMPLIFIED
    | {"RMSNormalization"},
    OTHER_NORM: frozenset(),
    ROTARY: frozenset({"RotaryEmbedding", "RMSNormRotaryEmbedding"}),
    GELU: frozenset(name for name in of_category(Category.ACTIVATION) if name.endswith("Gelu")) | {"Gelu"},
}
"""Operators that stand for each kind."""
_ANCHORS = {
    ATTENTION: ("Attention",),
    GROUP_NORM: ("GroupNormalization", f"{MICROSOFT}.GroupNorm", "InstanceNormalization"),
    LAYER_NORM: ("LayerNormalization", "ReduceMean"),
    RMS_NORM: ("RMSNormalization",),
    OTHER_NORM: (),
    ROTARY: ("RotaryEmbedding",),
    GELU: ("Gelu", "Erf", "Tanh"),
}
"""Operators that the rules for each kind begin with: they say why one was declined."""
_NEEDED = {
    GROUP_NORM: "GroupNorm",
    RMS_NORM: "SimplifiedLayerNormalization",
    GELU: "Gelu",
    ROTARY: "RotaryEmbedding",
    ATTENTION: "MultiHeadAttention",
}
"""The provider's operator without which none of a kind is fused."""
_OTHERWISE = {GROUP_NORM: NO_IMAGE}
"""Why a kind stays where no rule says more."""
_ELEMENTWISE = UNARY | BROADCAST
"""Operators that layouts pass through."""


_PLAIN = ("Cast", "Identity")


@dataclass(frozen=True)
class Remaining:
    """One kind of what a graph has left in parts.

    Attributes:
        left: how many.
        of: how many there are, those that are one operator included; 0 where that is no question.
        reason: why.
        node: one of them.
    """

    kind: str
    left: int
    of: int
    reason: str
    node: str

    @property
    def count(self) -> str:
        """``7 of 38 group norms``."""
        total = max(self.of, self.left)
        kind = f"{self.kind}{'s' * (total != 1)}"
        return f"{self.left} of {self.of} {kind}" if self.of else f"{self.left} {kind}"


def remaining(editor: Editor, target: Target, outcomes: Mapping[str, Outcome]) -> list[Remaining]:
    """Operators that the graph has left in parts; none of the kinds of which all is fused.

    Args:
        outcomes: what the fusions said, for reasons alone.
    """
    found: dict[str, list[gs.Node]] = {}
    for kind, node in find_decomposed(editor):
        found.setdefault(kind, []).append(node)
    operators = Counter(node.op for node in editor.graph.nodes)
    rows = []
    for kind, nodes in found.items():
        whole = sum(operators[name] for name in _FUSED[kind])
        reason = _reason(kind, target, outcomes) or _refusal(editor, nodes[0]) or _OTHERWISE.get(kind, NO_RULE)
        rows.append(Remaining(kind, len(nodes), whole + len(nodes), reason, nodes[0].name))
    needless = needless_transposes(editor, target)
    if needless:
        rows.append(Remaining(TRANSPOSE, len(needless), 0, "between layouts of images", needless[0].name))
    return rows


def whole(editor: Editor) -> dict[str, int]:
    """Kind -> how many of it are one operator each; none of the kinds of which there are none."""
    operators = Counter(node.op for node in editor.graph.nodes)
    counts = {kind: sum(operators[name] for name in names) for kind, names in _FUSED.items()}
    return {kind: number for kind, number in counts.items() if number}


def _reason(kind: str, target: Target, outcomes: Mapping[str, Outcome]) -> str:
    """Reasons at which the rules for a kind stopped, most frequent first; empty if they say nothing."""
    needed = _NEEDED.get(kind)
    if needed and f"{MICROSOFT}.{needed}" not in target.conditions:
        return f"{target.name} has no kernel for {needed}"
    reasons: Counter[str] = Counter()
    for name, outcome in outcomes.items():
        rule = load_fusions().get(name)
        if rule is None or rule.anchor not in _ANCHORS[kind]:
            continue
        if rule.must_fuse or rule.stage == "lower":
            reasons.update(outcome.declined)
        for place in outcome.left:
            reasons[f"--disable {name}" if place.kind == DISABLED else place.reason] += place.miss
            reasons[f"--disable {name}"] += place.kind == DISABLED
    return "; ".join(reason for reason, number in reasons.most_common(2) if number)


def _refusal(editor: Editor, node: gs.Node) -> str:
    """The reason of a rule's check at a place that it matches; empty if there is none."""
    rules = [rule for rule in load_fusions().values() if rule.stage == "raise" and rule.is_anchor(node)]
    places = [place for rule in rules if (place := explain_place(rule, editor, node)) is not None]
    return next((place.kind for place in places if place.of == 1), "")


def needless_transposes(editor: Editor, target: Target) -> list[gs.Node]:
    """Transposes that meet their inverse behind nothing but operators that know no layout, and inside of a
    channels-last graph those of images that are neither of an input nor of an output.
    """
    transposes = [node for node in editor.graph.nodes if node.op == "Transpose" and not node.domain]
    return [node for node in transposes if _meets_inverse(node) or (target.channels_last and _is_inner(editor, node))]


def _meets_inverse(node: gs.Node) -> bool:
    perm = list(node.attrs.get("perm") or ())
    inverse = [perm.index(axis) for axis in range(len(perm))]
    stack, seen = [node], {id(node)}
    while stack:
        for reader in (r for t in stack.pop().outputs for r in t.outputs if id(r) not in seen):
            seen.add(id(reader))
            if reader.op == "Transpose" and list(reader.attrs.get("perm") or ()) == inverse:
                return True
            if reader.op in _ELEMENTWISE and not reader.domain and len(seen) < 64:
                stack.append(reader)
    return False


def _is_inner(editor: Editor, node: gs.Node) -> bool:
    """Whether an image changes its layout between two computed tensors; keys do for their product with queries."""
    keys = all(reader.op == "MatMul" for tensor in node.outputs for reader in tensor.outputs)
    if list(node.attrs.get("perm") or ()) not in ([0, 2, 3, 1], [0, 3, 1, 2]) or keys:
        return False
    source, (result,) = producer(node.inputs[0]), node.outputs
    while source is not None and source.op in _PLAIN:
        source = producer(source.inputs[0])
    while not editor.is_output(result) and [reader.op in _PLAIN for reader in result.outputs] == [True]:
        result = result.outputs[0].outputs[0]
    return source is not None and not editor.is_output(result)
