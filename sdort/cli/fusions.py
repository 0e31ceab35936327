"""``sdort fusions``: the fusions that sdort optimize applies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from sdort.cli.completions import complete_fusions

if TYPE_CHECKING:
    from sdort.optimizer.fusion_list import FusionDescription, FusionList
    from sdort.tables import Table

_TEXT_WIDTH = 72
"""Columns of ONNX text, before its indentation."""
_EPILOG = """\b
Examples:
  sdort fusions                           all of them
  sdort fusions attention packed_qkv      what these do, where, and where not
  sdort optimize model fast --disable attention
  sdort optimize model fast --explain attention
"""


@click.command(epilog=_EPILOG)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_fusions)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(names: tuple[str, ...], as_json: bool) -> None:
    """List and describe what sdort optimize fuses.

    With names, it shows for each fusion: the nodes before and after as ONNX text (-v shows every form), the providers
    that it is for, the reasons why it leaves a place as it is, and how to disable it.
    """
    from sdort.console import emit_json, show
    from sdort.optimizer.fusion_list import list_fusions

    found = list_fusions(names)
    if as_json:
        emit_json(found)
    elif names:
        for fusion in found.fusions:
            _describe(fusion)
    else:
        for table in _tables(found):
            show(table)
        show("\nDescribe one, or leave it out:\n    sdort fusions NAME\n    sdort optimize IN OUT --disable NAME")


def _tables(found: FusionList) -> list[Table]:
    from sdort.optimizer.fusion_list import STAGES
    from sdort.providers import PROVIDER_NAMES
    from sdort.tables import Table

    tables = []
    for stage, purpose in STAGES.items():
        table = Table(f"{stage}: {purpose}", ("fusion", "replaces", "makes", "for"))
        for fusion in found.fusions:
            if fusion.stage == stage:
                providers = [name for name in PROVIDER_NAMES if fusion.is_on(name)]
                shown = "all" if len(providers) == len(PROVIDER_NAMES) else ", ".join(providers)
                table.add_row(fusion.name, _short(fusion.replaces), _short(fusion.makes), shown)
        tables.append(table)
    steps = Table("no fusions, but --disable takes them too", ("step", "leaves out"))
    for name, words in found.steps.items():
        steps.add_row(name, words)
    return [*tables, steps]


def _short(operators: list[str]) -> str:
    """Operators without ONNX Runtime's domain."""
    return ", ".join(dict.fromkeys(name.removeprefix("com.microsoft.") for name in operators))


def _describe(fusion: FusionDescription) -> None:
    """A fusion's page."""
    from sdort.console import VERBOSE, show, verbosity
    from sdort.optimizer.fusion_list import STAGES
    from sdort.tables import Table

    forms = len(fusion.before) if verbosity() >= VERBOSE else 1
    show(f"\n{fusion.name}\n{_joined(fusion.description)}\n")
    show(f"Stage {fusion.stage}: {STAGES[fusion.stage]}.")
    must = "is an error, unless it is listed below" if fusion.must_fuse else "is no error"
    show(f"Each {fusion.anchor} is a place for it; one that is left {must}.")
    for before, after in list(zip(fusion.before, fusion.after, strict=True))[:forms]:
        show(f"\nReplaces\n{_indented(before)}\nby\n{_indented(after)}")
    if forms < len(fusion.before):
        more = len(fusion.before) - forms
        show(f"({more} more form{'s' * (more > 1)}: -v)")
    if fusion.refusals:
        show("\nLeaves a place that matches where\n" + "\n".join(f"  {reason}" for reason in fusion.refusals))
    table = Table("Applied", ("provider", "applied"))
    for provider, state in fusion.providers.items():
        table.add_row(provider, state)
    show(table)
    show(f"\nLeave it out:\n    sdort optimize IN OUT --disable {fusion.name}")


def _joined(text: str) -> str:
    """Each paragraph on one line, but for lines that are indented."""
    return re.sub(r"(?<!\n)\n(?![\n ])", " ", text)


def _indented(text: str) -> str:
    """ONNX text with four spaces before it; long lines are broken, which means nothing to ONNX."""
    import textwrap

    lines = [textwrap.wrap(line.strip(), _TEXT_WIDTH - 4, break_on_hyphens=False) for line in text.splitlines()]
    deeper = ["" if i == 0 or line == ["}"] else "    " for i, line in enumerate(lines)]
    return "\n".join(f"    {start}{part}" for start, parts in zip(deeper, lines, strict=True) for part in parts)
