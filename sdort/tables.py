"""The one table style: rows of text that fit the terminal's width, whole."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sdort import console
from sdort.errors.plain_text import one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_GAP = 2

NO_BREAK = "\u00a0"
"""Stands between two words of a cell that stay on one line; a space is printed."""

# Cells that are verdicts have a colour that can be read on black and on white; the words say the same without one.
_STYLES = {
    "ok": "green",
    "faster": "green",
    "same": "green",
    "warning": "magenta",
    "noisy": "magenta",
    "problem": "bold red",
    "failed": "bold red",
    "slower": "bold red",
}


@dataclass(frozen=True)
class _Row:
    cells: tuple[str, ...]
    style: str


@dataclass
class Table:
    """Rows of text under one title, without frames.

    No cell is ever cut. A table that is wider than the terminal wraps its text at spaces, and where even the longest
    words do not fit beside each other, every row becomes a block of lines, one a cell.

    Attributes:
        title: a line above the table, or "" for none.
        headers: one a column; where all are empty there is no line of headers. ``>name`` is a column of numbers:
            right-aligned, never wrapped.
        details: the headers (without ``>``) of columns that are shown under ``-v`` only.
    """

    title: str
    headers: Sequence[str]
    details: Sequence[str] = ()
    rows: list[_Row] = field(default_factory=list)

    def add_row(self, *cells: str | Sequence[str], style: str = "") -> None:
        """Add a row.

        Args:
            cells: one a column, those of ``details`` too; a list's items stand on lines of their own. Control
                characters in them, of names in a model, are written out.
            style: rich's style of the whole row, such as ``bold``.

        Raises:
            ValueError: there are more or fewer cells than columns.
        """
        if len(cells) != len(self.headers):
            raise ValueError(f"{len(cells)} cells for {len(self.headers)} columns of {self.title!r}")
        text = ("\n".join(map(one_line, [cell] if isinstance(cell, str) else cell)) for cell in cells)
        self.rows.append(_Row(tuple(text), style))

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        if self.title:
            yield Text("\n".join(["", *_wrapped(one_line(self.title), options.max_width)]), "bold")
        columns = self._columns()
        widths = _widths(columns, options.max_width)
        if widths is None:
            yield from self._blocks(columns, options.max_width)
        else:
            yield from _lines(columns, widths, self.rows, "-" if options.ascii_only else "─")

    def _columns(self) -> list[_Column]:
        """The columns that are shown: those with text in them, the details only under ``-v``."""
        columns = []
        for i, header in enumerate(self.headers):
            name = one_line(header.removeprefix(">"))
            cells = [row.cells[i] for row in self.rows]
            is_shown = name not in self.details or console.verbosity() >= console.VERBOSE
            if is_shown and (any(cells) or not cells):
                columns.append(_Column(name, header.startswith(">"), cells))
        return columns

    def _blocks(self, columns: list[_Column], width: int) -> Iterator[Text]:
        """A block of lines a row: the first cell and those of nameless columns, then a line for each other cell."""
        from rich.text import Text

        heads = [column for column in columns if column is columns[0] or not column.name]
        others = [column for column in columns if column not in heads]
        indent = min(2 + _GAP + max((len(column.name) for column in others), default=0), width // 2)
        for i, row in enumerate(self.rows):
            for line in _wrapped("  ".join(column.cells[i] for column in heads if column.cells[i]) or "-", width):
                yield Text(line, "bold")
            for column in others:
                label = f"  {column.name}".ljust(indent)
                for line in _wrapped(column.cells[i], width - indent) if column.cells[i] else ():
                    yield Text(label + line, row.style or _STYLES.get(column.cells[i], ""))
                    label = " " * indent


@dataclass(frozen=True)
class _Column:
    name: str
    is_number: bool
    cells: list[str]

    @property
    def natural(self) -> int:
        """Width without wrapping."""
        return max(len(text) for text in (self.name, *self.cells))

    @property
    def least(self) -> int:
        """Width of what cannot be wrapped: numbers, and of text the longest word."""
        if self.is_number:
            return self.natural
        return max((len(word) for text in (self.name, *self.cells) for word in re.split(r"[ \n]", text)), default=0)


def _widths(columns: Sequence[_Column], width: int) -> list[int] | None:
    """Widths of the columns within ``width``, or None where not even their longest words fit."""
    room = width - _GAP * (len(columns) - 1)
    widths = [column.least for column in columns]
    if sum(widths) > room:
        return None
    while (spare := room - sum(widths)) > 0:
        growing = [i for i, column in enumerate(columns) if widths[i] < column.natural]
        if not growing:
            break
        share = max(1, spare // len(growing))
        for i in growing[:spare]:
            widths[i] = min(columns[i].natural, widths[i] + share)
    return widths


def _lines(columns: Sequence[_Column], widths: Sequence[int], rows: Sequence[_Row], rule: str) -> Iterator[Text]:
    from rich.text import Text

    if any(column.name for column in columns):
        yield from _row(columns, widths, [column.name for column in columns], "bold")
        yield Text(rule * (sum(widths) + _GAP * (len(widths) - 1)), "dim")
    for i, row in enumerate(rows):
        yield from _row(columns, widths, [column.cells[i] for column in columns], row.style)


def _row(columns: Sequence[_Column], widths: Sequence[int], cells: Sequence[str], style: str) -> Iterator[Text]:
    from rich.text import Text

    wrapped = [_wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for line in range(max(map(len, wrapped))):
        text = Text()
        for i, (column, width) in enumerate(zip(columns, widths, strict=True)):
            part = wrapped[i][line] if line < len(wrapped[i]) else ""
            part = part.rjust(width) if column.is_number else part.ljust(width)
            text.append(part + " " * _GAP, style or _STYLES.get(cells[i], ""))
        text.rstrip()
        yield text


def _wrapped(text: str, width: int) -> list[str]:
    """The lines of a cell; a word that is longer than the width stays whole.

    A no-break space is printed as a space: pipes are searched for words as people type them.
    """
    lines = []
    for part in text.split("\n"):
        wrapped = textwrap.wrap(part, max(width, 1), break_long_words=False, break_on_hyphens=False)
        lines += [line.replace("\xa0", " ") for line in wrapped] or [""]
    return lines


def share_text(share: float) -> str:
    """A share in percent; a small one is not called 0."""
    return f"{share:.1%}" if share >= 0.001 else "<0.1%"


def counted(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``, ``1,234 nodes``: for nouns whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def count_text(count: int) -> str:
    """A count for people: ``859.5 M``."""
    return _scaled(count, ("", "k", "M", "G"))


def size_text(count: int) -> str:
    """Bytes for people: ``3.4 GB`` (powers of 1000)."""
    return _scaled(count, ("B", "kB", "MB", "GB"))


def _scaled(count: int, units: tuple[str, ...]) -> str:
    power = min(len(units) - 1, max(0, len(str(count)) - 1) // 3)
    digits = str(count) if power == 0 else f"{count / 1000**power:.1f}"
    return f"{digits} {units[power]}".rstrip()
