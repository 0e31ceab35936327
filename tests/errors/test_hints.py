"""Commands that messages name can be pasted: a shell reads them, and sdort has these commands and options."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import sdort
from sdort.cli import cli

PACKAGE = Path(sdort.__file__).parent
PLACE = "PLACE"
"""What stands for a value that a message fills in."""
_COMMAND = re.compile(r"\n    (?=\S)(.*)")
"""Messages put each command on a line of its own, indented by four spaces."""


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module, but its docstrings, by line."""
    left: list[ast.AST] = [ast.parse(path.read_text())]
    while left:
        node = left.pop()
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(_filled(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            left += ast.iter_child_nodes(node)


def _filled(part: ast.expr) -> str:
    return part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else PLACE


def commands() -> list[tuple[str, str]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in sorted(texts_of(path)):
            where = f"{path.relative_to(PACKAGE)}:{line}"
            found += [(where, command) for command in _COMMAND.findall(text)]
    return found


COMMANDS = commands()


def test_messages_have_commands() -> None:
    assert sum(command.startswith("sdort ") for _, command in COMMANDS) > 20


@pytest.mark.parametrize(("where", "command"), COMMANDS, ids=[f"{where} {text[:30]}" for where, text in COMMANDS])
def test_a_shell_reads_the_command(where: str, command: str) -> None:
    words = shlex.split(command)
    assert words, where
    if words[0] == "sdort":
        check(words[1:])


def check(words: list[str]) -> None:
    """Raise AssertionError where sdort has no such command or option."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-") and words[0] != PLACE:
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"there is no sdort command {words[0]}"
        command, words = found, words[1:]
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert given <= options, f"{command.name} has no {', '.join(sorted(given - options))}"


@pytest.mark.parametrize("wrong", ["sdort fly away", "sdort run fast --promt x", "it's no command", "echo 'x"])
def test_what_cannot_be_pasted_is_seen(wrong: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        test_a_shell_reads_the_command("", wrong)
