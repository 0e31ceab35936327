"""Grids that CI walks in turns, each case with a part of what it could meet; ``MATRIX=all`` takes all, for people."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

ALL = os.environ.get("MATRIX") == "all"

Case = TypeVar("Case")
Other = TypeVar("Other")


def in_turns(
    cases: Sequence[Case], others: Sequence[Other], each: int = 1, whole: Sequence[Case] = ()
) -> list[tuple[Case, Other]]:
    """Every case with ``each`` of the others, the next case with the next ones, so that all others are met.

    Args:
        whole: the cases that meet all of them in any case.
    """
    met: list[tuple[Case, Other]] = []
    turn = 0
    for case in cases:
        if ALL or case in whole:
            met += ((case, other) for other in others)
        else:
            met += ((case, others[(turn + step) % len(others)]) for step in range(each))
            turn += each
    return met
