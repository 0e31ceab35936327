"""The documentation speaks of the program that is there: commands, options, files, exit codes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sdort import errors
from sdort.cli import COMMANDS, cli
from sdort.errors import SdortError

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
README_SHELL = "\n".join(re.findall(r"```sh\n(.+?)```", README, re.DOTALL))


def command_named(name: str) -> click.Command:
    """``optimize``, or ``ops build`` of a group."""
    command: click.Command | None = cli
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    return command


def leaves() -> list[str]:
    """Every command that does something; a group's are named with the group."""
    names = []
    for name in COMMANDS:
        command = command_named(name)
        under = command.list_commands(click.Context(command)) if isinstance(command, click.Group) else [""]
        names += [f"{name} {sub}".strip() for sub in under]
    return names


def help_of(name: str) -> str:
    return command_named(name).get_help(click.Context(command_named(name), info_name=f"sdort {name}"))


def example_lines(text: str) -> Iterator[str]:
    """Lines such as ``sdort run model --prompt ...``; a remark follows after two spaces or a #."""
    for line in text.replace("\\\n", " ").splitlines():
        if match := re.match(r"\s*(?:\$ )?(sdort [a-z]+ .+)", line):
            yield re.split(r"\s{2,}|\s#", match.group(1).strip())[0]


def check_example(line: str) -> None:
    """The command exists, and takes these options and this many arguments."""
    _, name, *words = shlex.split(line)
    assert name in COMMANDS, f"no such command: {line}"
    command = command_named(name)
    if isinstance(command, click.Group):
        name, words = f"{name} {words[0]}", words[1:]
        command = command_named(name)
    context = click.Context(command, info_name=name)
    _, left, _ = command.make_parser(context).parse_args(words)
    assert not left, f"too many arguments: {line}"


@pytest.mark.parametrize("name", COMMANDS)  # a group shows its commands' examples
def test_help_has_a_summary_and_an_example_that_parses(name: str) -> None:
    assert not command_named(name).get_short_help_str(limit=68).endswith("..."), "sdort --help would cut the summary"
    text = help_of(name)
    examples = [line for line in example_lines(text) if line.startswith(f"sdort {name} ")]
    assert examples, f"sdort {name} --help shows no example"
    for example in examples:
        check_example(example)


@pytest.mark.parametrize("name", leaves())
def test_every_option_is_explained(name: str) -> None:
    options = [option for option in command_named(name).params if isinstance(option, click.Option)]
    assert [option.name for option in options if not option.help and not option.hidden] == []


@pytest.mark.parametrize("name", leaves())
def test_every_command_prints_json_if_asked(name: str) -> None:
    assert "--json" in {flag for option in command_named(name).params for flag in option.opts}


@pytest.mark.parametrize("name", leaves())
def test_every_command_stands_in_the_readme(name: str) -> None:
    assert any(f"{line} ".startswith(f"sdort {name} ") for line in example_lines(README_SHELL))


def test_the_readmes_examples_parse() -> None:
    for line in example_lines(README_SHELL):
        check_example(line)


def test_the_groups_examples_parse() -> None:
    lines = list(example_lines(cli.get_help(click.Context(cli))))
    assert len(lines) >= 4
    for line in lines:
        check_example(line)


def test_the_files_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"`([\w.-]+/[\w./-]*)`", README))
    named |= set(re.findall(r"\]\(((?!https?:|#)[^)]+)\)", README)) | set(re.findall(r"scripts/\w+\.\w+", README))
    assert {"scripts/demo.sh", "scripts/test.sh"} <= named
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_the_fusion_that_the_readme_shows_is_the_one_in_the_tree() -> None:
    (shown,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    (name,) = re.findall(r"This is `(fusions/\w+\.py)`", README)
    assert shown in (ROOT / name).read_text()


def test_the_readmes_exit_codes_are_the_programs() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.+?) \|", README, re.MULTILINE))
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, SdortError)]
    assert {int(code) for code in rows} == {0, 130} | {c.exit_code for c in classes}
