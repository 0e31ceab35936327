"""An optimization in words: what was missed, in groups, and what was left in standard operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sdort.lowering.component_report import ComponentReport
from sdort.lowering.remaining import Remaining
from sdort.optimizer.report import OptimizeReport
from sdort.rewrite.apply import DISABLED, Unfused
from sdort.rewrite.fusion import load_fusions
from sdort.tables import counted

MOST_GROUPS = 8
"""Kinds of misses that an error names; of the others it gives the number."""


@dataclass(frozen=True)
class MissGroup:
    """Places of one component that should have fused and did not, for one reason.

    Attributes:
        component: of the pipeline.
        places: what was left, in the graph's order; the first one stands for all.
        candidates: the places that were there.
    """

    component: str
    places: Sequence[Unfused]
    candidates: int

    @property
    def fusion(self) -> str:
        """The fusion that came nearest."""
        return self.places[0].fusion

    @property
    def count(self) -> str:
        """``2 of 16 Softmax``."""
        anchor = load_fusions()[self.fusion].anchor.rpartition(".")[2]
        return f"{len(self.places)} of {max(self.candidates, len(self.places))} {anchor}"

    @property
    def sentence(self) -> str:
        """The group on one line, with one place of it."""
        first = self.places[0]
        example = f"such as {first.node!r}" if len(self.places) > 1 else repr(first.node)
        return f"{self.component}: {self.fusion} left {self.count}, {example}: {first.why}"


def miss_groups(report: OptimizeReport) -> list[MissGroup]:
    """The places that should have fused and did not, those with the same fusion and reason together."""
    fusions = load_fusions()
    groups = []
    for name, component in report.components.items():
        alike: dict[tuple[str, str], list[Unfused]] = {}
        for miss in component.misses:
            alike.setdefault((miss.fusion, miss.kind), []).append(miss)
        for (fusion, _), places in alike.items():
            same_anchor = [o for n, o in component.fusions.items() if _anchor(n) == fusions[fusion].anchor]
            groups.append(MissGroup(name, places, max(outcome.candidates for outcome in same_anchor)))
    return groups


def _anchor(name: str) -> str | None:
    fusion = load_fusions().get(name)
    return fusion.anchor if fusion else None


def miss_lines(report: OptimizeReport) -> list[str]:
    """A line for each group of misses, each count that a config.json gives, and each ``expect``; many are cut short."""
    groups = miss_groups(report)
    lines = [group.sentence for group in groups[:MOST_GROUPS]]
    if len(groups) > MOST_GROUPS:
        lines.append(f"and {sum(len(group.places) for group in groups[MOST_GROUPS:])} places for other reasons")
    return lines + report.wrong_counts


def miss_number(report: OptimizeReport) -> str:
    """``3 places did not fuse``, and how many counts are wrong."""
    places = sum(len(group.places) for group in miss_groups(report))
    parts = [f"{counted(places, 'place')} that should have fused did not"] if places else []
    counts = len(report.wrong_counts)
    parts += [f"{counted(counts, 'count')} of operators {'are' if counts != 1 else 'is'} wrong"] * bool(counts)
    return " and ".join(parts)


def fused_operators(components: Iterable[ComponentReport]) -> Counter[str]:
    """Operators that are not ONNX's own, over all components, by name; those of one name in two domains together."""
    total: Counter[str] = Counter()
    for component in components:
        for name, number in component.operators.items():
            if "." in name:
                total[name.rpartition(".")[2]] += number
    return total


def what_stays(report: OptimizeReport) -> str:
    """``7 of 38 group norms and 66 transposes stay in standard operators: ...``, of all components; else empty.

    It counts what is in the graphs that were written, whatever any rule says of itself.
    """
    kinds: dict[str, list[Remaining]] = {}
    for component in report.components.values():
        for row in component.remaining:
            kinds.setdefault(row.kind, []).append(row)
    parts = []
    for kind, rows in kinds.items():
        total = Remaining(kind, sum(row.left for row in rows), sum(row.of for row in rows), "", "")
        reasons = "; ".join(dict.fromkeys(row.reason for row in rows))
        parts.append(f"{total.count} ({reasons})")
    return f"In standard operators stay {', '.join(parts)}." if parts else ""


def without_architecture(report: OptimizeReport) -> str:
    """``No architecture is known of model, ...: 4 attentions and 6 Gelus are one operator each.``; else empty.

    No config says of such a graph what has to be in it, so that nobody can say that all of it fused.
    """
    parts = {name: c for name, c in report.components.items() if not c.architecture_known}
    if not parts:
        return ""
    kinds: Counter[str] = Counter()
    for component in parts.values():
        kinds.update(component.whole)
    numbers = ", ".join(f"{number} {kind}{'s' * (number != 1)}" for kind, number in kinds.items())
    whole = f"{numbers} {'is' if kinds.total() == 1 else 'are'} one operator each" if numbers else ""
    in_parts = "" if any(c.remaining for c in parts.values()) else "none that sdort recognizes is in parts"
    there = ", ".join(part for part in (whole, in_parts) if part)
    names = ", ".join(parts)
    return f"No architecture is known of {names}, so nothing says what should fuse{there and f': {there}'}."


def conclusion(report: OptimizeReport) -> str:
    """Whether everything fused, by what is in the graphs and by what the configs say."""
    said = f"{what_stays(report)} {without_architecture(report)}".strip()
    return said or "Everything that should fuse did."


def explanation(report: OptimizeReport) -> str:
    """The conclusion of ``--explain``: that all fused, and how often; or how much did not."""
    if miss := miss_number(report):
        return f"{miss[0].upper()}{miss[1:]}."
    fused = ", ".join(f"{n} {name}" for name, n in fused_operators(report.components.values()).most_common())
    outcomes = [outcome for component in report.components.values() for outcome in component.fusions.values()]
    idle = {outcome.name for outcome in outcomes} - {outcome.name for outcome in outcomes if outcome.candidates}
    ends = f"; {len(idle)} fusions found nothing to do" if idle else ""
    words = fused or "no operator is fused"
    said = f"{what_stays(report)} {without_architecture(report)}".strip()
    return f"Fused: {words}{ends}. {said}" if said else f"Everything that should fuse did: {words}{ends}."


def left_places(report: OptimizeReport) -> list[tuple[int, str, str]]:
    """Places that stay in standard operators, and are no misses: number, components, reason.

    The provider has no kernel for more there, or the user disabled the fusion that fits.
    Reasons that differ in the graph's own number alone (``..., this one is 256``) are one, with all numbers.
    """
    merged: dict[str, dict[str, Counter[str]]] = {}
    for name, component in report.components.items():
        for reason, places in component.declined.items():
            rule, own, value = reason.rpartition(OWN_VALUE)
            merged.setdefault(rule or reason, {}).setdefault(value if own else "", Counter())[name] += places
    rows = []
    for rule, values in merged.items():
        total = sum(values.values(), Counter[str]())
        if len(values) == 1:
            (own,) = values
            text = f"{rule}{OWN_VALUE}{own}" if own else rule
        else:
            text = f"{rule}; here: " + ", ".join(f"{own.split()[-1]} ({n.total()})" for own, n in values.items())
        rows.append((total.total(), ", ".join(total), text))
    return rows + _disabled(report)


def _disabled(report: OptimizeReport) -> list[tuple[int, str, str]]:
    places: dict[str, Counter[str]] = {}
    for name, component in report.components.items():
        for outcome in component.fusions.values():
            number = sum(place.kind == DISABLED for place in outcome.left)
            if number:
                places.setdefault(outcome.name, Counter())[name] += number
    return [(n.total(), ", ".join(n), f"--disable {fusion}") for fusion, n in places.items()]


OWN_VALUE = ", this one "
"""Before the graph's own number in an operator's reason."""
