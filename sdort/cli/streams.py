"""The standard streams of the ``sdort`` command: what goes there is plain text, and what stdout refuses an exit code.

Messages and results are cleaned in :mod:`sdort.console`, before they are styled. All else that writes to a stream is
cleaned here: click's usage errors, tracebacks, warnings and loggers of libraries, text that is printed as it is.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import click

from sdort.errors import OutputError
from sdort.errors.plain_text import printable, without_unsafe_advice
from sdort.machine.os_calls import os_calls

READER_GONE = 141
"""The exit code where who read stdout has gone (``| head``): that of SIGPIPE, as shells report it. Nothing is said."""


def install() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr``.

    A descriptor that the process was started without is taken first: a model's file would get its number, and ONNX
    Runtime's log, which goes to descriptor 2, would be written into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # the lowest free number is this one. Writing to stdout fails; what goes to stderr is lost
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    sys.stdout = _Plain(_reopened(sys.stdout, 1, _Results), printable)
    sys.stderr = _Plain(_reopened(sys.stderr, 2, _Messages), _clean_message)


def _clean_message(text: str) -> str:
    return without_unsafe_advice(printable(text))


def _reopened(stream: Any, number: int, kind: type[io.TextIOWrapper]) -> io.TextIOWrapper:
    """The stream as another class; None, of a descriptor that was closed, as a stream to it."""
    if stream is None:
        return kind(open(number, "wb", closefd=False), encoding="utf-8", errors="backslashreplace")
    # Of another encoding than UTF-8, as in some containers: what it lacks is escaped, no reason to fail.
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    buffered, through = stream.line_buffering, stream.write_through
    encoding = stream.encoding
    return kind(stream.detach(), encoding, errors, line_buffering=buffered, write_through=through)


class _Results(io.TextIOWrapper):
    """stdout: a result that cannot be written is an error, one that nobody reads the end of the command."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> NoReturn:
        _lead_nowhere(1)  # what is still in the buffer fails no second time
        if error.errno in os_calls.READER_GONE:
            raise click.exceptions.Exit(READER_GONE) from error
        hint = "Write it to a file with room, or leave stdout open."
        raise OutputError(f"cannot write the result to stdout: {error.strerror or error}", hint=hint) from error


class _Messages(io.TextIOWrapper):
    """stderr: the work goes on without messages, and there is no place to say so; the exit code says how it ended."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            _lead_nowhere(2)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _lead_nowhere(2)


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


class _Plain:
    """A stream of plain text.

    rich writes to ``rich_proxied_file``, the stream behind it: sdort's own colours and bars, of text that is clean.
    """

    def __init__(self, stream: io.TextIOWrapper, clean: Callable[[str], str]) -> None:
        self.rich_proxied_file = stream
        self.buffer = _PlainBytes(self)
        self._clean = clean

    def write(self, text: str) -> int:
        cleaned = self._clean(text)
        if cleaned:  # click asks with empty text what kind of stream it is, and hides what that raises
            self.rich_proxied_file.write(cleaned)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


class _PlainBytes(io.BufferedIOBase):
    """A :class:`_Plain` stream for bytes of UTF-8, as click writes completions, and in an ASCII locale everything."""

    def __init__(self, text: _Plain) -> None:
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._text.write(bytes(data).decode(errors="backslashreplace"))
        return len(data)

    def flush(self) -> None:
        self._text.flush()
