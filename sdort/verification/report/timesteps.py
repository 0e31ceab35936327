"""Errors along a denoising run: the largest at each recorded timestep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdort.verification.component_comparison import Comparison
from sdort.verification.outcome import FAILED, PASSED

COURSE_HEADS = ("component", "against", "largest of")


@dataclass(frozen=True)
class Course:
    """One measure of a component against one reference, by timestep in the order of the run."""

    component: str
    against: str
    measure: str
    allowed: float
    values: dict[float, float | None]
    """None where the outputs could not be compared."""

    @property
    def passed(self) -> bool:
        return all(value is not None and value <= self.allowed for value in self.values.values())


def courses(comparisons: Sequence[Comparison]) -> list[Course]:
    """Two for each component that was recorded along a run, and each reference; the largest error of all prompts."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in comparisons:
        if comparison.timestep is not None:
            groups.setdefault((comparison.component, comparison.against), []).append(comparison)
    return [
        Course(
            *key,
            measure,
            min(getattr(comparison.limit, name) for comparison in group),
            _largest(group, f"{name}_share"),
        )
        for key, group in groups.items()
        for measure, name in (("max / std", "largest"), ("mean / std", "mean"))
    ]


def _largest(group: Sequence[Comparison], name: str) -> dict[float, float | None]:
    by_timestep: dict[float, list[float | None]] = {}
    for comparison in sorted(group, key=lambda comparison: -(comparison.timestep or 0)):
        value = None if comparison.errors is None else float(getattr(comparison.errors, name))
        by_timestep.setdefault(comparison.timestep or 0.0, []).append(value)
    return {
        timestep: None if None in values else max(value for value in values if value is not None)
        for timestep, values in by_timestep.items()
    }


def timestep_table(comparisons: Sequence[Comparison]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The heads, with a column for each timestep, and the rows; they end in a verdict."""
    every = courses(comparisons)
    timesteps = sorted({timestep for course in every for timestep in course.values}, reverse=True)
    heads = (*COURSE_HEADS, *(f"t {timestep:g}" for timestep in timesteps), "allowed", "")
    rows = [
        (course.component, course.against, course.measure, *(_number(course, timestep) for timestep in timesteps),
         f"{course.allowed:.1e}", PASSED if course.passed else FAILED)
        for course in every
    ]  # fmt: skip
    return heads, rows


def _number(course: Course, timestep: float) -> str:
    value = course.values.get(timestep)
    return f"{value:.1e}" if value is not None else "none" if timestep in course.values else ""


def timestep_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """The same, a line for each course."""
    return [
        f"{course.component}, {course.against}, {course.measure} by timestep: "
        f"{', '.join(f'{t:g} {_number(course, t)}' for t in course.values)} ({course.allowed:.1e} allowed)"
        for course in courses(comparisons)
    ]
