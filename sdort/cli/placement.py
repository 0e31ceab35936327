"""The placement of operators, as several commands show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdort.inspection.profile import Placement


def show_placement(placements: Sequence[Placement], lines: Sequence[str]) -> None:
    """Print what :mod:`sdort.inspection.profile` found."""
    from sdort.console import show
    from sdort.inspection.profile import placement_table

    show(placement_table(placements))
    if lines:
        show("\n" + "\n".join(lines))
