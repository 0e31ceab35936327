"""What commands print fits the terminal, and nothing of it is cut."""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from rich.console import Console, RenderableType
from support import upscalers

import sdort
from sdort import console, optimize
from sdort.cli import COMMANDS, cli
from sdort.cli.export import _table as export_table
from sdort.cli.ops import _operators as operators_table
from sdort.cli.sections import SectionedCommand
from sdort.errors import ProviderError
from sdort.exporter.manifest import ExportedComponent, ExportReport
from sdort.operator_library.library import Description, LibraryOperator, tuning_table
from sdort.tables import Table

if TYPE_CHECKING:
    from support.tiny_pipeline import Tiny

WIDTHS = (60, 80, 120)


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
    looked_at = {words.split()[0] for words in CHECKED}
    assert looked_at == set(COMMANDS) - {"serve"}  # prints lines of JSON until it is told to end
    assert ("tuning", "list") in ALL


SECTIONED = {names: command for names, command in ALL.items() if isinstance(command, SectionedCommand)}
MOST_LINES = 47
"""Of ``--help`` at 80 columns: less than two screens of 24 lines."""


def help_of(*words: str) -> str:
    shown = CliRunner().invoke(cli, [*words], terminal_width=80)
    assert shown.exit_code == 0
    return shown.output


def listed_options(shown: str) -> list[str]:
    """The options that a help lists below its first heading, by their long names."""
    lists = re.split(r"^\S.*:$", shown, maxsplit=1, flags=re.MULTILINE)[1]
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)", lists, re.MULTILINE)


@pytest.mark.parametrize("names", ALL, ids=" ".join)
def test_help_fits_80_columns_and_two_screens(names: tuple[str, ...]) -> None:
    lines = help_of(*names, "--help").splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert len(lines) <= MOST_LINES


@pytest.mark.parametrize("names", SECTIONED, ids=" ".join)
def test_help_all_fits_80_columns_and_shows_every_option(names: tuple[str, ...]) -> None:
    shown, command = help_of(*names, "--help-all"), SECTIONED[names]
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    starts = listed_options(shown)
    longest = (next(flag for flag in option.opts if flag.startswith("--")) for option in options)
    assert sorted(starts) == sorted([*longest, "--help"])


@pytest.mark.parametrize("names", SECTIONED, ids=" ".join)
def test_help_shows_the_common_options_and_counts_the_others(names: tuple[str, ...]) -> None:
    shown, command = help_of(*names, "--help"), SECTIONED[names]
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    starts = listed_options(shown)
    assert set(command.common) <= {option.name for option in options}
    assert len(starts) == len(command.common) + len(["--help-all", "--help"])
    assert f"{len(options) + len(['--help']) - len(starts)} more options" in shown
    assert f"{' '.join(names)} --help-all" in " ".join(shown.split())


def test_sections_of_help_name_options_that_exist() -> None:
    assert ("run",) in SECTIONED
    for names, command in SECTIONED.items():
        named = {option for options in command.sections.values() for option in options}
        assert named - {param.name for param in command.params} == set(), names


def test_there_is_one_style_of_tables() -> None:
    root = Path(sdort.__file__).parent
    others = [path.name for path in root.rglob("*.py") if "rich.table" in path.read_text()]
    assert others == []


@dataclass
class Printed:
    """What a command gave to :mod:`sdort.console`: results (tables and text) and messages."""

    results: list[RenderableType] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


def run(monkeypatch: pytest.MonkeyPatch, *words: object, code: int = 0) -> Printed:
    printed = Printed()
    monkeypatch.setattr(console, "show", printed.results.append)
    monkeypatch.setattr(console, "say", printed.messages.append)
    monkeypatch.setattr(console, "warn", printed.messages.append)
    result = CliRunner().invoke(cli, list(map(str, words)))
    assert result.exit_code == code, result.output
    return printed


def lines_of(item: RenderableType, width: int) -> list[str]:
    if isinstance(item, str):
        return console.wrap(item, width).split("\n")
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(item, markup=False, soft_wrap=True)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def is_too_long(line: str, width: int, is_text: bool) -> bool:
    """Longer than the terminal: but for commands to copy, and words such as paths that cannot be broken."""
    is_command = is_text and line.startswith("    ")
    return len(line) > width and not is_command and max(map(len, line.split())) <= width // 2


def lost(table: Table, lines: list[str]) -> list[str]:
    """Words of cells that are shown and are not in the lines."""
    hidden = () if console.verbosity() >= console.VERBOSE else table.details
    there = set(" ".join(lines).split())
    names = [header.removeprefix(">") for header in table.headers]
    cells = [
        cell for row in table.rows for name, cell in zip(names, row.cells, strict=True) if cell and name not in hidden
    ]
    return [word for cell in cells for word in cell.split() if word not in there]


def check(printed: Printed) -> None:
    for level, width in itertools.product((console.NORMAL, console.VERBOSE), WIDTHS):
        console.set_verbosity(level)
        for item in (*printed.results, *printed.messages):
            lines = lines_of(item, width)
            assert [line for line in lines if is_too_long(line, width, isinstance(item, str)) or "…" in line] == []
            assert not isinstance(item, Table) or lost(item, lines) == []


@pytest.fixture(scope="module")
def folders(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A pipeline, and what ``sdort optimize`` makes of it for the CPU."""
    fast = tmp_path_factory.mktemp("fast") / "fast"
    optimize(tiny.onnx, fast, provider="cpu")
    return {"{diffusers}": tiny.diffusers, "{model}": tiny.onnx, "{fast}": fast}


CHECKED = (
    "export {diffusers} {out} --dry-run",
    "fusions",
    "fusions attention",
    "inspect {model}",
    "inspect {fast} -v",
    "inspect --diff {model} {fast}",
    "inspect {fast} --provider cpu --placement",
    "doctor",
    "doctor --provider rocm",
    "tuning list",
    "tuning verify",
    "ops tune --show",
    "integrate comfyui {comfyui}",
    "cache",
    "cache list",
    "add {fast} quick",
    "list",
    "remove quick",
    "optimize {model} {out} --provider cpu --component text_encoder --explain",
    "run {fast} --provider cpu --prompt x --steps 1 --output {out}.png",
    "batch {fast} --provider cpu --prompts {prompts} --steps 1 --out {out}",
    "upscale {image} --model {upscaler} --provider cpu --output {out}.png",
    "warm {fast} --provider cpu --component text_encoder --size 64x64",
    "bench {fast} --provider cpu --baseline {model} --component text_encoder --warmup 0 --repeat 2 --size 64x64",
    "verify {fast} --against {model} --provider cpu --component text_encoder --no-torch --inputs random",
)
NO_TABLE = ("tuning", "run", "batch", "upscale", "integrate", "add", "remove")
"""No bundle is kept, images are lines, and a folder or a name is one."""


@pytest.mark.parametrize("words", CHECKED)
def test_what_a_command_prints_fits(
    words: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = words.split()[0]
    tuning_table().parent.mkdir(parents=True)
    tuning_table().write_text("gfx1100\tgroup_norm_silu f16 2x64x64x320 32\trows4 threads256\t123.4\n")
    sdort.add_model(folders["{fast}"], "quick")
    comfyui = tmp_path / "comfyui"
    for place in ("comfy", "custom_nodes"):
        (comfyui / place).mkdir(parents=True)
    for place in ("main.py", "nodes.py", "comfy/sd.py"):
        (comfyui / place).touch()
    image, upscaler = tmp_path / "image.png", tmp_path / "upscaler.safetensors"
    (tmp_path / "prompts.txt").write_text("x")
    Image.new("RGB", (16, 8)).save(image)
    upscalers.write_state(upscaler, upscalers.compact_state(np.random.default_rng(0)))
    places = folders | {"{out}": tmp_path / "out", "{comfyui}": comfyui, "{image}": image, "{upscaler}": upscaler}
    places["{prompts}"] = tmp_path / "prompts.txt"
    for key, path in places.items():
        words = words.replace(key, str(path))
    printed = run(monkeypatch, *words.split(), code=ProviderError.exit_code if words.endswith("rocm") else 0)
    check(printed)
    assert isinstance(printed.results[-1], str), "its last lines are a verdict"
    assert (name in NO_TABLE) != any(isinstance(result, Table) for result in printed.results)


def test_the_check_sees_what_does_not_fit() -> None:
    table = Table("", ("name", ">count"))
    table.add_row("a name of several words", "1,000")
    lines = lines_of(table, 80)
    assert lost(table, lines) == []
    assert lost(table, [line.replace("1,000", "1,0") for line in lines]) == ["1,000"]
    assert is_too_long("a line " * 12, 80, is_text=True)
    assert not is_too_long("    sdort " + "--option " * 12, 80, is_text=True)
    assert is_too_long("    sdort " + "--option " * 12, 80, is_text=False)
    with pytest.raises(AssertionError):
        check(Printed(["an unfinished…"]))


def sdort_on_a_terminal(width: int, *words: str, **variables: str) -> str:
    """What a process writes to a pseudo-terminal of that width, and to its stderr, which is the same one."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    command = [sys.executable, "-m", "sdort", *words]
    environment = {**os.environ, "TERM": "xterm-256color", **variables}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # Linux: nobody has the other end open any more
            while block := os.read(ours, 65536):
                written += block
    os.close(ours)
    assert process.returncode == 0, written
    return written.decode().replace("\r\n", "\n")


def test_a_terminal_gets_lines_of_its_width_and_colours_unless_told() -> None:
    shown = sdort_on_a_terminal(60, "doctor")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "\x1b" not in plain
    assert [line for line in plain.splitlines() if is_too_long(line, 60, is_text=True)] == []
    assert plain.splitlines()[-1] == "Providers that work here: cpu."
    assert "\x1b[1m" in shown
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", sdort_on_a_terminal(60, "doctor", NO_COLOR="1"))


def test_a_terminal_of_ascii_gets_every_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sdort", "ops", "tune", "--show"]
    table = tmp_path / "\u00e9" / "sdort" / "ops" / "tuning.tsv"
    table.parent.mkdir(parents=True)
    table.write_text("gfx1100\tbias f16\tr2\t3.5\n")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "XDG_CACHE_HOME": str(tmp_path / "\u00e9")}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    lines = done.stdout.decode("ascii").splitlines()
    assert set(lines[2]) == {"-"}
    assert lines[3].split() == ["gfx1100", "bias", "f16", "r2", "3.5"]
    assert lines[-1].endswith("\\xe9/sdort/ops/tuning.tsv")


@pytest.mark.parametrize("width", [30, *WIDTHS])
@pytest.mark.parametrize("description", ["denoising", "tracing text_encoder_2 (once per architecture)", "x" * 200])
def test_a_progress_bar_is_one_line_with_its_percent(description: str, width: int) -> None:
    text, numbers, bar = console.bar_layout(description, [" 42%", "0:00:12 left", "0:00:08"], width)
    line = " ".join([text, *["-" * bar] * (bar > 0), *numbers])
    assert len(line) <= width
    assert numbers[0] == " 42%"
    assert (text == description) == (len(description) + len("  42%") <= width)


def test_the_table_of_an_export_fits() -> None:
    parts = [
        ExportedComponent(name, "AClass", 10**9, 12_345, 3 * 10**9, traced, 123.4, (), ())
        for name, traced in (("text_encoder_2", True), ("unet", False))
    ]
    check(Printed([export_table(ExportReport(Path("out"), "owner/name", "APipeline", 23, None, parts))]))


def test_the_table_of_a_built_library_fits() -> None:
    operators = [
        LibraryOperator("com.microsoft", "SkipLayerNormalization", cpu=True, gpu=True, by_default_on_cuda=False),
        LibraryOperator("sdort", "RowsAttention", cpu=True, gpu=False, by_default_on_cuda=False),
    ]
    check(Printed([operators_table(Description(tuple(operators), ()))]))
