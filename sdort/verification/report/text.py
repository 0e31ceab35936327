"""A verification as tables and lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdort.model.error_measure import Errors
from sdort.verification.component_comparison import Comparison
from sdort.verification.image_comparison import ImageComparison
from sdort.verification.limits import ENOUGH
from sdort.verification.outcome import DIFFERS, FAILED, PASSED, Verification
from sdort.verification.report.semantic_text import semantic_lines

if TYPE_CHECKING:
    from rich.table import Table

MOST_LETTERS = 48
"""Letters of a prompt that the terminal's table shows."""


@dataclass(frozen=True)
class Summary:
    """All comparisons of a component with one reference on one kind of inputs."""

    component: str
    inputs: str
    against: str
    cases: int
    worst: Comparison
    """The one that uses most of its limit."""
    largest: Errors | None
    """The largest of each error over all cases, and the smallest cosine; None if nothing could be compared."""

    @property
    def verdict(self) -> str:
        return PASSED if self.worst.passed else FAILED


def summarize_comparisons(comparisons: Sequence[Comparison]) -> list[Summary]:
    """One summary for each component, kind of inputs and reference, in their order."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault((comparison.component, comparison.inputs, comparison.against), []).append(comparison)
    return [
        Summary(
            *key,
            len(group),
            max(group, key=lambda comparison: (not comparison.passed, comparison.share)),
            _largest(group),
        )
        for key, group in groups.items()
    ]


def _largest(group: Sequence[Comparison]) -> Errors | None:
    measured = [comparison.errors for comparison in group if comparison.errors is not None]
    if not measured:
        return None
    return Errors(
        largest=max(errors.largest for errors in measured),
        mean=max(errors.mean for errors in measured),
        cosine=min(errors.cosine for errors in measured),
        largest_share=max(errors.largest_share for errors in measured),
        mean_share=max(errors.mean_share for errors in measured),
        largest_relative=max(errors.largest_relative for errors in measured),
    )


SUMMARY_HEADS = (
    "component", "inputs", "against", "cases", "max error", "mean error", "1 - cosine", "max / std", "allowed",
    "mean / std", "allowed", "",
)  # fmt: skip
IMAGE_HEADS = ("prompt", "seed", "PSNR, dB", "SSIM", "largest pixel", "")


def summary_cells(summary: Summary) -> tuple[str, ...]:
    """A row under :data:`SUMMARY_HEADS`."""
    errors, limit = summary.largest, summary.worst.limit
    first = (summary.component, summary.inputs, summary.against, str(summary.cases))
    if errors is None:
        return (*first, *[""] * 7, summary.verdict)
    return (
        *first,
        f"{errors.largest:.1e}",
        f"{errors.mean:.1e}",
        f"{max(1 - errors.cosine, 0):.1e}",
        f"{errors.largest_share:.1e}",
        f"{limit.largest:.1e}",
        f"{errors.mean_share:.1e}",
        f"{limit.mean:.1e}",
        summary.verdict,
    )


def image_cells(comparison: ImageComparison) -> tuple[str, ...]:
    """A row under :data:`IMAGE_HEADS`."""
    decibels = "" if comparison.psnr is None else f"{comparison.psnr:.1f}"
    similarity = "" if comparison.ssim is None else f"{comparison.ssim:.4f}"
    pixel = "" if comparison.largest_pixel is None else str(comparison.largest_pixel)
    return (comparison.prompt, str(comparison.seed), decibels, similarity, pixel, image_verdict(comparison))


def _short(prompt: str) -> str:
    return prompt if len(prompt) <= MOST_LETTERS else f"{prompt[: MOST_LETTERS - 3]}..."


def image_verdict(comparison: ImageComparison) -> str:
    """One of :data:`PASSED`, :data:`FAILED` and :data:`DIFFERS`."""
    return PASSED if comparison.passed else FAILED if comparison.problem else DIFFERS


def tables(result: Verification) -> list[Table]:
    """Tables for the terminal: components, then images."""
    from rich.table import Table

    made = []
    rows = [summary_cells(summary) for summary in summarize_comparisons(result.comparisons)]
    pictures = [(_short(cells[0]), *cells[1:]) for cells in map(image_cells, result.images)]
    for heads, cells, words in ((SUMMARY_HEADS, rows, 3), (IMAGE_HEADS, pictures, 1)):
        if not cells:
            continue
        table = Table()
        for index, head in enumerate(heads):
            table.add_column(head, justify="left" if index < words or not head else "right", no_wrap=index != 0)
        for row in cells:
            table.add_row(*row, style={PASSED: None, DIFFERS: "yellow"}.get(row[-1], "red"))
        made.append(table)
    return made


def notes(result: Verification) -> list[str]:
    """Everything beside the tables: reasons, findings, what is missing, and what it was compared with."""
    parts = [
        f"{summary.component}, {summary.inputs} inputs, {summary.against}: {_problem(summary)}"
        for summary in summarize_comparisons(result.comparisons)
        if not summary.worst.passed
    ]
    parts += [
        f"image, seed {image.seed}, {image.prompt!r}: {image.problem or image.differs}"
        for image in result.images
        if not image.passed
    ]
    parts += images_lines(result)
    for finding in result.findings:
        parts.append(f"{finding.component}: {finding.message}")
        parts += [f"  blamed: {', '.join(finding.blamed)}"] if finding.blamed else []
    parts += semantic_lines(result.semantic) if result.semantic else []
    parts += [f"not compared: {what}" for what in result.missing]
    return [*parts, *result.notes]


def images_lines(result: Verification) -> list[str]:
    """Verdict on all images together, where one of them does not pass."""
    judged = result.judged
    if all(comparison.passed for comparison in result.images):
        return []
    parts = [f"images: {judged.problem or 'the median is within the limits, so those that differ may'}"]
    if judged.few:
        seeds = math.ceil(ENOUGH / len({comparison.prompt for comparison in result.images}))
        parts.append(f"images: {judged.images} may differ by chance; --seeds {seeds} tells")
    return parts


def _problem(summary: Summary) -> str:
    return f"{summary.worst.output} ({summary.worst.sample}): {summary.worst.problem}"
