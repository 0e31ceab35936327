"""All checks, in order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sdort.console import document
from sdort.doctor.devices import device_findings, gpu_architectures
from sdort.doctor.finding import Finding
from sdort.doctor.software import Software, software_findings
from sdort.doctor.storage import cache_findings, memory_finding, operator_findings
from sdort.errors import SdortError
from sdort.machine.gpus import Gpu, amd_gpus, nvidia_gpus
from sdort.machine.system import System
from sdort.operator_library.library import Description
from sdort.providers import PROVIDERS
from sdort.providers.plugins import find_plugin
from sdort.providers.provider import KnownOptions


@dataclass(frozen=True)
class ProviderStatus:
    """An execution provider on this machine."""

    listed: bool
    """ONNX Runtime names it."""
    loads: bool
    """Whether it really loads."""
    reason: str | None
    """Why it does not load."""
    options_of: str
    """The release of ONNX Runtime, or the plugin, whose options these are."""
    options: dict[str, str]
    """Names and defaults of the options that it takes."""


@document("doctor", 1)
@dataclass(frozen=True)
class Diagnosis:
    """A machine as sdort sees it."""

    provider: str | None
    """The execution provider that was asked for; None if none was."""
    works: bool
    """Whether the provider that was asked for would be used; without one, whether any would."""
    providers: dict[str, ProviderStatus]
    """Execution provider -> its state here."""
    gpus: list[Gpu]
    """The GPUs of this machine."""
    findings: list[Finding]
    """Findings, one sentence each."""


def diagnosis_of(
    system: System,
    software: Software,
    provider: str | None = None,
    library: Path | None = None,
    description: Description | SdortError | None = None,
) -> Diagnosis:
    """The diagnosis of a machine and the software on it.

    Args:
        library: the custom operators.
        description: what they say of themselves, or why they are not loaded.
    """
    findings = [
        *software_findings(software, provider),
        *device_findings(system, software, provider),
        *operator_findings(library, description, gpu_architectures(system)),
        *cache_findings(system),
        memory_finding(system),
    ]
    providers = {name: _provider(name, software) for name in PROVIDERS}
    gpus = [*amd_gpus(system), *nvidia_gpus(system)]
    return Diagnosis(provider, software.works(provider), providers, gpus, findings)


def _provider(name: str, software: Software) -> ProviderStatus:
    release, options = _options_of(name, software)
    return ProviderStatus(
        listed=name in software.listed,
        loads=software.works(name),
        reason=software.refusals.get(name),
        options_of=release,
        options={option: about.default for option, about in options.items() if not about.instead},
    )


def _options_of(name: str, software: Software) -> tuple[str, KnownOptions]:
    """The options of a provider, and whose they are: a release's of ONNX Runtime, or a plugin's."""
    provider = PROVIDERS[name]
    library = find_plugin(provider, software.plugins) if software.error is None and name in software.listed else None
    if library:
        return library.source, library.plugin.options
    return provider.known_options(software.flavours[0].version if software.flavours else "")
