"""The report of ``sdort verify --json``: its fields are the JSON's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdort.console import document
from sdort.verification.bisection.blame import BisectionFinding
from sdort.verification.checks import Precision
from sdort.verification.component_comparison import Comparison
from sdort.verification.image_comparison import ImageComparison, ImageSummary
from sdort.verification.limits import REASONS, Reason
from sdort.verification.outcome import Provenance, Verification
from sdort.verification.semantic import Counts, Miss, SemanticScore


@dataclass(frozen=True)
class Allowed:
    """Limits of one comparison, under the names of the errors that they hold for."""

    largest_share: float
    mean_share: float
    cosine: float


@dataclass(frozen=True)
class ComparisonReport:
    """One output of a component against one reference; errors are None where nothing could be measured."""

    component: str
    precision: str
    inputs: str
    sample: str
    timestep: float | None
    against: str
    output: str
    passed: bool
    problem: str | None
    largest: float | None
    mean: float | None
    cosine: float | None
    largest_share: float | None
    mean_share: float | None
    allowed: Allowed
    limit_share: float | None
    """The error that uses most of its limit, as a multiple of that limit."""


@dataclass(frozen=True)
class ImageReport:
    """One image against its reference, without pixels."""

    prompt: str
    seed: int
    precision: str
    psnr: float | None
    ssim: float | None
    largest_pixel: int | None
    differs: str | None
    passed: bool
    problem: str | None
    limit_share: float | None
    """The difference that uses most of the median's limit, as a multiple of that limit."""


@dataclass(frozen=True)
class SemanticReport:
    """The semantic score; ``wanted`` has the bars in words."""

    counts: Counts
    wanted: str
    passed: bool
    original: Counts | None
    misses: Sequence[Miss]


@document("verify", 1)
@dataclass(frozen=True)
class VerificationReport:
    """Everything that was compared, and what came of it."""

    candidate: Path
    against: Path | None
    checkpoint: Path | None
    provider: str
    steps: int
    passed: bool
    failed: Sequence[str]
    missing: Sequence[str]
    notes: Sequence[str]
    precisions: Mapping[str, Precision]
    components: Sequence[ComparisonReport]
    images: Sequence[ImageReport]
    images_together: ImageSummary
    findings: Sequence[BisectionFinding]
    semantic: SemanticReport | None
    limits: Sequence[Reason]
    verdict: str
    """The result in one sentence."""
    provenance: Provenance


def report_of(result: Verification) -> VerificationReport:
    """The report of a verification."""
    return VerificationReport(
        candidate=result.candidate,
        against=result.against,
        checkpoint=result.checkpoint,
        provider=result.provider,
        steps=result.steps,
        passed=result.passed,
        failed=result.failed,
        missing=result.missing,
        notes=result.notes,
        precisions=result.precisions,
        components=[_comparison(comparison) for comparison in result.comparisons],
        images=[_image(image) for image in result.images],
        images_together=result.judged,
        findings=result.findings,
        semantic=None if result.semantic is None else _semantic(result.semantic),
        limits=REASONS,
        verdict=result.verdict,
        provenance=result.provenance,
    )


def _comparison(comparison: Comparison) -> ComparisonReport:
    errors, limit = comparison.errors, comparison.limit
    return ComparisonReport(
        component=comparison.component,
        precision=comparison.precision,
        inputs=comparison.inputs,
        sample=comparison.sample,
        timestep=comparison.timestep,
        against=comparison.against,
        output=comparison.output,
        passed=comparison.passed,
        problem=comparison.problem,
        largest=errors.largest if errors else None,
        mean=errors.mean if errors else None,
        cosine=errors.cosine if errors else None,
        largest_share=errors.largest_share if errors else None,
        mean_share=errors.mean_share if errors else None,
        allowed=Allowed(limit.largest, limit.mean, limit.cosine),
        limit_share=comparison.share if errors else None,
    )


def _image(image: ImageComparison) -> ImageReport:
    return ImageReport(
        prompt=image.prompt,
        seed=image.seed,
        precision=image.precision,
        psnr=image.psnr,
        ssim=image.ssim,
        largest_pixel=image.largest_pixel,
        differs=image.differs,
        passed=image.passed,
        problem=image.problem,
        limit_share=image.share,
    )


def _semantic(score: SemanticScore) -> SemanticReport:
    return SemanticReport(score.counts, score.wanted, score.passed, score.original, score.misses)
