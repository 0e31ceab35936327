"""The tuning table of the custom operator library: which variant of each kernel is fastest on a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sdort.ops.library import tuning_table


@dataclass(frozen=True)
class Entry:
    """A line of the table: on ``architecture``, ``variant`` is the fastest for ``key``."""

    architecture: str
    """The GPU's architecture."""
    key: str
    """Operator, dtype and sizes."""
    variant: str
    """The fastest variant of the kernel."""
    microseconds: float
    """Its time."""


def read_table(path: Path | None = None) -> list[Entry]:
    """The table, by default this machine's; empty without one. Damaged lines are passed over, as in the library."""
    path = path or tuning_table()
    entries = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        fields = line.split("\t")
        if line.startswith("#") or len(fields) != 4:
            continue
        try:
            entries.append(Entry(fields[0], fields[1], fields[2], float(fields[3])))
        except ValueError:
            continue
    return entries
