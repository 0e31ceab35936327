"""What the command's streams let through, and what becomes of streams that take nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "sdort")
FULL = Path("/dev/full")
HOSTILE = "\x1b]0;pwned\x07\x1b[2J\u202e\x9b31m\r\u2028:warning:"


@pytest.mark.parametrize(
    ("args", "unbuffered"), [(("--version",), ""), (("--version",), "1"), (("cache",), ""), (("cache", "--json"), "")]
)
def test_a_result_that_cannot_be_written_is_an_exit_code(args: tuple[str, ...], unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open(FULL, "wb") as full:
        done = subprocess.run(
            [*COMMAND, *args], stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False
        )
    assert done.returncode == 7
    assert done.stderr.startswith("Error: cannot write the result to stdout: No space left on device\n")
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_gone_ends_the_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "cache"], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_messages_that_cannot_be_written_change_no_exit_code() -> None:
    with open(FULL, "wb") as full:
        done = subprocess.run([*COMMAND, "inspect", "none", "--json"], stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.returncode == 2
    assert b'"exit_code": 2' in done.stdout


def test_closed_descriptors_are_not_given_to_files() -> None:
    """A model's file would be number 2, where ONNX Runtime's C++ writes its log."""
    code = "from sdort.cli import streams; streams.install(); import os; os._exit(os.open('.', os.O_RDONLY))"
    shell = 'exec "$0" -c "$1" 0<&- 1>&- 2>&-'
    done = subprocess.run(["sh", "-c", shell, sys.executable, code], stdin=subprocess.PIPE, check=False)
    assert done.returncode > 2
    said = subprocess.run(
        ["sh", "-c", '"$0" -m sdort --version 1>&-', sys.executable], stderr=subprocess.PIPE, text=True, check=False
    )
    assert said.returncode == 7
    assert "cannot write the result to stdout: Bad file descriptor" in said.stderr


PRINTING = """\
import itertools, logging, sys, warnings, click
from sdort.cli import streams
streams.install()
from sdort.console import conclude, detail, print_error, say, set_verbosity, show, warn
from sdort.tables import Table
set_verbosity(1)
texts = (f"{sys.argv[1]}-{number}." for number in itertools.count())
for write in (say, detail, warn, print_error, show, conclude, print, click.echo, warnings.warn, sys.stderr.write,
              logging.warning, lambda text: click.echo(text.encode())):
    write(next(texts))
table = Table(next(texts), (next(texts), "b"))
table.add_row(next(texts) + "\\n", [next(texts), next(texts)])
show(table)
click.UsageError(next(texts)).show()
raise ValueError(next(texts))
"""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_way_of_printing_lets_control_characters_through(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", PRINTING, HOSTILE], capture_output=True, env=environment, check=False)
    shown = (done.stdout + done.stderr).decode()
    assert [number for number in range(19) if f":warning:-{number}." not in shown] == []  # rich has a picture for it
    assert "\\x1b]0;pwned\\x07\\x1b[2J\\u202e\\x9b31m\\r\\u2028:" in shown
    assert all(character.isprintable() or character == "\n" for character in shown), ascii(shown)
