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
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from sdort.errors.plain_text import encodable, one_line, printable

if TYPE_CHECKING:
    from rich.progress import Task

console = Console(stderr=True, highlight=False)
"""Console of messages and progress. It follows ``sys.stderr``, so redirection in tests works."""

SILENT, QUIET, NORMAL, VERBOSE = -2, -1, 0, 1

_logger = logging.getLogger("sdort")

# A pipe has no width: every row and sentence is one line, for grep and awk; COLUMNS sets another width.
_PIPE_WIDTH = 1_000_000

_WIDEST_BAR, _NARROWEST_BAR = 40, 8

_verbosity = SILENT

# Whether this command has printed anything yet, a result or a message: a blank line separates, and begins nothing.
_has_shown = False
_has_said = False

Follower = Callable[[str, float, "float | None"], None]
"""Called with what is being done, the amount that is done, and all there is, None where that is not known."""

_follower: ContextVar[Follower | None] = ContextVar("follower", default=None)
_is_followed: ContextVar[bool] = ContextVar("is_followed", default=False)
"""Whether the follower stands in the place of bars."""

_picture_rows = 0
"""Lines of the picture that was drawn last; 0 after anything else was printed."""


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
    global _verbosity, _has_shown, _has_said
    _verbosity = max(SILENT, min(VERBOSE, level))
    _has_shown = _has_said = False


def is_quiet() -> bool:
    """Whether ``-q`` was given: commands whose result is a file or a folder do not say that it is there."""
    return _verbosity <= QUIET


def say(message: str) -> None:
    """A line for the person, unless ``-q``."""
    message = printable(message)
    if _verbosity == SILENT:
        _logger.info(message)
    elif _verbosity >= NORMAL:
        _print(message)


def detail(message: str) -> None:
    """A line that is shown under ``-v`` only."""
    message = printable(message)
    if _verbosity == SILENT:
        _logger.debug(message)
    elif _verbosity >= VERBOSE:
        _print(message, style="dim")


def warn(message: str) -> None:
    """A line that even ``-q`` shows: the result is not quite what was asked for."""
    message = printable(message)
    if _verbosity == SILENT:
        _logger.warning(message)
    else:
        # Only the word has a colour, and one that can be read on black and on white: yellow cannot.
        _print(f"warning: {message}", "warning:", "bold magenta")


@cache
def warn_once(message: str) -> None:
    """:func:`warn`, once a process for what many steps of a command run into."""
    warn(message)


def print_error(message: str) -> None:
    """The last line of a command that failed, also under ``-q``."""
    _print(f"Error: {printable(message)}", "Error:", "bold red")


def _print(message: str, part: str | None = None, style: str = "") -> None:
    """Print a message; its first word ``part``, or all of it, in a style."""
    global _has_said, _picture_rows
    _has_said, _picture_rows = True, 0
    text = _fitted(message, console)
    # No markup: node names and shapes are full of brackets.
    console.print(
        Text(text, style) if part is None else Text.assemble((part, style), text[len(part) :]), soft_wrap=True
    )


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
    description: str | Callable[[], str],
    total: float | None = None,
    remaining: Callable[[], float | None] | None = None,
    numbers: Callable[[], list[str]] | None = None,
) -> Iterator[Callable[[float], None]]:
    """Show a progress bar while the block runs.

    Args:
        description: what is being done; a function is asked again whenever the bar is drawn.
        total: the amount of work, in the unit that is passed to ``advance``; None when it is not known.
        remaining: the seconds to go, None while not known; by default the work that is left at the speed so far.
        numbers: what stands behind the bar, the most important first; by default percent, remaining and elapsed time.

    Yields:
        ``advance(amount)``, to be called as work gets done. It does nothing when there is no bar: under ``-q``, or
        when stderr is not a terminal; and nobody follows (:func:`following`). Bars may be nested.
    """
    follow = _follower.get()
    with nullcontext(_no_bar) if _is_followed.get() else _bar(description, total, remaining, numbers) as advance:
        if follow is None:
            yield advance
            return
        done = 0.0

        def tell(amount: float) -> None:
            nonlocal done
            advance(amount)
            done += amount
            follow(one_line(description if isinstance(description, str) else description()), done, total)

        tell(0)
        yield tell


def _no_bar(amount: float) -> None:
    """Advances what is not shown."""


@contextmanager
def following(follow: Follower, *, instead: bool = False) -> Iterator[None]:
    """A block in which ``follow`` is told of all that :func:`progress` shows or would show.

    Args:
        instead: no bars are shown in the block: ``follow`` tells the person.
    """
    before, shown = _follower.set(follow), _is_followed.set(instead)
    try:
        yield
    finally:
        _follower.reset(before)
        _is_followed.reset(shown)


@contextmanager
def _bar(
    description: str | Callable[[], str],
    total: float | None,
    remaining: Callable[[], float | None] | None,
    numbers: Callable[[], list[str]] | None,
) -> Iterator[Callable[[float], None]]:
    if _verbosity < NORMAL or not console.is_interactive:
        yield _no_bar
        return
    from rich.progress import Progress  # imported here: most runs of sdort in scripts and pipes show no bar

    class Bars(Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            for task in self.tasks:
                text = one_line(description if isinstance(description, str) else description())
                left = remaining() if remaining else task.time_remaining
                yield _BarLine(task, text, numbers() if numbers else _numbers(task, left))

    # What libraries write to a stream meanwhile stays there, to be cleaned: rich would obey its control characters.
    with Bars(console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task("", total=total)
        yield lambda amount: bar.advance(task, amount)


def has_bars() -> bool:
    """Whether :func:`progress` shows bars: messages are wanted, and stderr is a terminal."""
    return _verbosity >= NORMAL and console.is_interactive


def draw_picture(sequence: str, rows: int) -> None:
    """Draw a picture on the terminal, in the place of the one before if nothing was printed since.

    Args:
        sequence: an escape sequence that draws at the cursor.
        rows: the lines that it takes.
    """
    global _picture_rows
    up, down = f"\x1b[{rows}A", f"\x1b[{rows}B\r"
    room = "" if _picture_rows == rows else "\n" * rows
    console.print(_Raw(f"{room}{up}\x1b7{sequence}\x1b8{down}"), end="")
    _picture_rows = rows


class _Raw:
    """Control sequences that rich hands to the terminal as they are."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.segment import ControlType, Segment

        yield Segment(self.text, None, [(ControlType.CARRIAGE_RETURN,)])  # type: ignore[misc] # a RichRenderable too


class _BarLine:
    """Description, bar and numbers; what does not fit is left out, the bar first."""

    def __init__(self, task: Task, description: str, numbers: list[str]) -> None:
        self.task, self.description, self.numbers = task, description, numbers

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.progress_bar import ProgressBar

        text, numbers, bar_width = bar_layout(self.description, self.numbers, options.max_width)
        yield Text(text, end="")
        if bar_width:
            yield Text(" ", end="")
            yield ProgressBar(self.task.total, self.task.completed, bar_width, animation_time=self.task.get_time())
        yield Text("".join(f" {number}" for number in numbers))


def _numbers(task: Task, remaining: float | None) -> list[str]:
    """The most important first: percent, remaining and elapsed time."""
    elapsed = clock(task.elapsed)
    return [elapsed] if task.total is None else [f"{task.percentage:>3.0f}%", f"{clock(remaining)} left", elapsed]


def bar_layout(description: str, numbers: list[str], width: int) -> tuple[str, list[str], int]:
    """The parts of a line of at most ``width`` columns.

    Args:
        description: what is being done; cut at its end where it alone is too long.
        numbers: the most important first; the last are left out where they do not fit, the first one stays.

    Returns:
        The description, the numbers that fit, and the width of the bar, 0 for none.
    """
    shown = list(numbers)
    while len(shown) > 1 and _length(description, shown) > width:
        shown.pop()
    room = width - _length("", shown)
    if len(description) > room:
        description = description[: max(room - 3, 0)] + "..."
    room = width - _length(description, shown) - 1
    return description, shown, min(room, _WIDEST_BAR) if room >= _NARROWEST_BAR else 0


def _length(description: str, numbers: list[str]) -> int:
    return len(description) + sum(1 + len(number) for number in numbers)


def clock(seconds: float | None) -> str:
    """Seconds as ``0:01:30``; ``-:--:--`` while not known."""
    return "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))


def show(result: RenderableType) -> None:
    """Print a result (text or a :class:`sdort.tables.Table`) on stdout.

    It fits the terminal. A pipe or a file gets whole lines, or with COLUMNS set as many columns. Blank lines at the
    beginning of what is printed are left out.
    """
    global _has_shown
    out = Console(highlight=False)
    if not out.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        out.width = _PIPE_WIDTH
    shown = wrap(printable(result), out.width) if isinstance(result, str) else result
    with out.capture() as lines:
        out.print(shown, markup=False, emoji=False, soft_wrap=True)
    is_first = not (_has_shown or (_has_said and out.is_terminal))
    styled = re.sub(r"\A(?:\x1b\[[0-9;]*m|\n)*\n", "", lines.get()) if is_first else lines.get()
    out.file.write(styled)
    out.file.flush()  # a full disk is told while somebody can be told
    _has_shown = _has_shown or bool(styled)


def conclude(verdict: str, next_command: str | None = None) -> None:
    """Print a command's last lines: its verdict as a result on stdout, and unless ``-q`` the command that comes next.

    A blank line stands before the verdict if other results do.

    Args:
        verdict: one sentence with the numbers that matter: ``16 comparisons within limits, closest: unet 97 %``.
        next_command: what people would run now, ready to be copied.
    """
    show(f"\n{verdict}" if _has_shown else verdict)
    if next_command:
        say(f"Next:\n    {next_command}")


def show_text(text: str) -> None:
    """Print machine-readable text on stdout as it is: rich would wrap it."""
    click.echo(text, nl=False)


_Report = TypeVar("_Report", bound=type)

DOCUMENTS: dict[str, type] = {}
"""Dataclasses of the JSON documents that people's programs read, by schema: ``sdort-run-1``. Filled by imports."""


def document(name: str, version: int, *, is_open: bool = False) -> Callable[[_Report], _Report]:
    """Class decorator of a dataclass that is a JSON document; its JSON begins with ``"schema": "sdort-NAME-VERSION"``.

    The version grows when a field goes or changes its meaning, not when one is added. ``docs/json.md`` and
    ``docs/schemas/`` hold all of them (``scripts/json_schemas.py`` writes those).

    Args:
        is_open: whether it has other fields too; those of an error are what the command had until then.
    """

    def mark(report: _Report) -> _Report:
        schema = f"sdort-{name}-{version}"
        report.__schema__ = schema  # type: ignore[attr-defined] # read by to_json
        report.__is_open__ = is_open  # type: ignore[attr-defined]
        DOCUMENTS[schema] = report
        return report

    return mark


def json_keys(report: type) -> dict[str, str]:
    """Attribute of a dataclass -> its key in JSON, in the order of the keys.

    These are its fields, or the fields and properties that its ``__json__`` names, a tuple. A field's
    ``metadata={"json": name}`` gives it another key, and ``{"json": None}`` leaves it out.
    """
    fields = {field.name: field.metadata.get("json", field.name) for field in dataclasses.fields(report)}
    named = getattr(report, "__json__", tuple(fields))
    return {name: key for name in named if (key := fields.get(name, name)) is not None}


def emit_json(obj: object) -> None:
    """Print :func:`to_json` of ``obj`` on stdout."""
    click.echo(json.dumps(to_json(obj), indent=2))


def to_json(obj: object) -> Any:
    """Plain JSON values of a report: dicts with text keys, lists, text, numbers, booleans and None.

    Dataclasses become objects with the keys of :func:`json_keys`; those marked with :func:`document` begin with
    ``schema``. Enums become their values, paths text, sets sorted lists and
    numpy scalars numbers. JSON has neither NaN nor infinity: NaN becomes None, infinity the text ``inf`` or ``-inf``.
    Nor has it bytes of file names that are no UTF-8 (halves of surrogate pairs): they are written as ``\\udcff``.

    Raises:
        TypeError: ``obj`` holds a value of another type.
    """
    if isinstance(obj, Enum):
        return to_json(obj.value)
    if isinstance(obj, str):
        return encodable(obj)
    if obj is None or isinstance(obj, (bool, int)):
        return obj
    if isinstance(obj, float):
        return None if math.isnan(obj) else obj if math.isfinite(obj) else str(obj)
    if isinstance(obj, Path):
        return encodable(str(obj))
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        values = {key: to_json(getattr(obj, name)) for name, key in json_keys(type(obj)).items()}
        schema = type(obj).__dict__.get("__schema__")
        return values if schema is None else {"schema": schema, **values}
    if isinstance(obj, Mapping):
        return {encodable(str(key)): to_json(value) for key, value in obj.items()}
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
