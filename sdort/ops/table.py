"""The tuning table of the custom operator library: which variant of each kernel is fastest on a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sdort.machine.input_file import read_input
from sdort.ops.library import MAX_TABLE, tuning_table


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
    """The table, by default this machine's; empty without one. Damaged lines are passed over, as in the library.

    Raises:
        BadModelError: it cannot be read, or is larger than such a table is.
    """
    path = path or tuning_table()
    if not path.is_file():
        return []
    entries = []
    for line in read_input(path, "the tuning table", limit=MAX_TABLE).decode(errors="replace").splitlines():
        fields = line.split("\t")
        if line.startswith("#") or len(fields) != 4:
            continue
        try:
            entries.append(Entry(fields[0], fields[1], fields[2], float(fields[3])))
        except ValueError:
            continue
    return entries
