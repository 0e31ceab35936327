"""Result of ``sdort verify``."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from sdort.console import document
from sdort.errors import ParityError
from sdort.options.declared_options import command_words
from sdort.providers import AUTO, CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.rewrite.fusion_names import fusion_names
from sdort.tables import counted
from sdort.verification.bisection.blame import CAST, FUSION, NODE, OTHER, BisectionFinding
from sdort.verification.checks import Precision
from sdort.verification.command_line import VerifyOptions
from sdort.verification.component_comparison import ONNX, Comparison
from sdort.verification.component_summary import Summary, summarize_comparisons, worst_summary
from sdort.verification.image_comparison import ImageComparison, ImageSummary, summarize_images
from sdort.verification.limits import ENOUGH, REASONS, Reason
from sdort.verification.report.shares import of_the_limit, percent
from sdort.verification.semantic import SemanticScore


def remedy(
    findings: Sequence[BisectionFinding],
    candidate: Path,
    original: Path | None,
    made: Provenance,
    options: VerifyOptions,
) -> tuple[str, str] | None:
    """The remedy against the first finding that has one, and its command; None if nothing is known to.

    Args:
        original: the un-optimized ONNX that the candidate is made from.
        made: what the candidate was made for.
    """
    provider, precision = made.made_for, made.precision
    kept = [f"--{precision}"] if precision != "fp32" else []
    kept += ["--weights", made.weights] if made.weights else []
    made_here = original is not None and provider is not None and candidate.is_dir()
    for finding in findings:
        if finding.kind == NODE and options.runtime.provider != CPU.name:
            runtime = replace(options.runtime, provider=CPU.name, tuning=False, graph=False, provider_options={})
            again = replace(options, components=[finding.component], images=None, bisect=False, runtime=runtime)
            return "See whether its weights or the provider's kernel differ", again.command_line(candidate)
        if not made_here:
            continue
        if finding.kind == OTHER:
            return "Make it again, of this original", _optimize(candidate, original, provider, kept)
        if finding.kind == CAST and precision == "fp16":
            return "Make it again with fp32 where it must", _optimize(candidate, original, provider, ["--fp16", "auto"])
        fusions = [name for name in finding.blamed if name in fusion_names()] if finding.kind == FUSION else []
        if fusions:
            left_out = [word for name in fusions for word in ("--disable", name)]
            return f"Make it again without {', '.join(fusions)}", _optimize(
                candidate, original, provider, [*kept, *left_out]
            )
        if finding.kind == NODE:
            return "Make it again, its weights may be damaged", _optimize(candidate, original, provider, kept)
    return None


def _optimize(candidate: Path, original: Path | None, provider: str | None, words: Sequence[str]) -> str:
    """``sdort optimize``, into a folder beside the candidate."""
    out = candidate.with_name(f"{candidate.resolve().name}-again")
    return shlex.join(["sdort", "optimize", str(original), str(out), "--provider", str(provider), *words])


PASSED, FAILED, DIFFERS = "ok", "failed", "differs"
"""An image that differs may be one of a few in a right pipeline."""


@dataclass(frozen=True)
class Provenance:
    """Time, place and tools of a verification.

    Attributes:
        date: of its beginning, ISO 8601 with the offset from UTC.
        machine: the device that the candidate ran on.
        versions: of sdort, Python, ONNX Runtime and other packages that took part.
        made_for: the execution provider that the candidate was optimized for; None if that is not known.
        precision: in which: ``fp16``, ``bf16`` or ``fp32``.
        weights: ``int8`` or ``int4`` of linear layers in integers; None in floats.
        command: the command line that asks for the same.
    """

    date: str = ""
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    made_for: str | None = None
    precision: str = "fp32"
    weights: str | None = None
    command: str = ""


@document("verify", 1)
@dataclass
class Verification:
    """Everything that was compared, and what came of it."""

    __json__: ClassVar = (
        "candidate", "against", "checkpoint", "provider", "steps", "passed", "failed", "missing", "notes", "precisions",
        "comparisons", "images", "images_together", "findings", "semantic", "limits", "verdict", "provenance",
    )  # fmt: skip

    candidate: Path
    """The pipeline that was verified."""
    against: Path | None
    """The original ONNX pipeline; None if there is none."""
    checkpoint: Path | None
    """The original checkpoint, which torch ran; None if there is none."""
    provider: str
    """The execution provider that ran."""
    steps: int
    """Denoising steps of the images."""
    options: VerifyOptions = field(default_factory=VerifyOptions)
    """The options that were asked for."""
    provenance: Provenance = field(default_factory=Provenance)
    """When, where and with which versions it was verified."""
    precisions: dict[str, Precision] = field(default_factory=dict)
    """Component -> its precision."""
    comparisons: list[Comparison] = field(default_factory=list, metadata={"json": "components"})
    """The comparisons of components."""
    images: list[ImageComparison] = field(default_factory=list)
    """The comparisons of images."""
    findings: list[BisectionFinding] = field(default_factory=list)
    """First wrong nodes, with ``--bisect``."""
    searched: list[str] = field(default_factory=list)
    """Components that ``--bisect`` looked into, with or without a finding."""
    semantic: SemanticScore | None = None
    """Score of how well the candidate follows prompts; None if not asked for."""
    missing: list[str] = field(default_factory=list)
    """Comparisons that were asked for and could not be made, with the reason."""
    notes: list[str] = field(default_factory=list)
    """Remarks beside the results."""
    made_of: Path | None = None
    """The checkpoint that the candidate was made of on first use."""

    @property
    def shown(self) -> Path:
        """The name that a person gives the candidate: no folder of the cache."""
        return self.made_of or self.candidate

    @property
    def images_together(self) -> ImageSummary:
        """All images together."""
        return summarize_images(self.images)

    @property
    def limits(self) -> tuple[Reason, ...]:
        """The limits in words."""
        return REASONS

    @property
    def summaries(self) -> list[Summary]:
        """One for each component, kind of inputs and reference: what the verdict counts as comparisons."""
        return summarize_comparisons(self.comparisons)

    @property
    def failed(self) -> list[str]:
        """Components, ``images`` and ``semantic score``: what is out of its limits."""
        names = [comparison.component for comparison in self.comparisons if not comparison.passed]
        names += ["images"] if self.images_together.problem else []
        names += ["semantic score"] if self.semantic and not self.semantic.passed else []
        return list(dict.fromkeys(names))

    @property
    def passed(self) -> bool:
        """Everything that was asked for was compared and is within its limits."""
        return not self.failed and not self.missing

    @property
    def verdict(self) -> str:
        """The result in one sentence, with what is worst or closest to its limit."""
        return "; ".join(self.verdicts)

    @property
    def verdicts(self) -> list[str]:
        """The parts of :attr:`verdict`: one if all passed, else one for each thing that is out of its limits."""
        return [self._success()] if self.passed else self._failures()

    def _success(self) -> str:
        summaries = self.summaries
        numbers = {"comparison": len(summaries), "image": len(self.images)}
        parts = [counted(number, noun) for noun, number in numbers.items() if number]
        sentence = f"{' and '.join(parts) or 'nothing'} within limits"
        if summaries:
            closest = worst_summary(summaries)
            sentence += f", closest: {closest.component} {percent(closest.worst.share)}"
        return sentence + (", semantic score reached" if self.semantic else "")

    def _failures(self) -> list[str]:
        summaries, parts = self.summaries, []
        wrong = [summary for summary in summaries if not summary.passed]
        if wrong:
            worst = worst_summary(wrong)
            share = of_the_limit(worst.worst.share) if math.isfinite(worst.worst.share) else worst.worst.problem
            parts.append(
                f"{len(wrong)} of {counted(len(summaries), 'comparison')} out of limits, worst: {worst.component}, "
                f"{worst.inputs} inputs, against {worst.against}: {share}"
            )
        if self.images_together.problem:
            parts.append(f"images out of limits: {self.images_together.problem}")
        if self.semantic and not self.semantic.passed:
            parts.append(f"semantic score too low: {self.semantic.wanted} wanted")
        if self.missing:
            more = f" (and {len(self.missing) - 1} more)" if len(self.missing) > 1 else ""
            parts.append(f"not compared: {self.missing[0]}{more}")
        return parts

    @property
    def next_command(self) -> str | None:
        """The command that comes next: the search for the first wrong node, what helps against it, more images, or what
        is left to check."""
        options = self.options
        # The search walks the ONNX original: of what differs from torch alone it finds nothing.
        wrong = [each.component for each in self.comparisons if each.against == ONNX and not each.passed]
        left = [name for name in wrong if name not in self.searched]
        if left:
            return replace(options, components=left[:1], images=None, bisect=True).command_line(self.shown)
        if self._remedy:
            return self._remedy[1]
        if self.failed == ["images"] and self.images_together.few:
            prompts = len({comparison.prompt for comparison in self.images})
            return replace(options, seeds=math.ceil(ENOUGH / prompts)).command_line(self.shown)
        if self.passed and self.images:
            prompt = min((image.prompt for image in self.images), key=len)
            # A model that was made for a GPU and checked elsewhere may not run here.
            provider = options.runtime.provider
            where = command_words(RuntimeOptions((self.provenance.made_for or AUTO) if provider == AUTO else provider))
            return shlex.join(["sdort", "run", str(self.shown), "--prompt", prompt, *map(str, where)])
        if self.passed and options.components and self.candidate.is_dir():
            return replace(options, components=(), images=None, bisect=False).command_line(self.shown)
        return None

    @property
    def _remedy(self) -> tuple[str, str] | None:
        return remedy(self.findings, self.candidate, self.against, self.provenance, self.options)

    def raise_if_failed(self) -> None:
        """Raise if something failed or is missing.

        Raises:
            ParityError: what, and the next step.
        """
        if self.passed:
            return
        step = "Find the node" if set(self.failed) - {"images"} else "Compare more images, chance may have done it"
        step = self._remedy[0] if self._remedy and self._remedy[1] == self.next_command else step
        hint = f"{step}:\n    {self.next_command}" if self.next_command else None
        raise ParityError(self.verdict, hint=hint)
