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
    """Largest error over the standard deviation of the reference's output."""
    mean_share: float
    """Mean error over the same."""
    cosine: float
    """1 minus the cosine similarity."""


@dataclass(frozen=True)
class ComparisonReport:
    """One output of a component against one reference; errors are None where nothing could be measured."""

    component: str
    """The component."""
    precision: str
    """The precision whose limits hold."""
    inputs: str
    """``random`` or ``recorded`` inputs."""
    sample: str
    """The inputs' number or origin."""
    timestep: float | None
    """The timestep of the UNet's inputs; None for other components."""
    against: str
    """The reference: ``ONNX`` or ``torch``."""
    output: str
    """The output that was compared."""
    passed: bool
    """Whether every error is within its limit."""
    problem: str | None
    """What is wrong; None if nothing is."""
    largest: float | None
    """Largest absolute error."""
    mean: float | None
    """Mean absolute error."""
    cosine: float | None
    """1 minus the cosine similarity."""
    largest_share: float | None
    """Largest error over the standard deviation of the reference's output."""
    mean_share: float | None
    """Mean error over the same."""
    allowed: Allowed
    """The limits."""
    limit_share: float | None
    """The error that uses most of its limit, as a multiple of that limit."""


@dataclass(frozen=True)
class ImageReport:
    """One image against its reference, without pixels."""

    prompt: str
    """The prompt."""
    seed: int
    """The seed."""
    precision: str
    """The precision whose limits hold."""
    psnr: float | None
    """PSNR in dB; None where nothing could be measured."""
    ssim: float | None
    """Structural similarity, from -1 to 1."""
    largest_pixel: int | None
    """Largest difference of a pixel, of 255."""
    differs: str | None
    """How the images differ beside their pixels; None if not at all."""
    passed: bool
    """Whether the image is within its limits."""
    problem: str | None
    """What is wrong; None if nothing is."""
    limit_share: float | None
    """The difference that uses most of the median's limit, as a multiple of that limit."""


@dataclass(frozen=True)
class SemanticReport:
    """The semantic score; ``wanted`` has the bars in words."""

    counts: Counts
    """How many images show what their prompts ask for."""
    wanted: str
    """The bars in words."""
    passed: bool
    """Whether the bars are reached."""
    original: Counts | None
    """The same counts of the original's images; None where none were generated."""
    misses: Sequence[Miss]
    """The images that do not show what was asked for."""


@document("verify", 1)
@dataclass(frozen=True)
class VerificationReport:
    """Everything that was compared, and what came of it."""

    candidate: Path
    """The pipeline that was verified."""
    against: Path | None
    """The original ONNX pipeline; None if there is none."""
    checkpoint: Path | None
    """The original checkpoint; None if there is none."""
    provider: str
    """The execution provider that ran."""
    steps: int
    """Denoising steps of the images."""
    passed: bool
    """Whether everything is within its limits."""
    failed: Sequence[str]
    """What is not, one sentence each."""
    missing: Sequence[str]
    """What could not be compared."""
    notes: Sequence[str]
    """What else there is to know."""
    precisions: Mapping[str, Precision]
    """Component -> its precision."""
    components: Sequence[ComparisonReport]
    """The comparisons of components."""
    images: Sequence[ImageReport]
    """The comparisons of images."""
    images_together: ImageSummary
    """All images together."""
    findings: Sequence[BisectionFinding]
    """First wrong nodes, with ``--bisect``."""
    semantic: SemanticReport | None
    """The semantic score; None if not asked for."""
    limits: Sequence[Reason]
    """The limits in words."""
    verdict: str
    """The result in one sentence."""
    provenance: Provenance
    """When, where and with which versions it was verified."""


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
