"""Help of commands with many options: the common options first, all of them in sections with ``--help-all``."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

HELP_ALL = "--help-all"
_SHORT_COLUMN = 27
"""Width of the names of common options, in characters: most texts then fit one line of 80 columns."""
_SHOWS_ALL = "sdort.cli.sections.shows_all"
"""Key of the context's ``meta``: whether the help shows every option."""


class SectionedCommand(click.Command):
    """A command with two levels of help.

    ``--help`` shows the common options, each with the first sentence of its text. ``--help-all`` shows every option
    under the heading of its section.

    Args:
        sections: heading -> option names as in the function's arguments, the most used first. Options that no section
            names stand under "Options", last.
        common: names of the options that ``--help`` shows, the most used first.
        details: text that ``--help-all`` shows below the epilog.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Sequence[str]],
        common: Sequence[str],
        details: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections, self.common, self.details = sections, common, details
        self.params.append(_help_all_option())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the common options, or the options of each section."""
        params = [param for param in self.get_params(ctx) if isinstance(param, click.Option) and not param.hidden]
        options = {option.name or "": option for option in params}
        if _SHOWS_ALL in ctx.meta:
            for title, names in self._headings(options):
                _write(title, [options[name].get_help_record(ctx) for name in names], formatter)
            return
        common = [name for name in (*self.common, "help_all", *_help_names(options)) if name in options]
        records = [_short_record(options[name], ctx) for name in common]
        _write("Common options", records, formatter, column=_SHORT_COLUMN)
        topics = [title for title, names in self._headings(options) if names and not {*names} & {*common}]
        formatter.write_paragraph()
        formatter.write_text(_more(ctx, len(options) - len(common), topics))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples and, with ``--help-all``, the details."""
        super().format_epilog(ctx, formatter)
        if self.details and _SHOWS_ALL in ctx.meta:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(self.details)

    def _headings(self, options: Mapping[str, click.Option]) -> Iterator[tuple[str, list[str]]]:
        named = {name for names in self.sections.values() for name in names}
        rest = {"Options": [name for name in options if name not in named]}
        for title, names in {**self.sections, **rest}.items():
            yield title, [name for name in names if name in options]


def _help_all_option() -> click.Option:
    return click.Option(
        [HELP_ALL], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help="Show every option."
    )


def _show_all(ctx: click.Context, option: click.Parameter, is_set: bool) -> None:
    if is_set and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _help_names(options: Mapping[str, click.Option]) -> list[str]:
    return [name for name, option in options.items() if "--help" in option.opts]


def _short_record(option: click.Option, ctx: click.Context) -> tuple[str, str] | None:
    """The option with the first sentence of its text, and its default."""
    short = copy.copy(option)
    short.help = first_sentence(option.help or "")
    if isinstance(option.type, click.IntRange | click.FloatRange):
        short.type = click.STRING  # the range is a detail
        short.metavar = option.make_metavar(ctx)
    return short.get_help_record(ctx)


def first_sentence(text: str) -> str:
    """The text up to the first full stop; ``...`` is none."""
    return re.split(r"(?<=[^.]\.)\s", text, maxsplit=1)[0]


def _more(ctx: click.Context, count: int, headings: Sequence[str]) -> str:
    topics = [heading[0].lower() + heading[1:] if heading[1].islower() else heading for heading in headings]
    about = f", also for {', '.join(topics)}" if topics else ""
    return f"{count} more options{about}: {ctx.command_path} {HELP_ALL}"


def _write(
    title: str, records: Sequence[tuple[str, str] | None], formatter: click.HelpFormatter, column: int = 30
) -> None:
    """Write a section; names longer than ``column`` characters stand on lines of their own."""
    lines = [record for record in records if record is not None]
    if lines:
        with formatter.section(title):
            formatter.write_dl(lines, col_max=column)
