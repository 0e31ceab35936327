"""All comparisons of a component together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdort.verification.component_comparison import Comparison
from sdort.workload.judgement import Errors


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
    def passed(self) -> bool:
        return self.worst.passed


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


def worst_summaries(summaries: Sequence[Summary]) -> list[Summary]:
    """The worst summary of each component, in the order of the components."""
    by_component: dict[str, list[Summary]] = {}
    for summary in summaries:
        by_component.setdefault(summary.component, []).append(summary)
    return list(map(worst_summary, by_component.values()))


def worst_summary(summaries: Sequence[Summary]) -> Summary:
    """The one whose worst comparison uses most of its limit; those out of limits come first."""
    return max(summaries, key=lambda summary: (not summary.passed, summary.worst.share))


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
