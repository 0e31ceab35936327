"""``sdort doctor``: the machine as sdort sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sdort.providers import PROVIDER_NAMES

if TYPE_CHECKING:
    from rich.table import Table

    from sdort.doctor.diagnosis import Diagnosis

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(
    epilog="""\b
Examples:
  sdort doctor                   would anything work, and what is missing
  sdort doctor --provider rocm   what keeps it from working; its options
  sdort doctor --provider cuda --device-id 1 --json
"""
)
@click.option(
    "--provider",
    type=click.Choice(PROVIDER_NAMES),
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
    from sdort.doctor.command import diagnose
    from sdort.errors import ProviderError

    diagnosis = diagnose(provider=provider, device_id=device_id)
    if as_json:
        emit_json(diagnosis)
    else:
        show(_findings(diagnosis))
        if provider and diagnosis.providers[provider].options:
            show(_options(diagnosis, provider))
        show(_verdict(diagnosis))
    if not diagnosis.works:
        raise click.exceptions.Exit(ProviderError.exit_code)


def _findings(diagnosis: Diagnosis) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("", "", "", "found", "next step", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    section = ""
    for finding in diagnosis.findings:
        title = finding.section if finding.section != section else ""
        section = finding.section
        status = Text(finding.status, style=_COLOURS[finding.status])
        # As text: brackets, as in sdort[rocm], would be taken for markup.
        table.add_row(title, finding.check, status, Text(finding.message), Text(finding.next_step))
    return table


def _options(diagnosis: Diagnosis, provider: str) -> Table:
    from rich import box
    from rich.table import Table

    status = diagnosis.providers[provider]
    title = f"\n--provider-option of {provider}, ONNX Runtime {status.options_of}"
    table = Table("name", "default", title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for name, default in status.options.items():
        table.add_row(name, default)
    return table


def _verdict(diagnosis: Diagnosis) -> str:
    if diagnosis.provider:
        works = "works" if diagnosis.works else "does not work"
        return f"\nsdort run --provider {diagnosis.provider} {works} here."
    loading = [name for name, status in diagnosis.providers.items() if status.loads]
    return f"\nProviders that work here: {', '.join(loading)}." if loading else "\nNo provider works here."
