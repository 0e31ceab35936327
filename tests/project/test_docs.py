"""README and docs/ describe the program that is there, and all of it.

Every command and option is documented; every command line, option, path, module, test, environment variable and link
that a page names exists.
"""

from __future__ import annotations

import html
import importlib
import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tour_picture import STEPS, THEMES

from sdort import errors
from sdort.cli import COMMANDS, cli
from sdort.errors import SdortError

ROOT = Path(__file__).parents[2]
README, INDEX = ROOT / "README.md", ROOT / "docs" / "index.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "custom_ops").glob("*.md")),
    *sorted((ROOT / "sdort" / "demo").glob("*/README.md")),
]
TEXTS = {page: page.read_text() for page in PAGES}
MOST_LINES = 170
"""Of README.md: more belongs in docs/."""
SOURCES = ("sdort", "fusions", "custom_ops", "scripts", "tests", "docs")
"""Folders of the repository."""
FILES = {
    path.relative_to(ROOT).as_posix()
    for folder in SOURCES
    for path in (ROOT / folder).rglob("*")
    if "__pycache__" not in path.parts
}
ALSO_OPTIONS = {"--help", "--num-gpus"}  # the second is of ray start
# A file, and operators, one of them made up.
NOT_MODULES = {"sdort.json", "sdort.Swish", "sdort.BiasSplitGelu", "sdort.MultiHeadAttention"}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


SHELLS = {"", "sh", "bash", "console", "text"}
"""Languages of blocks whose lines a shell takes or a terminal shows."""


def shell_of(text: str) -> str:
    """The lines of blocks that are no program's."""
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return "\n".join(lines for language, lines in blocks if language in SHELLS)


def inline_of(text: str) -> list[str]:
    """What stands between backticks outside of blocks, on one line each."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


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
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
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


def options_of(name: str) -> list[click.Option]:
    return [option for option in command_named(name).params if isinstance(option, click.Option) and not option.hidden]


def spellings(option: click.Parameter) -> tuple[str, ...]:
    """``--graph`` and ``--no-graph``."""
    return (*option.opts, *option.secondary_opts)


COMMAND_OPTIONS = {flag for name in leaves() for option in options_of(name) for flag in spellings(option)}


def names(text: str, option: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text) is not None


@pytest.mark.parametrize("name", leaves())
def test_every_command_stands_in_the_docs(name: str) -> None:
    assert any(f"{line} ".startswith(f"sdort {name} ") for text in TEXTS.values() for line in examples_in(text))


@pytest.mark.parametrize("name", leaves())
def test_every_option_stands_in_the_docs(name: str) -> None:
    """On a page that names the command, in one of its spellings (``--graph``, or ``--no-graph``)."""
    told = "\n".join(text for text in TEXTS.values() if f"sdort {name.split()[0]}" in text)
    missing = [option.opts for option in options_of(name) if not any(names(told, flag) for flag in spellings(option))]
    assert missing == []


def examples_in(text: str) -> list[str]:
    return list(example_lines(shell_of(text)))


@each_page
def test_the_examples_of_a_page_parse(page: Path) -> None:
    for line in examples_in(TEXTS[page]):
        check_example(line)


@each_page
def test_the_commands_that_a_sentence_names_exist(page: Path) -> None:
    """Such as ``sdort bench --compare``, whose command has the option, and ``sdort ops tune fast``, which parses."""
    for code in inline_of(TEXTS[page]):
        if match := re.fullmatch(r"sdort ([a-z]+)(?: (.*))?", code):
            assert match[1] in COMMANDS, code
            command = command_named(match[1])
            subcommand = (match[2] or "").partition(" ")[0]
            if isinstance(command, click.Group) and subcommand:
                command = command_named(f"{match[1]} {subcommand}")
            known = {flag for option in command.params for flag in spellings(option)}
            assert set(re.findall(r"--[a-z][\w-]*", code)) <= known | ALSO_OPTIONS, code
            if not re.search(r" --[a-z][\w-]*$", code):  # an option's name, its value is left out
                check_example(code.partition(r" \|")[0])


def test_every_kind_of_block_is_read() -> None:
    """A block behind another language's too, and none of a sentence."""
    text = "```py\nsdort = 1\n```\nsdort run a 'b\n```bash\nsdort run c\n```\n- d\n  ```\n  sdort run e\n  ```\n"
    assert examples_in(text) == ["sdort run c", "sdort run e"]


@each_page
def test_the_scripts_that_a_page_calls_take_these_options(page: Path) -> None:
    for line in [*shell_of(TEXTS[page]).replace("\\\n", " ").splitlines(), *inline_of(TEXTS[page])]:
        if match := re.search(r"(?<![\w/])(scripts/\w+\.\w+)(.*)", line.partition(" #")[0]):
            # Alone in quotes where a script declares it, or among the names of shared arguments (scripts/measuring.py).
            declared = {name for text in re.findall(r'"((?:pipeline )?--[^"\n]*)"', (ROOT / match[1]).read_text())
                        for name in text.split()}  # fmt: skip
            assert {*re.findall(r"--[a-z][\w-]*", match[2])} <= declared


@each_page
def test_the_options_that_a_page_names_exist(page: Path) -> None:
    known = set(COMMAND_OPTIONS)
    for script in (ROOT / "scripts").glob("*.[ps][yh]"):
        known |= set(re.findall(r'"(--[a-z][\w-]*)"', script.read_text()))
    named = {option for code in inline_of(TEXTS[page]) for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", code)}
    assert named - known - ALSO_OPTIONS == set()


def exists(name: str) -> bool:
    """A file or folder by its path, which may begin below ``sdort/``."""
    return bool({name, f"sdort/{name}", f"sdort/{name}/__init__.py"} & FILES) or (ROOT / name).exists()


@each_page
def test_the_files_and_folders_that_a_page_names_exist(page: Path) -> None:
    text = TEXTS[page]
    named = {
        code.rstrip("/")
        for code in inline_of(text)
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)*(/|\.(py|sh|md|cpp|tsv))", code)
    }
    named |= {match.rstrip("/.") for match in re.findall(rf"(?<![\w/.~-])(?:{'|'.join(SOURCES)})/[\w./-]*", text)}
    assert {name for name in named if not exists(name)} == set()


def test_pages_name_files_at_all() -> None:
    assert {"scripts/demo.sh", "scripts/test.sh"} <= set(re.findall(r"scripts/\w+\.\w+", TEXTS[README]))


@each_page
def test_the_modules_that_a_page_names_exist(page: Path) -> None:
    for name in set(re.findall(r"(?<![\w/.-])sdort(?:\.[A-Za-z_]\w*)+", TEXTS[page])) - NOT_MODULES:
        resolve(name)


def resolve(name: str) -> object:
    """A module, or an attribute of one.

    Raises:
        AssertionError: there is no such thing.
    """
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            assert hasattr(thing, part), f"there is no {name}"
            thing = getattr(thing, part)
        return thing
    raise AssertionError(f"there is no {name}")


@each_page
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"(?<!\w)test_\w+(?:\.py)?", TEXTS[page]))
    if named:
        files = list((ROOT / "tests").rglob("test_*.py"))
        there = {path.name for path in files}
        functions = {name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text())}
        assert named - there - functions == set()


@each_page
def test_the_environment_variables_that_a_page_names_are_read(page: Path) -> None:
    named = set(re.findall(r"(?<!\w)SDORT_[A-Z_]+", TEXTS[page]))
    if named:
        sources = (name for name in FILES if re.search(r"\.(py|cpp|h|cmake)$", name))
        code = "\n".join((ROOT / name).read_text() for name in sources)
        assert {name for name in named if not names(code, name)} == set()


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links_of(page: Path) -> Iterator[tuple[Path, str]]:
    """The files that a page links to or shows, each with an anchor or an empty string."""
    text = re.sub(r"```.*?```", "", TEXTS[page], flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text):
        if not re.match(r"https?:", target):
            path, _, anchor = target.partition("#")
            yield Path(os.path.normpath(page.parent / path)) if path else page, anchor


@each_page
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for path, anchor in links_of(page):
        assert path.exists(), path
        assert not anchor or anchor in anchors(path), f"{path}#{anchor}"


@each_page
def test_every_page_is_linked_from_the_readme_or_the_index(page: Path) -> None:
    """Pages outside of docs/ from any page."""
    starts = (README, INDEX) if page.is_relative_to(ROOT / "docs") else PAGES
    assert page in {README} | {path for start in starts for path, _ in links_of(start)}


def test_every_word_of_the_glossary_is_linked_from_another_page() -> None:
    glossary = ROOT / "docs" / "guide" / "glossary.md"
    linked = {anchor for page in PAGES if page != glossary for path, anchor in links_of(page) if path == glossary}
    assert anchors(glossary) - {"glossary"} - linked == set()


def test_the_readme_is_short() -> None:
    assert len(TEXTS[README].splitlines()) <= MOST_LINES


def test_the_groups_examples_parse() -> None:
    lines = list(example_lines(cli.get_help(click.Context(cli))))
    assert len(lines) >= 4
    for line in lines:
        check_example(line)


def test_the_picture_of_the_tour_shows_the_commands_of_its_script() -> None:
    """``scripts/tour_picture.py`` draws it again."""
    for theme in THEMES:
        picture = html.unescape((ROOT / "docs" / "images" / f"tour-{theme}.svg").read_text()).replace("\xa0", " ")
        shown = [line.strip() for line in re.findall(r"<text [^>]*>(.*?)</text>", picture)]
        for step in STEPS:
            for line in step.command.split("\n"):
                assert line.strip() in {text.removeprefix("$ ") for text in shown}, line
            for command in step.command.replace("\\\n", " ").split(" && "):
                check_example(command)


def test_the_fusion_that_a_page_shows_is_the_one_in_the_tree() -> None:
    shown = [
        pair
        for text in TEXTS.values()
        for pair in re.findall(r"This is\s`(fusions/\w+\.py)`:\n+```python\n(.+?)```", text, re.DOTALL)
    ]
    assert shown
    for name, code in shown:
        assert code in (ROOT / name).read_text(), name


def test_the_exit_codes_of_the_docs_are_the_programs() -> None:
    text = (ROOT / "docs" / "guide" / "exit-codes.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.+?) \|", text, re.MULTILINE))
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, SdortError)]
    assert {int(code) for code in rows} == {0, 129, 130, 141, 143} | {c.exit_code for c in classes}


SCRIPTS = {
    path: text
    for path in sorted((ROOT / "scripts").glob("*.py"))
    if re.search(r"ArgumentParser\(|= parse_check\(", text := path.read_text()) and "__main__" in text
}
GENERATING = (ROOT / "scripts" / "generated_files.py").read_text()
"""The arguments of some of them."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_shows_its_help(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its imports and arguments are there, and so are the options that its text names."""
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert end.value.code == 0
    usage, _, text = capsys.readouterr().out.partition("\n\n")
    known = set(re.findall(r'"(--[a-z][\w-]*)"', SCRIPTS[script] + GENERATING)) | COMMAND_OPTIONS | ALSO_OPTIONS
    assert usage.startswith(f"usage: {script.name}")
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) <= known


def test_a_docstring_begins_with_a_noun_or_a_verb() -> None:
    """A reader looks for the thing, not for a question."""
    sources = [path for folder in ("sdort", "fusions") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(sources) > 400
    asking = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in sources
        for text in re.findall(r'^ *"""(What .*)', path.read_text(), re.MULTILINE)
    ]
    assert asking == []
