"""The devices that providers compute on here: the processor, GPUs of those that are built in, and plugins' own."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from sdort.console import document
from sdort.errors import ProviderError, SdortError
from sdort.machine.distributions import built_in, import_onnxruntime
from sdort.machine.gpus import driver_of, gpus_of
from sdort.machine.subprocesses import WorkerError, run_worker
from sdort.machine.system import System
from sdort.options.option_types import typed
from sdort.providers import PROVIDERS, check_plugins
from sdort.providers.plugins import PluginLibrary, find_plugin, installed_plugin
from sdort.providers.provider import Plugin, Provider
from sdort.runtime.environment import cpu_name
from sdort.runtime.plugins import plugin_devices

_TIMEOUT = 60
"""Seconds for a plugin to list its devices."""
_MODULES = "onnxruntime_ep_"
"""Beginning of the names of plugins' modules."""
_MEMORY = ("memory", "total_memory", "dedicated_memory", "DEVICE_TOTAL_MEM_SIZE", "GPU_DEVICE_TOTAL_MEM_SIZE")
"""Keys of plugins' metadata that have a device's memory in bytes."""
_NAMES = ("FULL_DEVICE_NAME", "Description", "description", "name")
"""Keys that have its name."""


@dataclass(frozen=True)
class ProviderDevice:
    """A device that a provider computes on."""

    provider: str
    """The name that ``--provider`` takes; empty where sdort has no provider for the plugin."""
    execution_provider: str
    """ONNX Runtime's name of it."""
    number: int
    """Its ``--device-id``."""
    kind: str
    """``cpu``, ``gpu`` or ``npu``."""
    vendor: str
    """Whose device it is."""
    device: str
    """The device's name; empty where nothing tells."""
    driver: str
    """Versions of the driver, or of the plugin."""
    memory: int | None
    """Bytes of its own; None where nothing tells."""
    source: str
    """Source of the provider: ONNX Runtime itself, a package, or a library."""


@document("devices", 1)
@dataclass(frozen=True)
class Devices:
    """The devices that providers compute on here."""

    devices: list[ProviderDevice]
    """By provider, in the order of ``--device-id``."""
    problems: list[str] = field(default_factory=list)
    """Plugins that list no device, and why, a sentence each."""


@typed
def list_devices(ep_libraries: Mapping[str, str] | None = None) -> Devices:
    """The devices of all providers that are built in, installed or named.

    A plugin is loaded in a process of its own, which its driver may end.

    Args:
        ep_libraries: libraries of plugins, by the provider's name (``--ep-library``).

    Raises:
        ProviderError: ONNX Runtime is not installed.
        UsageError: a library's name is that of no plugin's provider.
    """
    libraries = ep_libraries or {}
    check_plugins(libraries, "--ep-library")
    devices: list[ProviderDevice] = []
    problems: list[str] = []
    version = str(import_onnxruntime().__version__)
    for provider in PROVIDERS.values():
        try:
            library = find_plugin(provider, libraries)
            if library:
                devices += _listed(provider.name, library)
            elif provider.ep in built_in():
                devices += _built_in(provider, f"ONNX Runtime {version}")
        except ProviderError as error:
            problems.append(f"{provider.name}: {error.message}")
    for plugin in _unknown_plugins():
        try:
            installed = installed_plugin(plugin)
            devices += _listed("", installed) if installed else []
        except ProviderError as error:
            problems.append(f"{plugin.package}: {error.message}")
    return Devices(devices, problems)


def _built_in(provider: Provider, source: str) -> Iterator[ProviderDevice]:
    if not provider.on_gpu:
        yield ProviderDevice(provider.name, provider.ep, 0, "cpu", "", cpu_name(), "", None, source)
        return
    system = System()
    driver = driver_of(provider.vendor, system) or ""
    for number, gpu in enumerate(gpus_of(provider.vendor, system)):
        name = f"{gpu.name} ({gpu.architecture})" if gpu.architecture else gpu.name
        memory = gpu.memory or None
        yield ProviderDevice(provider.name, provider.ep, number, "gpu", provider.vendor, name, driver, memory, source)


def _listed(provider: str, library: PluginLibrary) -> list[ProviderDevice]:
    """The devices of a plugin.

    Raises:
        ProviderError: it does not load, lists none, or ends the process.
    """
    plugin = library.plugin
    task = {
        "package": plugin.package, "execution_provider": plugin.execution_provider, "path": str(library.path),
        "source": library.source,
    }  # fmt: skip
    try:
        found = run_worker("sdort.doctor.provider_devices:ask", task, timeout=_TIMEOUT)
    except TimeoutExpired as error:
        raise ProviderError(f"{library.source} lists no device within {_TIMEOUT} s") from error
    except WorkerError as error:
        raise ProviderError(f"{library.source} ended the process with code {error.code}: {error.said}") from error
    if found["problem"]:
        raise ProviderError(found["problem"])
    if not found["devices"]:
        takes = f": it takes {plugin.computes_on}" if plugin.computes_on else ""
        raise ProviderError(f"{library.source} finds no device here that it computes on{takes}")
    return [ProviderDevice(provider=provider, source=library.source, **device) for device in found["devices"]]


def ask(package: str, execution_provider: str, path: str, source: str) -> dict[str, Any]:
    """The devices of a plugin's library, as JSON values; where it does not load, the reason."""
    plugin = Plugin(package, execution_provider, "", {})
    try:
        devices = plugin_devices(PluginLibrary(plugin, Path(path), source))
    except SdortError as error:
        return {"problem": error.message, "devices": []}
    return {"problem": "", "devices": [_described(number, device) for number, device in enumerate(devices)]}


def _described(number: int, device: Any) -> dict[str, Any]:
    hardware = device.device
    told = {**dict(hardware.metadata), **dict(device.ep_metadata)}
    memory = next((told[key] for key in _MEMORY if str(told.get(key, "")).isdecimal()), None)
    return {
        "execution_provider": device.ep_name,
        "number": number,
        "kind": hardware.type.name.lower(),
        "vendor": hardware.vendor,
        "device": next((told[key] for key in _NAMES if told.get(key)), ""),
        "driver": told.get("driver_version") or told.get("version", ""),
        "memory": None if memory is None else int(memory),
    }


def _unknown_plugins() -> Iterator[Plugin]:
    """Installed packages of plugins that no provider of sdort's is for."""
    known = {plugin.module for provider in PROVIDERS.values() for plugin in provider.plugins}
    for module in pkgutil.iter_modules():
        if module.name.startswith(_MODULES) and module.name not in known:
            yield Plugin(module.name.replace("_", "-"), "", "", {})
