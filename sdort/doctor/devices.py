"""GPUs, their drivers and libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from sdort.doctor.finding import OK, PROBLEM, WARNING, Finding, from_problem
from sdort.doctor.software import Software
from sdort.machine.gpus import Gpu, amd_gpus, driver_of, gpus_of, nvidia_gpus, rocm_version
from sdort.machine.system import System
from sdort.providers import PROVIDERS
from sdort.providers.provider import Provider
from sdort.runtime.availability import find_problems

_LIBRARIES = {
    "amd": {"HIP": "libamdhip64", "hipBLAS": "libhipblas", "MIOpen": "libMIOpen", "MIGraphX": "libmigraphx_c"},
    "nvidia": {"CUDA": "libcudart", "cuBLAS": "libcublas", "cuDNN": "libcudnn"},
}
"""By vendor: products, and the library of each whose version is shown."""


def device_findings(system: System, software: Software, requested: str | None) -> Iterator[Finding]:
    """Findings about each vendor's GPUs, driver and libraries, and obstacles to its providers."""
    for vendor, providers in _by_vendor().items():
        needed = [
            provider
            for provider in providers
            if provider.name == requested or (not requested and provider.name in software.listed)
        ]
        gpus, section = gpus_of(vendor, system), vendor.upper()
        if needed or gpus or driver_of(vendor, system):
            yield from _facts(system, vendor, section, gpus)
            yield from _problems(system, software, section, needed)
        if gpus and not requested and not needed and not software.error:
            step = f"Install the one for it:\n{providers[0].install}"
            yield Finding(section, "provider", WARNING, "the installed ONNX Runtime has none for this GPU", step)


def _by_vendor() -> dict[str, list[Provider]]:
    vendors = dict.fromkeys(provider.vendor for provider in PROVIDERS.values() if provider.on_gpu)
    return {vendor: [provider for provider in PROVIDERS.values() if provider.vendor == vendor] for vendor in vendors}


def _facts(system: System, vendor: str, section: str, gpus: list[Gpu]) -> Iterator[Finding]:
    for index, gpu in enumerate(gpus):
        yield Finding(section, f"GPU {index}", OK, str(gpu))
    driver = driver_of(vendor, system)
    if driver:
        yield Finding(section, "driver", OK, driver)
    yield from _libraries(system, vendor, section)


def _problems(system: System, software: Software, section: str, providers: list[Provider]) -> Iterator[Finding]:
    lists = (find_problems(provider, system, software.libraries.get(provider.name)) for provider in providers)
    # Both AMD providers need the same device.
    for problem in dict.fromkeys(chain.from_iterable(lists)):
        yield from_problem(section, problem, PROBLEM)


def _libraries(system: System, vendor: str, section: str) -> Iterator[Finding]:
    if vendor == "amd":
        version = rocm_version(system)
        if version:
            yield Finding(section, "ROCm", OK, version)
    for product, stem in _LIBRARIES.get(vendor, {}).items():
        pattern = f"{stem}.so.*"
        path = system.find_library(pattern) or system.find_packaged(pattern)
        if path:
            # A soname is a link to the file that has the whole version in its name.
            numbers = re.search(r"\.so\.(.+)", path.resolve().name)
            yield Finding(section, product, OK, f"{numbers[1] if numbers else '?'}, {system.name(path)}")


def gpu_architectures(system: System) -> dict[str, list[str]]:
    """The architectures of the GPUs that there are, by vendor."""
    return {
        "amd": [gpu.architecture for gpu in amd_gpus(system)],
        "nvidia": [gpu.architecture for gpu in nvidia_gpus(system) if gpu.architecture],
    }
