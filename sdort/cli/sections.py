"""Help in sections, for commands with many options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

RUNTIME = {
    "Where and how it runs": (
        "provider", "tuning", "graph", "fallback", "device_id", "provider_options", "split",
        "custom_ops", "check",
    )
}  # fmt: skip
"""The section of :func:`sdort.cli.options.runtime_options`."""

DECODING = {"Decoding": ("vae_tiling", "vae_slicing")}
"""The section of :func:`sdort.cli.options.decoding_options`."""


class SectionedCommand(click.Command):
    """A command whose help lists options under headings.

    Args:
        sections: heading -> option names as in the function's arguments, the most used first. What no section names
            stands under "Options", last.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each section."""
        records = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                records[param.name or ""] = record
        named = {name for names in self.sections.values() for name in names}
        rest = {"Options": [name for name in records if name not in named]}
        for title, names in {**self.sections, **rest}.items():
            lines = [records[name] for name in names if name in records]
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
