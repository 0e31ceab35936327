"""The report of an optimization of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from sdort.console import document
from sdort.lowering.component_report import ComponentReport
from sdort.machine.version import __version__

_INTERNAL = {"json": None}


@document("optimize", 1)
@dataclass
class OptimizeReport:
    """The result of :func:`sdort.optimize`: written with ``--report``, printed with ``--json``."""

    source: str
    """The path that was read."""
    out: str
    """The folder that was written."""
    provider: str
    """The execution provider that it was made for."""
    fp16: bool
    """Whether it was converted to fp16."""
    precision: str = "fp32"
    """``fp32``, ``fp16`` or ``bf16``."""
    weights: str | None = None
    """``int8`` or ``int4`` where the weights of linear layers are integers."""
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
