"""Reports of an optimization: of one component, and of all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sdort.console import document
from sdort.machine.version import __version__
from sdort.model.model import Model
from sdort.optimizer.remaining import Remaining
from sdort.rewrite.apply import Outcome, Unfused

if TYPE_CHECKING:
    from sdort.precision.fp32_selection import Fp32Report

_INTERNAL = {"json": None}


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
    """What the written graph has left in parts, by kind (:mod:`sdort.optimizer.remaining`)."""
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


@document("optimize", 1)
@dataclass
class OptimizeReport:
    """The result of :func:`sdort.optimize`: written with ``--report``, printed with ``--json``."""

    source: str
    """What was read."""
    out: str
    """The folder that was written."""
    provider: str
    """The execution provider that it was made for."""
    fp16: bool
    """Whether it was converted to fp16."""
    precision: str = "fp32"
    """``fp32``, ``fp16`` or ``bf16``."""
    sdort: str = __version__
    """sdort's version."""
    sdort_ops: bool = False
    """Whether it was fused into sdort's own operators too."""
    sdort_ops_reason: str = ""
    """Why, or why not."""
    components: dict[str, ComponentReport] = field(default_factory=dict)
    """Component -> its result."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Models that nobody asked for, and why they were not optimized."""
    misses: list[str] = field(default_factory=list)
    """All that should have fused and did not, in words: every place, then :attr:`wrong_counts`."""
    wrong_counts: list[str] = field(default_factory=list, metadata=_INTERNAL)
    """Of ``misses``, the numbers of operators that are not what a config.json or ``expect`` says."""
    seconds: float = 0.0
    """Seconds of the whole."""
    peak_rss_mb: int = 0
    """Peak resident memory of the process, in MB (10^6 bytes)."""


def count_operators(model: Model) -> dict[str, int]:
    """Operators by name; those of other domains as ``domain.name``."""
    names = (f"{n.domain}.{n.op}" if n.domain else n.op for n in model.graph.nodes)
    return dict(sorted(Counter(names).items()))
