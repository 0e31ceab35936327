"""The report of one model's way through the steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sdort.graph.model import Model
from sdort.lowering.remaining import Remaining
from sdort.passes.quantize_weights import QuantizedWeights
from sdort.rewrite.apply import Outcome, Unfused

_INTERNAL = {"json": None}


@dataclass(frozen=True)
class Fp32Rule:
    """A kind of nodes that stay in fp32, and the reason."""

    where: str
    """The nodes."""
    why: str
    """The reason."""


@dataclass(frozen=True)
class Fp32Report:
    """Nodes of one component that stay in fp32, and what that costs."""

    measured: str
    """The inputs that were measured with; empty if a plan was followed."""
    rules: list[Fp32Rule] = field(metadata={"json": "islands"})
    """Kinds of nodes that stay in fp32."""
    nodes: int
    """Number of nodes that stay in fp32."""
    share_of_nodes: float
    """Their part of all nodes, from 0 to 1."""
    share_of_time: float | None
    """The nodes' part of the time of a run in fp32 on this CPU; None if not measured."""
    bytes: int
    """The weights' bytes beyond fp16."""
    without: str
    """The result of fp16 alone, in words; empty if not tried."""
    within: str = field(metadata={"json": "with"})
    """The result with these nodes in fp32; empty if not tried."""


@dataclass
class ComponentReport:
    """The result of optimizing one component. It is filled step by step, so that it says how far a failed one came."""

    component: str = field(metadata=_INTERNAL)
    nodes_before: int = 0
    """Nodes of the model that was read."""
    nodes_after: int = 0
    """Nodes of the model that was written."""
    operators_before: dict[str, int] = field(default_factory=dict)
    """Operator -> nodes, as read."""
    operators_raised: dict[str, int] = field(default_factory=dict, metadata=_INTERNAL)
    """After raising: the standard operators that the architecture's config can be held against, whatever the target."""
    operators: dict[str, int] = field(default_factory=dict)
    """Operator -> nodes, as written."""
    fusions: dict[str, Outcome] = field(default_factory=dict)
    """Fusion -> what it did."""
    remaining: list[Remaining] = field(default_factory=list, metadata=_INTERNAL)
    """Operators that the written graph has left in parts, by kind (:mod:`sdort.lowering.remaining`)."""
    whole: dict[str, int] = field(default_factory=dict, metadata=_INTERNAL)
    """Kind -> how many of it are one operator each in the written graph."""
    architecture_known: bool = field(default=False, metadata=_INTERNAL)
    """Whether a config.json says what has to be in the graph: without, nobody knows that all fused."""
    declined: dict[str, int] = field(default_factory=dict)
    """Places that stayed unfused because the target has no kernel for the result, by reason."""
    changes: dict[str, int] = field(default_factory=dict)
    """Changes that each step made to the graph."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Step -> seconds."""
    bytes_before: int = 0
    """Size of what was read: its weights, or the whole file if that is more, as where they lie in it."""
    bytes: int = 0
    """Size of what was written, weights included."""
    weights: QuantizedWeights | None = None
    """With ``--weights``: the linear layers whose weights are integers, and those that kept theirs."""
    precision: Fp32Report | None = None
    """With ``--fp16 auto`` or a plan: the nodes that stay in fp32 (:mod:`sdort.precision.fp32_selection`)."""

    @property
    def misses(self) -> list[Unfused]:
        """Places that should have fused and did not."""
        return [miss for outcome in self.fusions.values() for miss in outcome.misses]

    def add_outcomes(self, outcomes: list[Outcome]) -> None:
        """Take the outcomes of a stage's fusions."""
        self.fusions.update({outcome.name: outcome for outcome in outcomes})
        total: Counter[str] = Counter()
        for outcome in self.fusions.values():
            total |= Counter(outcome.declined)  # several fusions may stop at one place for one reason
        self.declined = dict(total)


def count_operators(model: Model) -> dict[str, int]:
    """Operators by name; those of other domains as ``domain.name``."""
    names = (f"{n.domain}.{n.op}" if n.domain else n.op for n in model.graph.nodes)
    return dict(sorted(Counter(names).items()))
