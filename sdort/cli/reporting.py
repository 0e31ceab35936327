"""The one place that turns an exception into a message on stderr and an exit code."""

from __future__ import annotations

import errno
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

import click

from sdort.cli.interruption import received
from sdort.errors import SIGNAL_WORDS, OutputError, SdortError, UsageError

SIGNALLED = 128  # and the signal's number, as shells report it

# Inputs' errors do not come here: who reads an input names it.
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


@contextmanager
def reporting(as_json: bool) -> Iterator[None]:
    """Run a command's parsing and body; whatever it raises ends in a message and an exit code.

    Args:
        as_json: print the error on stdout as well, as an object with ``error``, ``type`` and ``exit_code``.
    """
    try:
        yield
        if received():  # something swallowed the interrupt, and the command went on
            raise KeyboardInterrupt
    except (click.exceptions.Exit, click.Abort):
        raise  # click ends these itself
    except click.ClickException as error:
        if as_json:
            _print_json(UsageError(error.format_message()), error.format_message(), error.exit_code)
        raise  # click prints it, with the command's usage line
    except (Exception, KeyboardInterrupt) as raised:
        told = _in_words(raised)
        message, exit_code = _describe(told)
        _print_message(told, message)
        if as_json:
            with suppress(OSError):  # stdout may be what failed: a full disk, whose sentence is on stderr
                _print_json(told, message, exit_code)
        # Chained, so that a test that calls the command in its own process still sees where it came from.
        raise click.exceptions.Exit(exit_code) from raised


def _in_words(error: Exception | KeyboardInterrupt) -> BaseException:
    """The error of sdort for a failed import of somebody else's package; other errors as they are."""
    if not isinstance(error, ImportError):
        return error
    from sdort.machine.optional_packages import of_failed_import

    return of_failed_import(error) or error


def _describe(error: BaseException) -> tuple[str, int]:
    """The message to the user, and the exit code."""
    signum = received()
    if signum is not None:  # whatever became of it on its way: of an import that it ended, an ImportError
        return SIGNAL_WORDS[signal.Signals(signum)], SIGNALLED + signum
    if isinstance(error, SdortError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return SIGNAL_WORDS[signal.SIGINT], SIGNALLED + signal.SIGINT
    if isinstance(error, MemoryError):
        return "not enough memory", 1
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}", OutputError.exit_code if error.errno in _DISK_ERRORS else 1
    summary = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"this is a bug in sdort, please report it: {summary}\n  Run the command again with -v for the traceback.", 1


def _print_message(error: BaseException, message: str) -> None:
    from sdort import console

    interrupted = received() is not None or isinstance(error, KeyboardInterrupt)
    if console.verbosity() >= console.VERBOSE and not interrupted:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    with suppress(OSError) if interrupted else nullcontext():  # the terminal may have gone
        console.print_error(message)


def _print_json(error: BaseException, message: str, exit_code: int) -> None:
    from sdort.cli.error_report import ErrorReport
    from sdort.console import emit_json, to_json

    report = ErrorReport(message, type(error).__name__, exit_code)
    record: dict[str, object] = {}
    if isinstance(error, SdortError):
        report = replace(report, error=error.message, component=error.component, node=error.node, hint=error.hint)
        record = error.record
    emit_json({**to_json(report), **{name: value for name, value in record.items() if name != "schema"}})
