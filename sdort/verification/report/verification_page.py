"""The report of ``sdort verify`` as one HTML file: the verdict, what was compared, images, then tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sdort.verification.bisection.blame import BisectionFinding
from sdort.verification.component_comparison import Comparison
from sdort.verification.component_summary import Summary, worst_summaries
from sdort.verification.image_comparison import ImageComparison
from sdort.verification.limits import PRECISIONS, Reason
from sdort.verification.outcome import DIFFERS, FAILED, PASSED, Verification
from sdort.verification.report.difference import shared_gain
from sdort.verification.report.html import Cell, Share, Table, date_text, render, section
from sdort.verification.report.text import (
    KIND_HEADS,
    TIMESTEP_HEADS,
    error_numbers,
    image_numbers,
    image_verdict,
    kind_cells,
    notes,
    original_words,
    timestep_errors,
    verdict_of,
)
from sdort.verification.semantic import SemanticScore

_VERDICTS = (PASSED, FAILED, DIFFERS)
_COMPONENT_HEADS = ("component", "of limit", "verdict", "inputs", "against")
_NUMBER_HEADS = (
    "component", "inputs", "against", "of limit", "cases", "max error", "mean error", "max / std", "allowed",
    "mean / std", "allowed", "1 - cosine", "allowed",
)  # fmt: skip
_IMAGE_HEADS = ("prompt", "seed", "of limit", "verdict", "PSNR, dB", "SSIM", "largest pixel")


def verification_page(result: Verification) -> str:
    """The whole report."""
    # The semantic score has a section of its own.
    first, *others = result.verdicts
    return render(
        "verification.html",
        title=f"sdort verify: {result.shown.resolve().name}",
        result=result,
        answers=[f"{'' if result.passed else 'Failed: '}{first}", *others],
        facts=_facts(result),
        notes=notes(replace(result, semantic=None), every=False),
        gain=shared_gain((image.image, image.reference) for image in result.images),
        tables=_TABLES,
        verdict=image_verdict,
        original_words=original_words,
    )


def _facts(result: Verification) -> dict[str, object]:
    told = result.provenance
    return {
        "date": date_text(told.date),
        "candidate": result.shown,
        "made for": told.made_for or "no provider in particular",
        "checked on": f"{result.provider}, {told.machine}",
        "ONNX original": result.against or "none",
        "torch, fp32": result.checkpoint or "not compared",
        "precision": _precisions(result),
        "denoising steps": result.steps,
        "versions": ", ".join(f"{name} {version}" for name, version in told.versions.items()),
    }


def _precisions(result: Verification) -> str:
    """``float16``; those of fewer components with their names: ``float16; float32: vae_decoder``."""
    names: dict[str, list[str]] = {}
    for name, precision in result.precisions.items():
        names.setdefault(precision.dtype, []).append(name)
    first, *others = sorted(names, key=lambda dtype: -len(names[dtype])) or [""]
    return "; ".join([first, *(f"{dtype}: {', '.join(names[dtype])}" for dtype in others)])


def _nodes(finding: BisectionFinding) -> list[Table]:
    made = ("node of the candidate", "operator", "made by")
    rows = [(each.node, each.operator, ", ".join(each.makers) or "no fusion or step") for each in finding.culprits]
    stood = ("node of the original that they stand for",)
    originals = section("", stood, [(name,) for name in finding.originals], left=stood, wide=stood)
    return [section("", made, rows, left=made, wide=made[:1]), originals]


def _components(summaries: Sequence[Summary]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (each.component, Share(each.worst.share), verdict_of(each.passed), each.inputs, each.against)
        for each in worst_summaries(summaries)
    ]
    title = "Components, the worst comparison of each"
    return section(title, _COMPONENT_HEADS, rows, left=_COMPONENT_HEADS, verdicts=_VERDICTS)


def _numbers(summaries: Sequence[Summary]) -> Table:
    return section("", _NUMBER_HEADS, map(_number_row, summaries), left=_NUMBER_HEADS[:4])


def _number_row(summary: Summary) -> tuple[Cell, ...]:
    """A row under :data:`_NUMBER_HEADS`."""
    share = Share(summary.worst.share)
    first: tuple[Cell, ...] = (summary.component, summary.inputs, summary.against, share, str(summary.cases))
    errors, limit = summary.largest, summary.worst.limit
    if errors is None:
        return (*first, *[""] * 8)
    largest, mean, turned = error_numbers(summary)
    allowed = (f"{limit.largest:.1e}", f"{limit.mean:.1e}", f"{1 - limit.cosine:.1e}")
    absolute = (f"{errors.largest:.1e}", f"{errors.mean:.1e}")
    return (*first, *absolute, largest, allowed[0], mean, allowed[1], turned, allowed[2])


def _timesteps(comparisons: Sequence[Comparison]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (*error.cells[:3], Share(error.summary.worst.share), error.cells[-1], *error.cells[3:-2])
        for error in timestep_errors(comparisons)
    ]
    heads = (*TIMESTEP_HEADS[:3], *TIMESTEP_HEADS[-2:], *TIMESTEP_HEADS[3:-2])  # on phones the first ones are seen
    words = (*TIMESTEP_HEADS[:2], *TIMESTEP_HEADS[-2:])
    return section("Errors by timestep", heads, rows, left=words, verdicts=_VERDICTS)


def _images(images: Sequence[ImageComparison]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            image.prompt,
            str(image.seed),
            "" if image.limit_share is None else Share(image.limit_share),
            image_verdict(image),
            *image_numbers(image),
        )
        for image in images
    ]
    words = (_IMAGE_HEADS[0], *_IMAGE_HEADS[2:4])
    return section("Images in numbers", _IMAGE_HEADS, rows, left=words, wide=_IMAGE_HEADS[:1], verdicts=_VERDICTS)


def _semantic(score: SemanticScore) -> Table:
    return section("Semantic score", KIND_HEADS, kind_cells(score), left=KIND_HEADS[:1], verdicts=_VERDICTS)


def _limits(reasons: Sequence[Reason]) -> Table:
    heads = ("measure", *PRECISIONS.values())
    rows = [(reason.measure, *(reason.limits[dtype] for dtype in PRECISIONS)) for reason in reasons]
    return section("Limits", heads, rows, left=heads[:1])


_TABLES = {
    "nodes": _nodes,
    "components": _components,
    "numbers": _numbers,
    "timesteps": _timesteps,
    "images": _images,
    "semantic": _semantic,
    "limits": _limits,
}
"""Tables of the page, made where its template writes them."""
