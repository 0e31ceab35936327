"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass

from sdort.runtime.availability import Problem

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """One sentence about one thing; ``next_step`` is empty where there is nothing to do."""

    section: str
    """The subject: ``software``, ``memory``, ..."""
    check: str
    """The thing that was looked at."""
    status: str
    """``ok``, ``warning`` or ``problem``."""
    message: str
    """The finding, as a sentence."""
    next_step: str = ""
    """The next step; empty where there is nothing to do."""


def from_problem(section: str, problem: Problem, status: str) -> Finding:
    return Finding(section, problem.check, status, problem.message, problem.next_step)
