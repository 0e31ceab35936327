"""A verification as tables and lines."""

from __future__ import annotations

import math
import textwrap

from sdort import console
from sdort.tables import Table
from sdort.verification.component_summary import Summary, worst_summaries
from sdort.verification.image_comparison import ImageComparison
from sdort.verification.limits import ENOUGH
from sdort.verification.outcome import DIFFERS, FAILED, PASSED, Verification
from sdort.verification.report.semantic_text import semantic_lines
from sdort.verification.report.shares import percent
from sdort.verification.report.timesteps import timestep_table

MOST_LETTERS = 52
"""Letters of a prompt that the terminal's table shows without ``-v``."""


def verdict_of(passed: bool) -> str:
    """:data:`PASSED` or :data:`FAILED`."""
    return PASSED if passed else FAILED


def image_verdict(comparison: ImageComparison) -> str:
    """One of :data:`PASSED`, :data:`FAILED` and :data:`DIFFERS`."""
    return PASSED if comparison.passed else FAILED if comparison.problem else DIFFERS


def image_numbers(comparison: ImageComparison) -> tuple[str, str, str]:
    """PSNR in dB, SSIM and the largest difference of a pixel; empty where it was not measured."""
    decibels = "" if comparison.psnr is None else "equal" if math.isinf(comparison.psnr) else f"{comparison.psnr:.1f}"
    similarity = "" if comparison.ssim is None else f"{comparison.ssim:.4f}"
    pixel = "" if comparison.largest_pixel is None else str(comparison.largest_pixel)
    return decibels, similarity, pixel


def error_numbers(summary: Summary) -> tuple[str, str, str]:
    """The largest error, the mean error and 1 - cosine, the first two relative to the standard deviation."""
    errors = summary.largest
    if errors is None:
        return ("", "", "")
    return f"{errors.largest_share:.1e}", f"{errors.mean_share:.1e}", f"{max(1 - errors.cosine, 0):.1e}"


def tables(result: Verification) -> list[Table]:
    """Tables for the terminal: components (the worst of each, all under ``-v``), images, under ``-v`` timesteps."""
    every = console.verbosity() >= console.VERBOSE
    made = [_components(result.summaries if every else worst_summaries(result.summaries), every)]
    made += [timestep_table(result.comparisons)] if every else []
    made.append(_images(result.images, every))
    return [table for table in made if table.row_count]


def _components(summaries: list[Summary], every: bool) -> Table:
    details = ("max/std", "mean/std", "1-cos")  # with these names, seven columns fit 80
    table = Table(
        "Components" if every else "Components, the worst comparison of each (-v shows all)",
        ("component", "inputs", "against", *(f">{name}" for name in details), ">of limit", "verdict"),
        details,
    )
    for summary in summaries:
        share, verdict = percent(summary.worst.share), verdict_of(summary.passed)
        table.add_row(summary.component, summary.inputs, summary.against, *error_numbers(summary), share, verdict)
    return table


def _images(images: list[ImageComparison], every: bool) -> Table:
    details = ("SSIM", "largest pixel")
    table = Table("Images", ("prompt", ">seed", ">PSNR, dB", *(f">{name}" for name in details), "verdict"), details)
    for image in images:
        prompt = image.prompt if every else textwrap.shorten(image.prompt, MOST_LETTERS, placeholder=" ...")
        table.add_row(prompt, str(image.seed), *image_numbers(image), image_verdict(image))
    return table


def notes(result: Verification, every: bool = True) -> list[str]:
    """Everything beside tables and findings: reasons, what is missing, and what it was compared with.

    Args:
        every: also what the tables say without ``-v``: the reason of each comparison, not only of each component's
            worst, and of each image that differs.
    """
    summaries = result.summaries if every else worst_summaries(result.summaries)
    parts = [
        f"{summary.component}, {summary.inputs} inputs, {summary.against}: {_problem(summary)}"
        for summary in summaries
        if not summary.passed
    ]
    parts += [
        f"image, seed {image.seed}, {image.prompt!r}: {image.problem or image.differs}"
        for image in result.images
        if image.problem or (every and image.differs)
    ]
    parts += images_lines(result)
    parts += semantic_lines(result.semantic) if result.semantic else []
    parts += [f"not compared: {what}" for what in result.missing]
    return [*parts, *result.notes]


def compared_line(result: Verification) -> str:
    """The candidate and its references: ``fast against model (ONNX) and mine.safetensors (torch in fp32)``."""
    references = ((result.against, "ONNX"), (result.checkpoint, "torch in fp32"))
    return f"{result.shown} against {' and '.join(f'{path} ({what})' for path, what in references if path)}"


def finding_lines(result: Verification) -> list[str]:
    """The findings of ``--bisect``, a line or two for each wrong component."""
    lines = []
    for finding in result.findings:
        lines.append(f"{finding.component}: {finding.message}")
        lines += [f"  made by: {', '.join(finding.blamed)}"] if finding.blamed else []
    return lines


def images_lines(result: Verification) -> list[str]:
    """Verdict on all images together, where one of them does not pass."""
    judged = result.images_together
    if all(comparison.passed for comparison in result.images):
        return []
    if any(comparison.problem for comparison in result.images):
        return []  # that is why they are bad, and told of each
    differing = sum(not comparison.passed for comparison in result.images)
    few = f"{differing} of {len(result.images)} differ, as single ones may: the median is within the limits"
    parts = [f"images: {judged.problem or few}"]
    if judged.few:
        seeds = math.ceil(ENOUGH / len({comparison.prompt for comparison in result.images}))
        parts.append(f"images: {judged.images} may differ by chance; --seeds {seeds} tells")
    return parts


def _problem(summary: Summary) -> str:
    return f"{summary.worst.output} ({summary.worst.sample}): {summary.worst.problem}"
