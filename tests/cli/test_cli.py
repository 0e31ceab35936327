"""The command group: what it promises for every command, whatever the command does."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import sdort
from sdort import console
from sdort.cli import COMMANDS, cli
from sdort.errors import (
    BadModelError,
    MissedFusionError,
    OutputError,
    ParityError,
    ProviderError,
    SdortError,
    UsageError,
)

# Importing any of these costs more than all of `sdort --help` may take.
HEAVY = {"diffusers", "numpy", "onnx", "onnx_graphsurgeon", "onnxruntime", "rich", "torch", "transformers"} | {
    "importlib.metadata"  # with email and zipfile sixty modules, a third of what --help takes without it
}


@pytest.fixture
def run_failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs ``sdort inspect`` with a body that raises the given exception."""

    def run(error: BaseException, *args: str) -> Result:
        @click.command()
        @click.option("--json", "as_json", is_flag=True)
        def command(as_json: bool) -> None:
            raise error

        monkeypatch.setattr("sdort.cli.inspect.command", command)
        monkeypatch.setattr(cli, "commands", {})
        return CliRunner().invoke(cli, args or ["inspect"])

    return run


def imported_by(*args: str) -> set[str]:
    """The modules that ``sdort ARGS`` imports, in a process of its own."""
    code = (
        "import sys\n"
        "from sdort.cli import cli\n"
        "try:\n    cli(sys.argv[1:], prog_name='sdort')\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    assert "Usage: sdort" in result.stdout
    return set(result.stderr.split())


def test_help_imports_nothing_heavy() -> None:
    assert imported_by("--help") & HEAVY == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_help_imports_no_library(name: str) -> None:
    assert imported_by(name, "--help") & HEAVY <= {"rich"}


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    listed = result.output.partition("Commands:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in listed.splitlines() if line[2] != " "] == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_of_a_command_what_its_own_help_begins_with(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert COMMANDS[name] == command.get_short_help_str(limit=200)


def test_version() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output == f"sdort {sdort.__version__}\n"


def test_runs_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "sdort", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"sdort {sdort.__version__}\n"


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["optimise", "--json"])
    assert result.exit_code == 2
    assert "optimise" in result.stderr


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (SdortError, 1),
        (UsageError, 2),
        (BadModelError, 3),
        (MissedFusionError, 4),
        (ParityError, 5),
        (ProviderError, 6),
        (OutputError, 7),
    ],
)
def test_an_error_is_a_sentence_and_its_exit_code(
    run_failing: Callable[..., Result], error: type[SdortError], exit_code: int
) -> None:
    result = run_failing(error("it is broken", component="unet", node="/conv_in", hint="Mend it."))
    assert result.exit_code == exit_code
    assert result.stderr == "Error: component 'unet', node '/conv_in': it is broken\n  Mend it.\n"
    assert result.stdout == ""


def test_an_error_is_json_too(run_failing: Callable[..., Result]) -> None:
    result = run_failing(BadModelError("it is broken", component="unet", hint="Mend it."), "inspect", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout) == {
        "schema": "sdort-error-1",
        "error": "it is broken",
        "type": "BadModelError",
        "exit_code": 3,
        "component": "unet",
        "node": None,
        "hint": "Mend it.",
    }
    assert result.stderr.startswith("Error: ")


def test_a_usage_error_is_json_too(run_failing: Callable[..., Result]) -> None:
    result = run_failing(AssertionError("the body must not run"), "inspect", "--json", "--colour")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["exit_code"], report["type"]) == (2, 2, "UsageError")
    assert "--colour" in report["error"]
    assert "Usage: " in result.stderr


def test_an_interrupt_exits_130(run_failing: Callable[..., Result]) -> None:
    result = run_failing(KeyboardInterrupt())
    assert (result.exit_code, result.stderr) == (130, "Error: interrupted\n")


@pytest.mark.parametrize("args", [(), ("-v", "inspect"), ("inspect", "-v"), ("inspect", "--verbose")])
def test_an_unexpected_error_is_called_a_bug(run_failing: Callable[..., Result], args: tuple[str, ...]) -> None:
    result = run_failing(ZeroDivisionError("division by zero"), *args)
    assert result.exit_code == 1
    assert "a bug in sdort" in result.stderr
    assert "ZeroDivisionError: division by zero" in result.stderr
    assert ("Traceback" in result.stderr) == bool(args)


@pytest.mark.parametrize(
    ("number", "exit_code"), [(errno.ENOSPC, 7), (errno.EROFS, 7), (errno.EIO, 7), (errno.EACCES, 1), (errno.EPIPE, 1)]
)
def test_the_systems_errors_are_no_bugs(run_failing: Callable[..., Result], number: int, exit_code: int) -> None:
    result = run_failing(OSError(number, os.strerror(number), "out/model.onnx.data"))
    assert result.exit_code == exit_code
    assert result.stderr == f"Error: out/model.onnx.data: {os.strerror(number)}\n"


@pytest.mark.parametrize(
    ("args", "level"),
    [
        (["inspect"], console.NORMAL),
        (["-v", "inspect"], console.VERBOSE),
        (["inspect", "-v"], console.VERBOSE),
        (["-q", "inspect"], console.QUIET),
        (["inspect", "--quiet"], console.QUIET),
    ],
)
def test_verbosity_is_set_before_and_after_the_command(
    monkeypatch: pytest.MonkeyPatch, args: list[str], level: int
) -> None:
    levels = []
    monkeypatch.setattr(
        "sdort.cli.inspect.command", click.Command("inspect", callback=lambda: levels.append(console.verbosity()))
    )
    monkeypatch.setattr(cli, "commands", {})
    assert CliRunner().invoke(cli, args).exit_code == 0
    assert levels == [level]


def test_shell_completion_knows_the_commands() -> None:
    environment = {**os.environ, "_SDORT_COMPLETE": "bash_complete", "COMP_WORDS": "sdort ins", "COMP_CWORD": "1"}
    code = "from sdort.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert result.stdout.split() == ["plain,inspect"]


@pytest.mark.parametrize(
    ("level", "heard"),
    [
        (console.QUIET, ["warning: cold"]),
        (console.NORMAL, ["a [bracket]", "warning: cold"]),
        (console.VERBOSE, ["a [bracket]", "more", "warning: cold"]),
    ],
)
def test_what_is_said_at_each_verbosity(capsys: pytest.CaptureFixture[str], level: int, heard: list[str]) -> None:
    console.set_verbosity(level)
    console.say("a [bracket]")
    console.detail("more")
    console.warn("cold")
    captured = capsys.readouterr()
    assert captured.err.splitlines() == heard
    assert captured.out == ""


def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Makes the console believe in a terminal; what it shows goes to the returned stream."""
    screen = io.StringIO()
    monkeypatch.setattr(
        console, "console", Console(file=screen, force_terminal=True, force_interactive=True, width=100)
    )
    return screen


def test_progress_is_shown_on_a_terminal_also_nested(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with console.progress("writing [unet]", total=4) as advance:
        advance(4)
        with console.progress("hashing") as inner:
            inner(1)
    assert "writing [unet]" in screen.getvalue()
    assert "100%" in screen.getvalue()
    assert "hashing" in screen.getvalue()


def test_progress_asks_for_its_text_and_numbers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    steps = ["step 1 of 2"]
    with console.progress(lambda: f"denoising {len(steps)}", total=2, numbers=lambda: [steps[-1], "3.00 it/s"]):
        steps.append("step 2 of 2")
    assert "step 2 of 2 3.00 it/s" in screen.getvalue()
    assert "denoising 2" in screen.getvalue()
    assert "%" not in screen.getvalue()


def test_progress_is_silent_under_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    console.set_verbosity(console.QUIET)
    with console.progress("writing", total=4) as advance:
        advance(4)
    assert screen.getvalue() == ""


def test_progress_is_silent_when_not_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("writing", total=4) as advance:
        advance(4)
    assert capsys.readouterr() == ("", "")


def test_json_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclasses.dataclass
    class Row:
        path: Path
        values: tuple[Any, ...]

    console.emit_json({"row": Row(Path("a/b"), (np.float32(0.5), np.int64(3), float("nan"), np.float32("inf"), None))})
    assert json.loads(capsys.readouterr().out) == {"row": {"path": "a/b", "values": [0.5, 3, None, "inf", None]}}


def test_json_of_a_report_has_the_names_that_its_fields_ask_for() -> None:
    class Colour(Enum):
        RED = "red"

    @dataclasses.dataclass
    class Report:
        within: float = dataclasses.field(metadata={"json": "with"})
        pixels: object = dataclasses.field(metadata={"json": None})
        colour: Colour = Colour.RED
        names: frozenset[str] = frozenset("ba")
        by_step: Mapping[float, tuple[bool, ...]] = dataclasses.field(default_factory=lambda: {0.5: (True,)})

    plain = {"with": "-inf", "colour": "red", "names": ["a", "b"], "by_step": {"0.5": [True]}}
    assert console.to_json([Report(-math.inf, object())]) == [plain]
    with pytest.raises(TypeError, match="object has no JSON"):
        console.to_json(object())
