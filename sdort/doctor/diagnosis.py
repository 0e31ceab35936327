"""All checks, in order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.doctor.devices import device_findings, gpu_architectures
from sdort.doctor.finding import Finding
from sdort.doctor.software import Software, installed_software, software_findings
from sdort.doctor.storage import cache_findings, memory_finding, operator_findings
from sdort.errors import SdortError
from sdort.machine.gpus import Gpu, amd_gpus, nvidia_gpus
from sdort.machine.system import System
from sdort.ops.library import Description, built_library, describe
from sdort.providers import PROVIDERS


@dataclass(frozen=True)
class Diagnosis:
    """``works`` is whether the provider that was asked for would be used; without one, whether any would."""

    provider: str | None
    works: bool
    providers: dict[str, dict[str, Any]]
    """By our names: ``listed``, ``loads``, ``reason``, and the ``options`` that this release takes."""
    gpus: list[Gpu]
    findings: list[Finding]


def examine(wanted: str | None = None, device_id: int = 0) -> Diagnosis:
    """This machine, for a provider or for any."""
    library = built_library()
    try:
        description = describe(library) if library.is_file() else None
    except SdortError:  # built for another machine or cut off: as good as none
        description = None
    return diagnose(System(), installed_software(device_id), wanted, library, description)


def diagnose(
    system: System,
    software: Software,
    wanted: str | None = None,
    library: Path | None = None,
    description: Description | None = None,
) -> Diagnosis:
    """A machine and the software on it.

    Args:
        library: the custom operators, and what they say of themselves.
    """
    findings = [
        *software_findings(software, wanted),
        *device_findings(system, software, wanted),
        *operator_findings(library, description, gpu_architectures(system)),
        *cache_findings(system),
        memory_finding(system),
    ]
    providers = {name: _provider(name, software) for name in PROVIDERS}
    gpus = [*amd_gpus(system), *nvidia_gpus(system)]
    return Diagnosis(wanted, software.works(wanted), providers, gpus, findings)


def _provider(name: str, software: Software) -> dict[str, Any]:
    version = software.flavours[0].version if software.flavours else ""
    release, options = PROVIDERS[name].known_options(version)
    return {
        "listed": name in software.listed,
        "loads": software.works(name),
        "reason": software.refusals.get(name),
        "options_of": release,
        "options": {each: option.default for each, option in options.items() if not option.instead},
    }
