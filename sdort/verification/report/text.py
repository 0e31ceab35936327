"""A verification as tables and lines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from sdort import console
from sdort.tables import Table
from sdort.verification.component_comparison import Comparison
from sdort.verification.component_summary import Summary, summarize_comparisons, worst_summaries
from sdort.verification.image_comparison import ImageComparison
from sdort.verification.limits import ENOUGH
from sdort.verification.outcome import DIFFERS, FAILED, PASSED, Verification
from sdort.verification.report.shares import percent
from sdort.verification.semantic import Counts, Miss, SemanticScore

MOST_LINES = 8
"""Wrong images that the terminal lists."""
KIND_HEADS = ("right in", "candidate", "original", "wanted", "")


def semantic_lines(score: SemanticScore) -> list[str]:
    """Right images out of those judged, then each wrong one."""
    verdict = PASSED if score.passed else FAILED
    parts = [f"semantic score: {_counted(score.counts)} (wanted: {score.wanted}): {verdict}"]
    if score.original is not None:
        parts.append(f"semantic score of the original: {_counted(score.original)}")
    originals = [miss.original_right for miss in score.misses if miss.original_right is not None]
    if originals:
        parts.append(f"semantic score: {len(originals)} wrong, {originals.count(False)} of them by the original too")
    parts += [miss_line(miss) for miss in score.misses[:MOST_LINES]]
    left = len(score.misses) - MOST_LINES
    return [*parts, *([f"and {left} more wrong images; --json and --report have all"] if left > 0 else [])]


def _counted(counts: Counts) -> str:
    return ", ".join(f"{kind} {right} of {judged}" for kind, (right, judged) in counts.items() if judged)


def miss_line(miss: Miss) -> str:
    """A wrong image: its prompt, and what it shows."""
    description = f"{', '.join(miss.wrong)} wrong, seed {miss.seed}: {miss.prompt!r} shows {miss.seen}"
    return description if miss.original is None else f"{description}; {original_words(miss)}"


def original_words(miss: Miss) -> str:
    """The original's image of the same noise, in words."""
    return f"the original, {'right' if miss.original_right else 'wrong too'}, {miss.original}"


def kind_cells(score: SemanticScore) -> list[tuple[str, ...]]:
    """Rows under :data:`KIND_HEADS`; only the first two kinds have a bar."""
    rows = []
    for kind, (right, judged) in score.counts.items():
        original = "not run" if score.original is None else _of(score.original[kind])
        bar = score.bars.get(kind)
        verdict = "" if bar is None else PASSED if right >= bar * judged else FAILED
        rows.append((kind, _of((right, judged)), original, "" if bar is None else f"{100 * bar:.0f} %", verdict))
    return [row for row, (_, judged) in zip(rows, score.counts.values(), strict=True) if judged]


def _of(counted: tuple[int, int]) -> str:
    return f"{counted[0]} of {counted[1]}"


TIMESTEP_HEADS = ("component", "against", "timestep", "max/std", "mean/std", "of limit", "verdict")


@dataclass(frozen=True)
class TimestepError:
    """A component against one reference at one timestep of the run, over all prompts."""

    timestep: float
    summary: Summary

    @property
    def cells(self) -> tuple[str, ...]:
        """A row under :data:`TIMESTEP_HEADS`; no numbers where the outputs could not be compared."""
        summary, errors = self.summary, self.summary.largest
        numbers = (f"{errors.largest_share:.1e}", f"{errors.mean_share:.1e}") if errors else ("", "")
        verdict = PASSED if summary.passed else FAILED
        share = percent(summary.worst.share)
        return (summary.component, summary.against, f"{self.timestep:g}", *numbers, share, verdict)


def timestep_errors(comparisons: Sequence[Comparison]) -> list[TimestepError]:
    """One for each component that was recorded along a run, each reference and each timestep, in the run's order."""
    by_timestep: dict[float, list[Comparison]] = {}
    for comparison in comparisons:
        if comparison.timestep is not None:
            by_timestep.setdefault(comparison.timestep, []).append(comparison)
    errors = [
        TimestepError(timestep, summary)
        for timestep, group in sorted(by_timestep.items(), reverse=True)
        for summary in summarize_comparisons(group)
    ]
    return sorted(errors, key=lambda error: (error.summary.component, error.summary.against))


def timestep_table(comparisons: Sequence[Comparison]) -> Table:
    """The same for the terminal."""
    numbers = TIMESTEP_HEADS[2:-1]
    table = Table("Errors by timestep", [f">{head}" if head in numbers else head for head in TIMESTEP_HEADS])
    for error in timestep_errors(comparisons):
        table.add_row(*error.cells)
    return table


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
