"""The tuning table of the custom operator library: which variant of each kernel is fastest on a device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sdort.console import warn
from sdort.files.input_file import read_input
from sdort.operator_library.library import MAX_TABLE, tuning_table


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
    """The table, by default this machine's; empty without one. Damaged lines are told and passed over.

    The library passes them over too: its kernels then run as if they had not been tuned.

    Raises:
        BadModelError: it cannot be read, or is larger than such a table is.
    """
    path = path or tuning_table()
    if not os.path.isfile(path):
        return []
    lines = read_input(path, "the tuning table", limit=MAX_TABLE).decode(errors="replace").splitlines()
    entries = [_entry(line) for line in lines if line and not line.startswith("#")]
    if damaged := entries.count(None):
        warn(
            f"{damaged} of {len(entries)} lines of the tuning table {path} are damaged; sdort ops tune times them again"
        )
    return [entry for entry in entries if entry]


def _entry(line: str) -> Entry | None:
    try:
        architecture, key, variant, microseconds = line.split("\t")
        return Entry(architecture, key, variant, float(microseconds))
    except ValueError:
        return None
