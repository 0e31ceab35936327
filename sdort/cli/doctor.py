"""``sdort doctor``: the machine as sdort sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sdort.providers import NAMES

if TYPE_CHECKING:
    from rich.table import Table

    from sdort.doctor.diagnosis import Diagnosis

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(
    epilog="""\b
Examples:
  sdort doctor                       would anything work, and what is missing
  sdort doctor --provider rocm       what keeps this one from working; its options
  sdort doctor --provider cuda --device-id 1 --json
"""
)
@click.option(
    "--provider",
    type=click.Choice(NAMES),
    show_default="any",
    help="Look at what this execution provider needs.",
)
@click.option("--device-id", type=click.IntRange(0), default=0, help="Which GPU.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(provider: str | None, device_id: int, as_json: bool) -> None:
    """Examine this machine: ONNX Runtime, GPUs, drivers, caches.

    Libraries, permissions, disk and memory too. Providers are loaded for real, as their being listed tells little.
    The exit code is 0 if --provider (without it: any provider) would be used by sdort run, else 6.
    """
    from sdort.console import emit_json, show
    from sdort.doctor.diagnosis import examine
    from sdort.errors import ProviderError

    found = examine(provider, device_id)
    if as_json:
        emit_json(found)
    else:
        show(_findings(found))
        if provider and found.providers[provider]["options"]:
            show(_options(found, provider))
        show(_verdict(found))
    if not found.works:
        raise click.exceptions.Exit(ProviderError.exit_code)


def _findings(found: Diagnosis) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("", "", "", "found", "next step", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    section = ""
    for each in found.findings:
        new = each.section if each.section != section else ""
        section = each.section
        status = Text(each.status, style=_COLOURS[each.status])
        # As text: brackets, as in sdort[rocm], would be taken for markup.
        table.add_row(new, each.check, status, Text(each.message), Text(each.next_step))
    return table


def _options(found: Diagnosis, provider: str) -> Table:
    from rich import box
    from rich.table import Table

    about = found.providers[provider]
    title = f"\n--provider-option of {provider}, ONNX Runtime {about['options_of']}"
    table = Table("name", "default", title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for name, default in about["options"].items():
        table.add_row(name, default)
    return table


def _verdict(found: Diagnosis) -> str:
    if found.provider:
        return f"\nsdort run --provider {found.provider} {'works' if found.works else 'does not work'} here."
    loading = [name for name, about in found.providers.items() if about["loads"]]
    return f"\nProviders that work here: {', '.join(loading)}." if loading else "\nNo provider works here."
