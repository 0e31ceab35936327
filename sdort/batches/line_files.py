"""Files of prompts for batches, of any length: text, JSON lines, CSV and Parquet, a line after the other.

A line is a prompt, or options by their names, as for ``sdort run --prompts``, and ``id``, which its images are named
by. What is wrong with one line is no reason to leave the others out: it is given in the place of the line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sdort.errors import BadModelError, UsageError
from sdort.errors.plain_text import library_reason
from sdort.files.input_file import open_input
from sdort.files.json_text import parse_json
from sdort.generation.files.prompts_file import MAX_LINE, checked_line
from sdort.machine.optional_packages import of_failed_import
from sdort.machine.os_calls import os_calls

ID = "id"
MAX_ID = 100
"""Characters of an id: names of files have up to 255 bytes, and what is put behind it."""
_ID = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{MAX_ID - 1}}}")
_TEXTS = frozenset({ID, "prompt", "negative_prompt", "prompt_2", "negative_prompt_2"})
"""Columns of a CSV file that are texts, whatever they look like."""
_ROWS = 256
"""Rows of a Parquet file that are read at once."""


@dataclass(frozen=True)
class Line:
    """A line of a file of prompts.

    Attributes:
        number: in the file, from 1.
        name: its id, or its number where it has none.
        options: by their names in Python, the prompt among them.
    """

    number: int
    name: str
    options: dict[str, Any]


@dataclass(frozen=True)
class BadLine:
    """A line that nothing can be drawn of, and why."""

    number: int
    name: str | None
    problem: str


def read_lines(path: Path) -> Iterator[Line | BadLine]:
    """The lines of a file, one after the other: those of a text file that are empty or begin with ``#`` are left out.

    Raises:
        BadModelError: the file cannot be read.
        UsageError: a CSV file has no column ``prompt``, or one that is no option.
        MissingPackageError: it is a Parquet file, and pyarrow is not installed.
    """
    kind = _KINDS.get(path.suffix.lower(), _text_lines)
    names: dict[str, int] = {}
    for number, found in kind(path):
        line = _line(path, number, found)
        if isinstance(line, Line) and names.setdefault(line.name, number) != number:
            line = BadLine(number, line.name, f"line {number} of {path} has the id of line {names[line.name]}")
        yield line


def count_lines(path: Path) -> int:
    """The number of lines, as far as it can be said quickly: line feeds, or the rows of a Parquet file."""
    with open_input(path, "the prompts") as file:
        if path.suffix.lower() == ".parquet":
            return int(_parquet(path, file).metadata.num_rows)
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b"")) + 1


def _line(path: Path, number: int, found: dict[str, Any] | UsageError) -> Line | BadLine:
    if isinstance(found, UsageError):
        return BadLine(number, None, found.message)
    name = found.get(ID)
    try:
        options = checked_line(path, number, found, (ID,))
        if name is not None and not (isinstance(name, (str, int)) and _ID.fullmatch(str(name))):
            raise UsageError(
                f"line {number} of {path} has an id that is no name of a file: letters, digits, '.', '_' and '-', at "
                f"most {MAX_ID}"
            )
        if os_calls.is_device(str(name)):
            raise UsageError(f"line {number} of {path} has the id {name!r}, which Windows keeps for a device")
    except UsageError as error:
        return BadLine(number, name if isinstance(name, str) else None, error.message)
    options = {option: value for option, value in options.items() if option != ID}
    return Line(number, f"{number:06}" if name is None else str(name), options)


_Numbered = Iterator[tuple[int, "dict[str, Any] | UsageError"]]


def _text_lines(path: Path) -> _Numbered:
    for number, text in _texts(path):
        if isinstance(text, UsageError):
            yield number, text
        elif text and not text.startswith("#"):
            yield number, {"prompt": text}


def _json_lines(path: Path) -> _Numbered:
    for number, text in _texts(path):
        if isinstance(text, UsageError):
            yield number, text
        elif text:
            yield number, _object(path, number, text)


def _object(path: Path, number: int, text: str) -> dict[str, Any] | UsageError:
    try:
        found = parse_json(text.encode())
    except ValueError as error:
        return UsageError(f"line {number} of {path} {error}")
    return found if isinstance(found, dict) else UsageError(f"line {number} of {path} is no object")


def _texts(path: Path) -> Iterator[tuple[int, str | UsageError]]:
    with open_input(path, "the prompts") as file:
        for number, line in enumerate(_raw_lines(file), 1):
            if line is None:
                yield number, UsageError(f"line {number} of {path} has more than {MAX_LINE:,} bytes")
                continue
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                yield number, UsageError(f"line {number} of {path} is no text in UTF-8: byte {error.start + 1}")


def _raw_lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Lines with their ends; None for one that is too long to be held."""
    buffered = io.BufferedReader(file)  # type: ignore[type-var]
    while line := buffered.readline(MAX_LINE + 1):
        if len(line) <= MAX_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = buffered.readline(MAX_LINE + 1)
        yield None


def _csv_rows(path: Path) -> _Numbered:
    with open_input(path, "the prompts") as file:
        text = io.TextIOWrapper(io.BufferedReader(file), "utf-8-sig", newline="")  # type: ignore[type-var]
        rows = csv.reader(text)
        try:
            columns = [name.strip() for name in next(rows, [])]
            if "prompt" not in columns:
                raise UsageError(
                    f"{path} has no column prompt", hint="Name the columns in its first line: id,prompt,seed."
                )
            for row in rows:
                if row:
                    yield rows.line_num, _of_row(path, rows.line_num, columns, row)
        except UnicodeDecodeError as error:
            raise BadModelError(f"{path} is no text in UTF-8", hint="Save it as UTF-8.") from error
        except csv.Error as error:
            raise BadModelError(f"cannot read line {rows.line_num} of {path}: {error}") from error


def _of_row(path: Path, number: int, columns: list[str], row: list[str]) -> dict[str, Any] | UsageError:
    if len(row) > len(columns):
        return UsageError(f"line {number} of {path} has {len(row)} cells for {len(columns)} columns")
    cells = zip(columns, row, strict=False)
    return {name: cell if name in _TEXTS else _number(cell) for name, cell in cells if cell.strip()}


def _number(cell: str) -> Any:
    """The value of a cell: what JSON reads it as, else the text."""
    try:
        return parse_json(cell.strip().encode())
    except ValueError:
        return cell.strip()


def _parquet_rows(path: Path) -> _Numbered:
    with open_input(path, "the prompts") as file:
        number = 0
        for rows in _parquet(path, file).iter_batches(batch_size=_ROWS):
            for row in rows.to_pylist():
                number += 1
                yield number, {name: value for name, value in row.items() if value is not None}


def _parquet(path: Path, file: BinaryIO) -> Any:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise of_failed_import(error) or error from error
    try:
        return parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadModelError(f"{path} is no Parquet file: {library_reason(error)}") from error


_KINDS: dict[str, Callable[[Path], _Numbered]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}
