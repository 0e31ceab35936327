"""Disk space: what is free, and whether what a command is about to write fits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sdort.console import document
from sdort.errors import OutputError
from sdort.machine.gpus import free_memory
from sdort.tables import size_text


@dataclass(frozen=True)
class PlannedWrite:
    """Something that a command would write.

    Attributes:
        name: what it is: a component, or ``traces``.
        folder: where it would lie.
        bytes: its size, estimated from the weights.
        note: what is done for it, in words.
        only_if_room: whether it is left out where it does not fit, as what a cache would keep.
    """

    name: str
    folder: Path
    bytes: int
    note: str = ""
    only_if_room: bool = field(default=False, metadata={"json": None})


@dataclass(frozen=True)
class DiskSpace:
    """A file system that would be written to.

    Attributes:
        folder: a folder on it.
        needed: bytes that have to be written.
        free: bytes that are free.
    """

    folder: Path
    needed: int
    free: int


@document("plan", 1)
@dataclass(frozen=True)
class WritePlan:
    """Everything that a command would write, before it writes anything.

    Attributes:
        writes: what would stay.
        scratch: bytes that are written beside the result for a while.
        peak_memory: bytes of main memory, estimated.
        free_memory: bytes of main memory that are free; None where nothing tells.
        disks: the file systems that would be written to.
        fits: whether there is room on all of them.
    """

    writes: list[PlannedWrite]
    scratch: int
    peak_memory: int
    free_memory: int | None
    disks: list[DiskSpace] = field(default_factory=list)
    fits: bool = True

    @property
    def bytes(self) -> int:
        """Bytes of everything that would stay."""
        return sum(write.bytes for write in self.writes)

    def raise_if_short(self) -> None:
        """Raise if there is too little room.

        Raises:
            OutputError: how much is needed and free, and where.
        """
        for disk in self.disks:
            if disk.needed > disk.free:
                raise OutputError(
                    f"not enough disk space at {disk.folder}: {size_text(disk.needed)} are needed and "
                    f"{size_text(disk.free)} are free",
                    hint=f"Free {size_text(disk.needed - disk.free)} there, or write to another disk.",
                )


def plan_writes(writes: Sequence[PlannedWrite], *, scratch: int = 0, peak_memory: int = 0) -> WritePlan:
    """Compare what would be written with what is free.

    Args:
        writes: the first one's folder is where ``scratch`` is written too.
    """
    groups: dict[int, list[PlannedWrite]] = {}
    for write in writes:
        if write.only_if_room:
            continue
        groups.setdefault(existing(write.folder).stat().st_dev, []).append(write)
    disks = []
    for index, group in enumerate(groups.values()):
        needed = sum(write.bytes for write in group) + (scratch if index == 0 else 0)
        disks.append(DiskSpace(group[0].folder, needed, free_bytes(group[0].folder)))
    fits = all(disk.needed <= disk.free for disk in disks)
    return WritePlan(list(writes), scratch, peak_memory, free_memory("", 0), disks, fits)


def free_bytes(folder: Path) -> int:
    """Bytes that this user can still write to the file system that ``folder`` is on, or would be."""
    return shutil.disk_usage(existing(folder)).free


def existing(folder: Path) -> Path:
    """``folder``, or the nearest of those above it that exists."""
    # Not Path.exists, which raises where a folder above may not be entered.
    folder = folder.absolute()
    return next((parent for parent in (folder, *folder.parents) if os.path.exists(parent)), Path(folder.anchor))
