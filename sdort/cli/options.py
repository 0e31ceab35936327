"""Options that several commands share."""

from __future__ import annotations

import click

custom_ops_option = click.option(
    "--custom-ops",
    metavar="auto|on|off|PATH",
    default="auto",
    help="sdort's own operators (sdort ops build): auto registers them where they are built.",
)
