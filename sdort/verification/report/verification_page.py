"""The report of ``sdort verify`` as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sdort.machine.version import __version__
from sdort.verification.bisection.blame import BisectionFinding
from sdort.verification.image_comparison import ImageComparison
from sdort.verification.limits import REASONS
from sdort.verification.outcome import DIFFERS, FAILED, PASSED, Verification
from sdort.verification.report.difference import shared_gain
from sdort.verification.report.html import (
    badge,
    beside,
    difference_figure,
    facts,
    figure,
    page,
    paragraph,
    section,
)
from sdort.verification.report.semantic_text import KIND_HEADS, kind_cells, original_words
from sdort.verification.report.text import (
    IMAGE_HEADS,
    SUMMARY_HEADS,
    image_cells,
    image_verdict,
    notes,
    summarize_comparisons,
    summary_cells,
)
from sdort.verification.report.timesteps import COURSE_HEADS, timestep_table
from sdort.verification.semantic import Miss, SemanticScore

_VERDICTS = (PASSED, FAILED, DIFFERS)


def verification_page(result: Verification) -> str:
    """The whole report."""
    verdict = badge(PASSED, "everything is within its limits") if result.passed else badge(FAILED, FAILED)
    problems = "".join(f"<li>{escape(line.strip())}</li>" for line in notes(result))
    components = [summary_cells(summary) for summary in summarize_comparisons(result.comparisons)]
    images = [image_cells(comparison) for comparison in result.images]
    gain = shared_gain((image.image, image.reference) for image in result.images)
    parts = [
        f"<p>{verdict}</p>",
        _facts(result),
        f"<h2>Notes</h2><ul>{problems}</ul>" if problems else "",
        section("Components", SUMMARY_HEADS, components, left=SUMMARY_HEADS[:3], verdicts=_VERDICTS),
        section("Errors by timestep", *timestep_table(result.comparisons), left=COURSE_HEADS, verdicts=_VERDICTS),
        _findings(result.findings),
        section("Images", IMAGE_HEADS, images, left=IMAGE_HEADS[:1], wide=IMAGE_HEADS[:1], verdicts=_VERDICTS),
        *(_image(image, gain) for image in result.images),
        _semantic(result.semantic) if result.semantic else "",
        _limits(),
        paragraph(f"sdort {__version__}"),
    ]
    return page(f"sdort verify: {result.candidate.resolve().name}", parts)


def _facts(result: Verification) -> str:
    return facts(
        {
            "candidate": result.candidate,
            "ONNX original": result.against or "none",
            "torch, fp32": result.checkpoint or "not compared",
            "execution provider": result.provider,
            "limits are those of": ", ".join(
                f"{name} {precision.dtype}" for name, precision in result.precisions.items()
            ),
            "steps": result.steps,
        }
    )


def _findings(findings: Sequence[BisectionFinding]) -> str:
    if not findings:
        return ""
    items = []
    for finding in findings:
        nodes = ", ".join(
            f"<code>{escape(culprit.node)}</code> {escape(culprit.operator)}" for culprit in finding.culprits
        )
        originals = ", ".join(f"<code>{escape(name)}</code>" for name in finding.originals)
        items.append(
            f"<li><b>{escape(finding.component)}</b>: {escape(finding.message)}<br>"
            f"nodes of the candidate: {nodes or 'none'}"
            f"<br>nodes of the original that they stand for: {originals or 'none'}</li>"
        )
    return f"<h2>Where the graphs diverge</h2><ul>{''.join(items)}</ul>"


def _image(image: ImageComparison, gain: int) -> str:
    """Reference, candidate and difference side by side."""
    figures = [figure(image.reference, "reference"), figure(image.image, "candidate")]
    verdict = badge(image_verdict(image), PASSED if image.passed else image.problem or image.differs or "")
    figures.append(difference_figure(image.image, image.reference, gain))
    return _titled(image.prompt, image.seed, verdict, figures)


def _titled(prompt: str, seed: int, verdict: str, figures: Sequence[str]) -> str:
    return f"<p>{escape(prompt)} · seed {seed} {verdict}</p>{beside(figures)}"


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
    heads = ("measure", "fp32", "fp16", "bf16", "why")
    rows = [(reason.measure, reason.float32, reason.float16, reason.bfloat16, reason.why) for reason in REASONS]
    return section("Limits, and why", heads, rows, left=("measure", "why"), wide=("why",))
