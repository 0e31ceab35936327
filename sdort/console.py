"""The one place that talks to the person: messages and progress on stderr, results on stdout.

Library code calls :func:`say`, :func:`detail`, :func:`warn` and :func:`progress`; commands also call
:func:`show` and :func:`emit_json`. Nothing else in sdort prints. The command line sets a verbosity; without one, in a
program that imports sdort, nothing is printed: messages are records of the logger ``sdort``, and there are no bars.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType

console = Console(stderr=True, highlight=False)
"""Console of messages and progress. It follows ``sys.stderr``, so redirection in tests works."""

SILENT, QUIET, NORMAL, VERBOSE = -2, -1, 0, 1

_logger = logging.getLogger("sdort")

# A pipe has no width; tables then take what they need up to this many columns.
_PIPE_WIDTH = 240

_verbosity = SILENT


def verbosity() -> int:
    """-2 in a program that imports sdort, -1 after ``-q``, 0 normally, 1 after ``-v``."""
    return _verbosity


def set_verbosity(level: int) -> None:
    """Choose what is printed on stderr.

    Args:
        level: -2 nothing (messages are records of the logger ``sdort``: information, debug or warning), -1 warnings
            alone, 0 messages and progress bars too, 1 details as well. Values beyond are the nearest of these.

    Example:
        >>> sdort.set_verbosity(0)  # as the command line does
    """
    global _verbosity
    _verbosity = max(SILENT, min(VERBOSE, level))


def say(message: str) -> None:
    """A line for the person, unless ``-q``."""
    if _verbosity == SILENT:
        _logger.info(message)
    elif _verbosity >= NORMAL:
        _print(message)


def detail(message: str) -> None:
    """A line that is shown under ``-v`` only."""
    if _verbosity == SILENT:
        _logger.debug(message)
    elif _verbosity >= VERBOSE:
        _print(message, style="dim")


def warn(message: str) -> None:
    """A line that even ``-q`` shows: the result is not quite what was asked for."""
    if _verbosity == SILENT:
        _logger.warning(message)
    else:
        _print(f"warning: {message}", style="yellow")


def print_error(message: str) -> None:
    """The last line of a command that failed, also under ``-q``."""
    click.echo(
        f"{click.style('Error:', fg='red')} {_fitted(f'Error: {message}', console).removeprefix('Error: ')}", err=True
    )


def _print(message: str, style: str | None = None) -> None:
    # No markup: node names and shapes are full of brackets.
    console.print(_fitted(message, console), style=style, markup=False, soft_wrap=True)


def _fitted(text: str, on: Console) -> str:
    """Text for a terminal's width; a pipe or a file gets it as it is."""
    return wrap(text, on.width) if on.is_terminal else text


def wrap(text: str, width: int) -> str:
    """Text with lines of at most ``width`` columns, broken at spaces; continued lines keep the line's indentation.

    Words that are longer (paths) stay whole, and so do lines that begin with four spaces: those are commands, which
    people copy.
    """
    return "\n".join(
        line
        if len(line) <= width or line.startswith("    ")
        else textwrap.fill(
            line,
            width,
            subsequent_indent=line[: len(line) - len(line.lstrip())],
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


@contextmanager
def progress(
    description: str, total: float | None = None, remaining: Callable[[], float | None] | None = None
) -> Iterator[Callable[[float], None]]:
    """Show a progress bar while the block runs.

    Args:
        description: what is being done.
        total: the amount of work, in the unit that is passed to ``advance``; None when it is not known.
        remaining: the seconds to go, None while not known; by default the work that is left at the speed so far.

    Yields:
        ``advance(amount)``, to be called as work gets done. It does nothing when there is no bar: under ``-q``, or
        when stderr is not a terminal. Bars may be nested.
    """
    if _verbosity < NORMAL or not console.is_interactive:
        yield lambda amount: None
        return
    # Imported here: most runs of sdort in scripts and pipes show no bar.
    from rich.progress import (
        BarColumn,
        Progress,
        Task,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class GivenRemaining(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            seconds = remaining() if remaining else None
            return Text("-:--:--" if seconds is None else str(timedelta(seconds=round(seconds))), "progress.remaining")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        GivenRemaining() if remaining else TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)


def show(result: RenderableType) -> None:
    """Print a result (text or a rich table) on stdout."""
    out = Console(highlight=False)
    if out.is_terminal:
        out.print(wrap(result, out.width) if isinstance(result, str) else result, markup=False, soft_wrap=True)
        return
    out.width = _PIPE_WIDTH
    with out.capture() as captured:
        out.print(result, markup=False)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def conclude(verdict: str, next_command: str | None = None) -> None:
    """Print a command's last lines: its verdict as a result on stdout, and unless ``-q`` the command that comes next.

    Args:
        verdict: one sentence with the numbers that matter: ``16 comparisons within limits, closest: unet 97 %``.
        next_command: what people would run now, ready to be copied.
    """
    show(verdict)
    if next_command:
        say(f"Next:\n    {next_command}")


def show_text(text: str) -> None:
    """Print machine-readable text on stdout as it is: rich would wrap it."""
    click.echo(text, nl=False)


def emit_json(obj: object) -> None:
    """Print :func:`to_json` of ``obj`` on stdout."""
    click.echo(json.dumps(to_json(obj), indent=2))


def to_json(obj: object) -> Any:
    """Plain JSON values of a report: dicts with text keys, lists, text, numbers, booleans and None.

    Dataclasses become objects with a key for each field. ``field(metadata={"json": name})`` gives a field another key,
    and ``field(metadata={"json": None})`` leaves it out. Enums become their values, paths text, sets sorted lists and
    numpy scalars numbers. JSON has neither NaN nor infinity: NaN becomes None, infinity the text ``inf`` or ``-inf``.

    Raises:
        TypeError: ``obj`` holds a value of another type.
    """
    if isinstance(obj, Enum):
        return to_json(obj.value)
    if obj is None or isinstance(obj, (str, bool, int)):
        return obj
    if isinstance(obj, float):
        return None if math.isnan(obj) else obj if math.isfinite(obj) else str(obj)
    if isinstance(obj, Path):
        return str(obj)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        names = {field.name: field.metadata.get("json", field.name) for field in dataclasses.fields(obj)}
        return {key: to_json(getattr(obj, name)) for name, key in names.items() if key is not None}
    if isinstance(obj, Mapping):
        return {str(key): to_json(value) for key, value in obj.items()}
    if isinstance(obj, (set, frozenset)):
        return sorted((to_json(item) for item in obj), key=str)
    if isinstance(obj, (list, tuple)):
        return [to_json(item) for item in obj]
    if hasattr(obj, "item") and not hasattr(obj, "__len__"):  # a numpy scalar, without importing numpy
        return to_json(obj.item())
    raise TypeError(f"{type(obj).__name__} has no JSON: {obj!r}")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep torch, diffusers and transformers from chattering about optional packages, old configs and progress."""
    import logging
    import warnings

    import diffusers
    import transformers

    loggers = [logging.getLogger(name) for name in ("torch", "diffusers", "transformers", "onnxscript")]
    levels = [logger.level for logger in loggers]
    bars = [bar for bar in (diffusers.utils.logging, transformers.utils.logging) if bar.is_progress_bar_enabled()]
    try:
        for bar in bars:
            bar.disable_progress_bar()
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for bar in bars:
            bar.enable_progress_bar()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
