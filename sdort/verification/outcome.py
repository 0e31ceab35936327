"""Options and result of ``sdort verify``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sdort.engines.prompts import PROMPTS
from sdort.errors import ParityError
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.bisection.blame import BisectionFinding
from sdort.verification.checks import Precision
from sdort.verification.component_comparison import ONNX, Comparison
from sdort.verification.image_comparison import ImageComparison, ImageSummary, summarize_images
from sdort.verification.recorded_inputs import RANDOM, REAL
from sdort.verification.semantic import SemanticScore

PASSED, FAILED, DIFFERS = "ok", "FAILED", "differs"
"""An image that differs may be one of a few in a right pipeline."""


@dataclass(frozen=True)
class VerifyOptions:
    """Options of a verification. ``None`` and empty leave the choice to the manifest and the model."""

    runtime: RuntimeOptions = field(default_factory=lambda: RuntimeOptions(CPU.name))
    against: Path | None = None
    checkpoint: Path | None = None
    torch: bool = True
    """Also compare with torch where the checkpoint is known; with ``checkpoint`` it must be."""
    components: Sequence[str] = ()
    inputs: Sequence[str] = (RANDOM, REAL)
    images: bool = True
    prompts: Sequence[str] = PROMPTS
    seeds: int = 2
    steps: int = 8
    bisect: bool = False
    semantic: bool = False
    """Also score the images of the demo's held-out prompts."""
    semantic_prompts: int | None = None
    """Number of them; None for all."""
    semantic_original: bool = False
    """Also score the original on all of them, not only on those that the candidate got wrong."""


@dataclass
class Verification:
    """Result of a verification."""

    candidate: Path
    against: Path | None
    """The un-optimized ONNX."""
    checkpoint: Path | None
    """The diffusers checkpoint that torch ran."""
    provider: str
    steps: int
    precisions: dict[str, Precision] = field(default_factory=dict)
    """By component."""
    comparisons: list[Comparison] = field(default_factory=list)
    images: list[ImageComparison] = field(default_factory=list)
    findings: list[BisectionFinding] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    """Components that ``--bisect`` looked into, with or without a finding."""
    semantic: SemanticScore | None = None
    """Score of how well the candidate follows prompts."""
    missing: list[str] = field(default_factory=list)
    """Comparisons that were asked for and could not be made, with the reason."""
    notes: list[str] = field(default_factory=list)

    @property
    def judged(self) -> ImageSummary:
        """All images together."""
        return summarize_images(self.images)

    @property
    def failed(self) -> list[str]:
        """Components, ``images`` and ``semantic score``: what is out of its limits."""
        names = [comparison.component for comparison in self.comparisons if not comparison.passed]
        names += ["images"] if self.judged.problem else []
        names += ["semantic score"] if self.semantic and not self.semantic.passed else []
        return list(dict.fromkeys(names))

    @property
    def passed(self) -> bool:
        """Everything that was asked for was compared and is within its limits."""
        return not self.failed and not self.missing

    def raise_if_failed(self) -> None:
        """Raise if something failed or is missing.

        Raises:
            ParityError: what, and the next step.
        """
        if self.passed:
            return
        parts = [f"{', '.join(self.failed)} out of limits"] if self.failed else []
        if self.missing:
            more = f" (and {len(self.missing) - 1} more)" if len(self.missing) > 1 else ""
            parts.append(f"not compared: {self.missing[0]}{more}")
        # The search walks the ONNX original: of what differs from torch alone it finds nothing.
        there = {
            comparison.component
            for comparison in self.comparisons
            if comparison.against == ONNX and not comparison.passed
        }
        left = [name for name in self.failed if name in there and name not in self.searched]
        hint = (
            f"--bisect finds the node: sdort verify {self.candidate} --component {left[0]} --bisect." if left else None
        )
        raise ParityError("; ".join(parts), hint=hint)
