"""``sdort doctor``: the machine as sdort sees it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdort.cli.from_options import options_of
from sdort.providers import AUTO, PROVIDER_NAMES
from sdort.providers.runtime_options import ExecutionOptions

if TYPE_CHECKING:
    from sdort.doctor.diagnosis import Diagnosis
    from sdort.tables import Table


@click.command(
    epilog="""\b
Examples:
  sdort doctor                   would anything work, and what is missing
  sdort doctor --provider rocm   what keeps it from working; its options
  sdort doctor --provider cuda --device-id 1 --json
  sdort doctor --devices         what providers compute on
  sdort doctor --measure         is it as fast as it should be, and why not
  sdort doctor --measure -o figures.json   the same, and a file to send
"""
)
@click.option(
    "--provider",
    type=click.Choice(PROVIDER_NAMES),
    show_default="any",
    help="Check what this execution provider needs.",
)
@options_of(ExecutionOptions, only=["device_id", "ep_libraries"])
@click.option(
    "--measure",
    is_flag=True,
    help="Time a step and a decode, and say what is wrong: about a minute, on the first run on a GPU more.",
)
@click.option("--devices", is_flag=True, help="List the devices that providers compute on, and what brings each.")
@click.option("--full", is_flag=True, help="With --measure: on a processor too, the sizes of a GPU. Takes long.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="With --measure: write its JSON here too."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    provider: str | None,
    device_id: int,
    ep_libraries: dict[str, str],
    measure: bool,
    devices: bool,
    full: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Examine this machine: ONNX Runtime, GPUs, drivers, caches.

    It also checks libraries, permissions, disk and memory. It really loads each provider, because ONNX Runtime lists
    providers that do not load. The exit code is 0 if sdort run would use --provider (or, without it, any provider), and
    6 if not.

    --measure runs the demo and a model of Stable Diffusion 1.5's size with random weights, and compares their times
    with what this machine should reach. Its JSON names no user, host or file.
    """
    if devices:
        _list_devices(provider, ep_libraries, as_json)
        return
    if measure:
        if ep_libraries:
            raise click.UsageError("--measure takes no --ep-library; the configuration's table [providers] may name it")
        from sdort.checkup.command import measure_machine
        from sdort.cli.checkup_page import refuse_output, report

        refuse_output(output)
        report(measure_machine(provider=provider or AUTO, device_id=device_id, full=full), output, as_json)
        return
    if full or output:
        raise click.UsageError(f"{'--full' if full else '--output'} needs --measure")
    from sdort.console import conclude, emit_json, show
    from sdort.doctor.command import diagnose
    from sdort.errors import ProviderError

    diagnosis = diagnose(provider=provider, device_id=device_id, ep_libraries=ep_libraries)
    if as_json:
        emit_json(diagnosis)
    else:
        show(_findings(diagnosis))
        if provider and diagnosis.providers[provider].options:
            show(_options(diagnosis, provider))
        if steps := _next_steps(diagnosis):
            show(f"\nNext steps\n{steps}")
        conclude(_verdict(diagnosis))
    if not diagnosis.works:
        raise click.exceptions.Exit(ProviderError.exit_code)


def _list_devices(provider: str | None, libraries: dict[str, str], as_json: bool) -> None:
    """Print the devices of a provider, or of all."""
    from dataclasses import replace

    from sdort.console import conclude, emit_json, show, warn
    from sdort.doctor.provider_devices import list_devices
    from sdort.errors import ProviderError
    from sdort.tables import Table, size_text

    found = list_devices(libraries)
    listed = [each for each in found.devices if provider in (None, each.provider)]
    if as_json and listed:
        emit_json(replace(found, devices=listed))
    else:
        table = Table("", ("provider", ">number", "kind", "vendor", "device", "version", ">memory", "brought by"))
        for each in listed:
            name, memory = each.provider or f"none ({each.execution_provider})", each.memory
            size = "" if memory is None else size_text(memory)
            table.add_row(name, str(each.number), each.kind, each.vendor, each.device, each.driver, size, each.source)
        for problem in found.problems:
            warn(problem)
        if listed:
            show(table)
            conclude("--provider, --device-kind and --device-id choose one of them.")
    if not listed:
        raise ProviderError(f"{provider or 'no provider'} finds no device here that it computes on")


def _findings(diagnosis: Diagnosis) -> Table:
    from sdort.tables import NO_BREAK, Table

    table = Table("", ("", "", "", ""))
    section = ""
    for finding in diagnosis.findings:
        title = finding.section if finding.section != section else ""
        section = finding.section
        table.add_row(title, finding.check.replace(" ", NO_BREAK), finding.status, finding.message)
    return table


def _next_steps(diagnosis: Diagnosis) -> str:
    """The next step for each finding, problems before warnings; commands stand on lines of their own."""
    findings = [finding for finding in diagnosis.findings if finding.next_step]
    findings.sort(key=lambda finding: finding.status != "problem")
    return "\n".join(f"  {finding.check}: {finding.next_step}" for finding in findings)


def _options(diagnosis: Diagnosis, provider: str) -> Table:
    from sdort.tables import Table

    status = diagnosis.providers[provider]
    # Of a plugin it is its name and version.
    owner = f"ONNX Runtime {status.options_of}" if status.options_of[:1].isdecimal() else status.options_of
    table = Table(f"--provider-option of {provider}, {owner}", ("name", "default"))
    for name, default in status.options.items():
        table.add_row(name, default)
    return table


def _verdict(diagnosis: Diagnosis) -> str:
    if diagnosis.provider:
        if diagnosis.works:
            return f"sdort run --provider {diagnosis.provider} works here."
        problems = [finding.message for finding in diagnosis.findings if finding.status == "problem"]
        because = f": {problems[0]}" if problems else ""
        return f"sdort run --provider {diagnosis.provider} does not work here{because}."
    loading = [name for name, status in diagnosis.providers.items() if status.loads]
    return f"Providers that work here: {', '.join(loading)}." if loading else "No provider works here."
