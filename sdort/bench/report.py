"""Print or write the rows of a benchmark, and end with an error if a check failed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from sdort.bench.rows import Row, as_table, as_text
from sdort.console import say, show
from sdort.errors import OutputError, ParityError
from sdort.staging import staged_file


def deliver(measure: Callable[[], Sequence[Row]], form: str, output: Path | None) -> Sequence[Row]:
    """Measure, then print the rows, or write them to a file.

    Args:
        form: ``table``, ``csv``, ``json`` or ``markdown``; a file gets a table as Markdown.
        output: the file, replaced if it exists; checked before anything is measured.

    Returns:
        The rows.

    Raises:
        OutputError: the file cannot be written.
        ParityError: a row failed its check; all rows are delivered first.
    """
    if output is not None and not (output.parent.is_dir() and os.access(output.parent, os.W_OK)):
        raise OutputError(f"cannot write to the folder {output.parent}", hint="Create it, or choose another.")
    rows = measure()
    if output is not None:
        write_atomically(output, as_text(rows, "markdown" if form == "table" else form))
        say(f"wrote {output}")
    elif form == "table":
        show(as_table(rows))
    else:
        show_text(as_text(rows, form))
    refuse_failed(rows)
    return rows


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
