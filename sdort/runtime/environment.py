"""The environment of a result: versions and the device, without importing torch."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sdort.machine.distributions import installed_flavours, installed_version
from sdort.machine.gpus import gpus_of, nvidia_driver
from sdort.machine.os_calls import os_calls
from sdort.machine.system import System
from sdort.machine.version import __version__
from sdort.providers.provider import Provider

_PACKAGES = ("torch", "diffusers", "transformers", "numpy")


@cache
def versions() -> dict[str, str]:
    """Versions of sdort, Python, the ONNX Runtime distribution and the packages that take part."""
    versions = {"sdort": __version__, "python": platform.python_version()}
    versions |= {installed.distribution: installed.version for installed in installed_flavours()}
    installed_packages = {name: installed_version(name) for name in _PACKAGES}
    return versions | {name: installed for name, installed in installed_packages.items() if installed is not None}


@cache
def device_name(provider: Provider, device_id: int = 0) -> str:
    """The device that a provider computes on, in words; ``unknown GPU`` where no tool tells."""
    return (_gpu_name(provider, device_id) or "unknown GPU") if provider.on_gpu else cpu_name()


def device_names(provider: Provider, device_ids: Sequence[int]) -> str:
    """The devices that compute an image together, in words: ``2 x NAME`` where all are the same."""
    names = Counter(device_name(provider, number) for number in device_ids)
    return " + ".join(name if count == 1 else f"{count} x {name}" for name, count in names.items())


def cpu_name() -> str:
    """The processor's model and the number of processors that this process may use."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model} ({len(os_calls.usable_cpus())} processors)"


def _gpu_name(provider: Provider, device_id: int) -> str | None:
    system = System()
    gpus = gpus_of(provider.vendor, system)
    driver = nvidia_driver(system) if provider.vendor == "nvidia" else None
    name = str(gpus[device_id]) if device_id < len(gpus) else None
    return f"{name}, driver {driver}" if name and driver else name
