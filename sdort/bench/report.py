"""Print or write a benchmark's text, and end with an error if a check failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sdort.bench.rows import Row
from sdort.errors import OutputError, ParityError
from sdort.staging import staged_file


def show_text(text: str) -> None:
    """Print machine-readable text as it is: rich would wrap it."""
    import click

    click.echo(text, nl=False)


def write_atomically(path: Path, text: str) -> None:
    """Write beside, then rename.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        with staged_file(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def refuse_failed(rows: Sequence[Row]) -> None:
    """Raise if a row has no times.

    Raises:
        ParityError: which rows, and the first reason.
    """
    failed = [row for row in rows if row.failed]
    if not failed:
        return
    first = failed[0]
    raise ParityError(
        f"{len(failed)} of {len(rows)} rows were not timed, because they failed. The first: {first.pipeline}, batch "
        f"{first.batch_size}, {first.height}x{first.width}: {first.status}",
        component=first.component,
    )
