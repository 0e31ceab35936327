"""Help in sections, for commands with many options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import click


class SectionedCommand(click.Command):
    """A command whose help lists options under headings.

    Subclasses name them in ``sections``: heading -> option names as in the function's arguments. What no section names
    stands under "Options".
    """

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each section."""
        named = {name: title for title, names in self.sections.items() for name in names}
        records: dict[str, list[tuple[str, str]]] = {title: [] for title in [*self.sections, "Options"]}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                records[named.get(param.name or "", "Options")].append(record)
        for title, lines in records.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
