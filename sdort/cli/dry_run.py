"""``--dry-run`` of the commands that write much: sizes, free disk space and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdort.files.disk import WritePlan

DRY_RUN_HELP = "Write nothing. Say what would be written, and whether disk and memory suffice."


def show_plan(plan: WritePlan, *, as_json: bool) -> None:
    """Print a plan.

    Raises:
        OutputError: there is not enough room on a disk.
    """
    from sdort.console import conclude, emit_json, show, to_json
    from sdort.errors import OutputError
    from sdort.tables import size_text

    try:
        plan.raise_if_short()
    except OutputError as error:
        error.record = to_json(plan)
        if not as_json:
            _show_writes(plan)
        raise
    if as_json:
        emit_json(plan)
        return
    _show_writes(plan)
    disks = ", ".join(
        f"{size_text(disk.needed)} of {size_text(disk.free)} free at {disk.folder.absolute()}" for disk in plan.disks
    )
    free = f" of {size_text(plan.free_memory)} free" if plan.free_memory is not None else ""
    show(f"Memory: about {size_text(plan.peak_memory)}{free} (an estimate).")
    conclude(f"It fits: {disks}.")


def _show_writes(plan: WritePlan) -> None:
    from sdort.console import show
    from sdort.tables import Table, size_text

    out = plan.writes[0].folder if plan.writes else None
    table = Table(f"Would be written to {out} (estimates)", ("", ">size", "how", "elsewhere"))
    for write in plan.writes:
        table.add_row(write.name, size_text(write.bytes), write.note, str(write.folder) if write.folder != out else "")
    if plan.scratch:
        table.add_row("for a while", size_text(plan.scratch), "removed before the end", "")
    show(table)
