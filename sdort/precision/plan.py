"""Plans: rules for the nodes that stay in fp32, by structure, so that they hold for any export of the same model.

A rule names a kind of node (:class:`sdort.precision.positions.NodeKind`) and where: in every block, in some blocks, or
some numbers within a block.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.checkpoints.configs import TABLE_BYTES, read_config
from sdort.checkpoints.json_schema import list_of, mapping_to, one_of, record, shortened, text, whole
from sdort.errors import BadModelError, UsageError
from sdort.precision.positions import EVERYWHERE, NodeKind, Position

PLAN = "fp16-plan.json"
"""The file's name beside the components that were made by it."""
PLAN_VERSION = 1
EVERY = "every"
_VERSION_KEY = "fp16-plan"

_NODES = 10**6  # the largest published UNet has 10,000
_WORDS = list_of(text(), 0, 1000)
_BLOCKS = one_of(EVERY) | mapping_to(one_of(EVERY) | list_of(whole(0, _NODES), 1, _NODES), 10_000)
_RULE = record(
    {"operator": text(), "reads": _WORDS, "feeds": _WORDS, "blocks": _BLOCKS, "reason": text(4096)},
    ("operator", "reads", "feeds", "blocks"),
)
_SCHEMA = record({"components": mapping_to(list_of(_RULE, 0, 10_000), 100)}, (_VERSION_KEY, "components"))


@dataclass(frozen=True)
class PlanRule:
    """Nodes of one kind that stay in fp32.

    ``blocks`` maps a block to the numbers there, or to :data:`EVERY`; None means all nodes of the kind.
    """

    kind: NodeKind
    blocks: Mapping[str, Sequence[int] | str] | None
    reason: str = ""

    def holds(self, position: Position) -> bool:
        if position.kind != self.kind or self.blocks is None:
            return position.kind == self.kind
        numbers = self.blocks.get(position.block, ())
        return numbers == EVERY or position.number in numbers

    def __str__(self) -> str:
        operator = self.kind.operator.rpartition(".")[2]
        before = ", ".join(dict.fromkeys(name for name in self.kind.reads if name != "weight"))
        after = ", ".join(dict.fromkeys(name.partition(".")[0] for name in self.kind.feeds)) or "the output"
        path = f"{operator} from {before} to {after}" if before else f"{operator} to {after}"
        return f"{path}, {self._where()}"

    def _where(self) -> str:
        if self.blocks is None or self.blocks == {EVERYWHERE: EVERY}:
            return "everywhere"
        parts = []
        for block, numbers in self.blocks.items():
            some = "" if isinstance(numbers, str) else f" (number {', '.join(str(number + 1) for number in numbers)})"
            parts.append("" if block == EVERYWHERE and not some else f"{block}{some}")
        return "in " + ", ".join(parts)


def make_rules(positions: Mapping[str, Position], reasons: Mapping[str, str]) -> list[PlanRule]:
    """Rules that hold for exactly the nodes of ``reasons``, as general as they can be.

    Args:
        positions: of every node, by its name.
        reasons: why, by the names of the nodes that stay in fp32.
    """
    kinds: dict[NodeKind, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for name in reasons:
        kinds[positions[name].kind][positions[name].block].add(positions[name].number)
    rules = []
    for kind, blocks in kinds.items():
        alike = [position for position in positions.values() if position.kind == kind]
        some: dict[str, Sequence[int] | str] = {
            block: EVERY if numbers == {p.number for p in alike if p.block == block} else sorted(numbers)
            for block, numbers in blocks.items()
        }
        every = all(some.get(position.block) == EVERY for position in alike)
        reason = next(reasons[name] for name in positions if positions[name].kind == kind and name in reasons)
        rules.append(PlanRule(kind, None if every else some, reason))
    return rules


def select(rules: Sequence[PlanRule], positions: Mapping[str, Position], component: str) -> dict[str, str]:
    """The nodes for which a rule holds, by name, with the rule's reason.

    Raises:
        UsageError: a rule holds for none: the plan was made for another model or another provider.
    """
    chosen: dict[str, str] = {}
    for rule in rules:
        names = [name for name, position in positions.items() if rule.holds(position)]
        if not names:
            raise UsageError(
                f"the plan's rule for {rule} fits no node",
                component=component,
                hint="It was made for another model, provider or set of fusions: make one with --fp16 auto.",
            )
        chosen.update(dict.fromkeys(names, rule.reason))
    return chosen


def write_plan(path: Path, components: Mapping[str, Sequence[PlanRule]], provider: str) -> None:
    """Write a plan as JSON.

    Raises:
        OSError: it cannot be written.
    """
    content = {
        _VERSION_KEY: PLAN_VERSION,
        "provider": provider,
        "components": {name: [_to_json(rule) for rule in rules] for name, rules in components.items()},
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_plan(path: Path) -> dict[str, list[PlanRule]]:
    """A plan's rules by component.

    Raises:
        UsageError: there is none, or it is no plan.
    """
    hint = f"--fp16 auto writes one: OUT/{PLAN}."
    try:
        content = read_config(path, hint=hint, limit=TABLE_BYTES)
        if content.get(_VERSION_KEY, PLAN_VERSION) != PLAN_VERSION:
            raise UsageError(f"{path} is a plan of another version, {shortened(content[_VERSION_KEY])}", hint=hint)
        if problem := _SCHEMA.problem(content, ""):
            raise UsageError(f"{path} is no plan of what stays in fp32: {problem}", hint=hint)
    except BadModelError as error:
        raise UsageError(f"there is no plan of what stays in fp32: {error.message}", hint=error.hint) from error
    return {name: [_from_json(rule) for rule in rules] for name, rules in content["components"].items()}


def _to_json(rule: PlanRule) -> dict[str, Any]:
    return {
        "operator": rule.kind.operator,
        "reads": rule.kind.reads,
        "feeds": rule.kind.feeds,
        "blocks": EVERY if rule.blocks is None else rule.blocks,
        "reason": rule.reason,
    }


def _from_json(content: dict[str, Any]) -> PlanRule:
    kind = NodeKind(content["operator"], tuple(content["reads"]), tuple(content["feeds"]))
    return PlanRule(kind, None if content["blocks"] == EVERY else content["blocks"], content.get("reason", ""))
