"""Errors along a denoising run: the largest at each recorded timestep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdort.tables import Table
from sdort.verification.component_comparison import Comparison
from sdort.verification.component_summary import Summary, summarize_comparisons
from sdort.verification.outcome import FAILED, PASSED
from sdort.verification.report.shares import percent

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
