"""The report of ``sdort verify`` as one HTML file: the verdict, what was compared, images, then tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sdort.verification.bisection.blame import BisectionFinding
from sdort.verification.component_summary import Summary, worst_summaries
from sdort.verification.image_comparison import ImageComparison
from sdort.verification.limits import REASONS
from sdort.verification.outcome import DIFFERS, FAILED, PASSED, Verification
from sdort.verification.report.difference import shared_gain
from sdort.verification.report.html import (
    Cell,
    Share,
    answer,
    badge,
    beside,
    collapsed,
    command,
    date_text,
    difference_figure,
    difference_words,
    escape,
    facts,
    figure,
    isolated,
    page,
    section,
)
from sdort.verification.report.semantic_text import KIND_HEADS, kind_cells, original_words
from sdort.verification.report.text import error_numbers, image_numbers, image_verdict, notes, verdict_of
from sdort.verification.report.timesteps import TIMESTEP_HEADS, timestep_errors
from sdort.verification.semantic import Miss, SemanticScore

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
    reasons = "".join(f"<li>{escape(line)}</li>" for line in notes(replace(result, semantic=None), every=False))
    first, *others = result.verdicts
    parts = [
        answer(result.passed, f"{'' if result.passed else 'Failed: '}{first}", *others),
        command("Next:", result.next_command) if result.next_command and not result.passed else "",
        _facts(result),
        command("The command of this page:", result.provenance.command),
        f"<h2>Notes</h2><ul>{reasons}</ul>" if reasons else "",
        _findings(result.findings),
        _pictures(result.images),
        _components(result.summaries),
        _timesteps(result),
        _image_numbers(result.images),
        _semantic(result.semantic) if result.semantic else "",
        _limits(),
    ]
    return page(f"sdort verify: {result.shown.resolve().name}", parts)


def _facts(result: Verification) -> str:
    told = result.provenance
    return facts(
        {
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
    )


def _precisions(result: Verification) -> str:
    """``float16``; those of fewer components with their names: ``float16; float32: vae_decoder``."""
    names: dict[str, list[str]] = {}
    for name, precision in result.precisions.items():
        names.setdefault(precision.dtype, []).append(name)
    first, *others = sorted(names, key=lambda dtype: -len(names[dtype])) or [""]
    return "; ".join([first, *(f"{dtype}: {', '.join(names[dtype])}" for dtype in others)])


def _findings(findings: Sequence[BisectionFinding]) -> str:
    if not findings:
        return ""
    items = []
    for finding in findings:
        nodes = section(
            "", ("node of the candidate", "operator", "made by"),
            [(each.node, each.operator, ", ".join(each.makers) or "no fusion or step") for each in finding.culprits],
            left=("node of the candidate", "operator", "made by"), wide=("node of the candidate",),
        )  # fmt: skip
        originals = section(
            "", ("node of the original that they stand for",), [(name,) for name in finding.originals],
            left=("node of the original that they stand for",), wide=("node of the original that they stand for",),
        )  # fmt: skip
        items.append(
            f"<li><b>{escape(finding.component)}</b>: {escape(finding.message)}"
            f"{collapsed('The nodes', nodes + originals)}</li>"
        )
    return f"<h2>Where the graphs diverge</h2><ul>{''.join(items)}</ul>"


def _pictures(images: Sequence[ImageComparison]) -> str:
    """Reference, candidate and difference of each image side by side."""
    if not images:
        return ""
    gain = shared_gain((image.image, image.reference) for image in images)
    return (
        "<h2>Images</h2>"
        + difference_words("Original", "candidate", gain)
        + "".join(_image(image, gain) for image in images)
    )


def _image(image: ImageComparison, gain: int) -> str:
    figures = [
        figure(image.reference, "original"),
        figure(image.image, "candidate"),
        difference_figure(image.image, image.reference, gain),
    ]
    verdict = badge(image_verdict(image), PASSED if image.passed else image.problem or image.differs or "")
    return _titled(image.prompt, image.seed, verdict, figures)


def _titled(prompt: str, seed: int, verdict: str, figures: Sequence[str]) -> str:
    return f"<h3>{isolated(prompt)} <span class='quiet whole'>· seed {seed}</span> {verdict}</h3>{beside(figures)}"


def _components(summaries: Sequence[Summary]) -> str:
    rows: list[tuple[Cell, ...]] = [
        (each.component, Share(each.worst.share), verdict_of(each.passed), each.inputs, each.against)
        for each in worst_summaries(summaries)
    ]
    title = "Components, the worst comparison of each"
    table = section(title, _COMPONENT_HEADS, rows, left=_COMPONENT_HEADS, verdicts=_VERDICTS)
    numbers = section("", _NUMBER_HEADS, map(_numbers, summaries), left=_NUMBER_HEADS[:4])
    return table + collapsed(f"All {len(summaries)} comparisons, their errors and limits", numbers)


def _numbers(summary: Summary) -> tuple[Cell, ...]:
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


def _timesteps(result: Verification) -> str:
    rows: list[tuple[Cell, ...]] = [
        (*error.cells[:3], Share(error.summary.worst.share), error.cells[-1], *error.cells[3:-2])
        for error in timestep_errors(result.comparisons)
    ]
    heads = (*TIMESTEP_HEADS[:3], *TIMESTEP_HEADS[-2:], *TIMESTEP_HEADS[3:-2])  # on phones the first ones are seen
    words = (*TIMESTEP_HEADS[:2], *TIMESTEP_HEADS[-2:])
    return section("Errors by timestep", heads, rows, left=words, verdicts=_VERDICTS)


def _image_numbers(images: Sequence[ImageComparison]) -> str:
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


def _semantic(score: SemanticScore) -> str:
    """The counts, and each wrong image beside the original's of the same noise."""
    table = section("Semantic score", KIND_HEADS, kind_cells(score), left=KIND_HEADS[:1], verdicts=_VERDICTS)
    return table + "".join(map(_miss, score.misses))


def _miss(miss: Miss) -> str:
    figures = [figure(miss.image, f"candidate: {miss.seen}")]
    if miss.original is not None:
        figures.insert(0, figure(miss.reference, original_words(miss)))
    return _titled(miss.prompt, miss.seed, badge(FAILED, f"{', '.join(miss.wrong)} wrong"), figures)


def _limits() -> str:
    heads = ("measure", "fp32", "fp16", "bf16")
    rows = [(reason.measure, reason.float32, reason.float16, reason.bfloat16) for reason in REASONS]
    reasons = "".join(f"<li><b>{escape(reason.measure)}</b> {escape(reason.why)}</li>" for reason in REASONS)
    return section("Limits", heads, rows, left=heads[:1]) + collapsed("Why these limits", f"<ul>{reasons}</ul>")
