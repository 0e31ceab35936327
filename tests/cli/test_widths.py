"""What commands print fits the terminal, and nothing of it is cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import sdort
from sdort.cli import COMMANDS, cli
from sdort.cli.sections import SectionedCommand


def commands(command: click.Command, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and all below it, by the words that name them."""
    yield names, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, *names, name)


ALL = dict(commands(cli))


def test_all_commands_are_looked_at() -> None:
    assert {names[0] for names in ALL if names} == set(COMMANDS)
    assert ("tuning", "list") in ALL


@pytest.mark.parametrize("names", ALL, ids=" ".join)
def test_help_fits_80_columns(names: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*names, "--help"], terminal_width=80)
    assert shown.exit_code == 0
    assert [line for line in shown.output.splitlines() if len(line) > 80] == []


def test_sections_of_help_name_options_that_exist() -> None:
    sectioned = {names: command for names, command in ALL.items() if isinstance(command, SectionedCommand)}
    assert ("run",) in sectioned
    for names, command in sectioned.items():
        named = {option for options in command.sections.values() for option in options}
        assert named - {param.name for param in command.params} == set(), names


@pytest.mark.xfail(strict=True, reason="tables of rich are being replaced")
def test_there_is_one_style_of_tables() -> None:
    root = Path(sdort.__file__).parent
    others = [path.name for path in root.rglob("*.py") if "rich.table" in path.read_text()]
    assert others == []
