"""Problems that keep a provider from working, read from files: device, permissions, driver, libraries, gfx name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from sdort.machine.elf import code_objects, needed
from sdort.machine.gpus import amd_driver, amd_gpus, nvidia_driver, rocm_version
from sdort.machine.os_calls import os_calls
from sdort.machine.system import System
from sdort.providers import PROVIDERS
from sdort.providers.provider import Provider

# For GPUs that ROCm has no builds for, the close relative whose machine code they run: widely reported to work by
# people, supported by nobody.
_RELATIVES = {
    **dict.fromkeys(("gfx1031", "gfx1032", "gfx1034", "gfx1035", "gfx1036"), ("gfx1030", "10.3.0")),
    **dict.fromkeys(("gfx1101", "gfx1102", "gfx1103"), ("gfx1100", "11.0.0")),
}
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
_RENUMBERING = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
"""Variables by which ROCm shows a program some of the GPUs, in another order (ROCm's "GPU isolation techniques")."""

# The oldest Linux driver for CUDA's major versions (CUDA release notes, table "minor version compatibility").
_OLDEST_DRIVERS = {12: 525, 13: 580}

_CONTAINER = "in a container, start it with --device=/dev/kfd --device=/dev/dri"


@dataclass(frozen=True)
class Problem:
    """Something that keeps a provider from working: ``message`` is a sentence without its full stop."""

    check: str
    message: str
    next_step: str


def find_problems(provider: Provider, system: System, library: Path | None, device_id: int = 0) -> list[Problem]:
    """Problems that keep ``provider`` from working, the most basic first.

    Args:
        library: the provider's installed library; None assumes that of the newest release.
    """
    problems = []
    if provider.vendor == "amd":
        problems = [amd_device(system), amd_permission(system)]
    elif provider.vendor == "nvidia":
        problems = [nvidia_device(system), nvidia_driver_age(provider, system, library)]
    problems += [libraries(provider, system, library), architecture_problem(provider, system, library, device_id)]
    return [problem for problem in problems if problem]


def amd_device(system: System) -> Problem | None:
    """Is there a GPU that ROCm can open."""
    # Windows' subsystem for Linux has its own way to the GPU.
    if not os_calls.DEVICE_FILES or system.path("dev/dxg").exists():
        return None
    if not system.path("dev/kfd").exists():
        if amd_driver(system):
            message = "the amdgpu driver is loaded but there is no /dev/kfd"
            return Problem("device", message, f"It is there on the host: {_CONTAINER}.")
        step = f"Install AMD's driver and restart, or, {_CONTAINER}."
        return Problem("device", "there is no /dev/kfd: no AMD GPU with its driver loaded", step)
    if not system.glob("dev/dri/renderD*"):
        return Problem("device", "there is no /dev/dri/renderD*", f"It is there on the host: {_CONTAINER}.")
    if not amd_gpus(system):
        return Problem("device", "the amdgpu driver knows no GPU that can compute", "Look for amdgpu in dmesg.")
    return None


def amd_permission(system: System) -> Problem | None:
    """May this user open the GPU."""
    files = [system.path("dev/kfd"), *system.glob("dev/dri/renderD*")]
    closed = [path for path in files if path.exists() and not system.access(path, os.R_OK | os.W_OK)]
    if not closed:
        return None
    names = ", ".join(system.name(path) for path in closed)
    return Problem(
        "permission",
        f"this user may not open {names}",
        "Join the groups that own them, sudo usermod -aG render,video $USER, and log in again; in a container, "
        "--group-add with the host's numbers of these groups.",
    )


def nvidia_device(system: System) -> Problem | None:
    """Is there a GPU that CUDA can open."""
    if not os_calls.DEVICE_FILES or system.path("dev/dxg").exists() or system.glob("dev/nvidia[0-9]*"):
        return None
    if nvidia_driver(system):
        step = "If this is a container, start it with --gpus all."
        return Problem("device", "the NVIDIA driver is loaded but there is no /dev/nvidia0", step)
    step = "Install NVIDIA's driver and restart, or, in a container, start it with --gpus all."
    return Problem("device", "there is no /dev/nvidia0: no NVIDIA GPU with its driver loaded", step)


def nvidia_driver_age(provider: Provider, system: System, library: Path | None) -> Problem | None:
    """Is the driver new enough for the CUDA that the provider was built for."""
    driver = nvidia_driver(system)
    runtime = next((name for name in wanted_libraries(provider, library) if name.startswith("libcudart.so.")), "")
    major = _major(runtime)
    oldest, here = _OLDEST_DRIVERS.get(major or 0), re.match(r"\d+", driver or "")
    if oldest is None or here is None or int(here[0]) >= oldest:
        return None
    step = f"Install driver {oldest} or newer, or an onnxruntime-gpu that was built for an older CUDA."
    return Problem("driver", f"the NVIDIA driver {driver} is too old for CUDA {major}", step)


def wanted_libraries(provider: Provider, library: Path | None) -> list[str]:
    """The vendor's shared libraries that a provider needs, by name (``libamdhip64.so.7``)."""
    try:
        listed = needed(library) if library else None
    except (OSError, ValueError):
        listed = None
    if listed is None:
        return list(provider.libraries)
    stems = {_stem(name) for name in provider.libraries}
    return [name for name in listed if _stem(name) in stems] + [n for n in provider.opened if n not in listed]


def libraries(provider: Provider, system: System, library: Path | None) -> Problem | None:
    """Are the libraries there, in the major version that the provider was built for."""
    libraries = wanted_libraries(provider, library)
    missing = [name for name in libraries if not (system.find_library(name) or system.find_packaged(name))]
    if not missing:
        return None
    packages = {_stem(name): package for name, package in provider.libraries.items()}
    named = ", ".join(f"{name} ({packages.get(_stem(name), '?')})" for name in missing)
    message = f"{'a shared library is' if len(missing) == 1 else 'shared libraries are'} not found: {named}"
    untold = next(filter(None, map(system.find_untold, missing)), None)
    if untold:
        folder = system.name(untold.parent)
        return Problem("libraries", message, f"The linker does not look in {folder}: export LD_LIBRARY_PATH={folder}")
    other = _other_major(system, missing)
    if other:
        return Problem("libraries", f"{other}; {message}", provider.needs)
    return Problem("libraries", message, provider.needs)


def _other_major(system: System, missing: list[str]) -> str | None:
    """ "This machine has ROCm 6, and ROCm 7 is needed", where another version of the runtime is installed."""
    for stem, product in (("libamdhip64", "ROCm"), ("libcudart", "CUDA"), ("libcudnn", "cuDNN")):
        name = next((name for name in missing if _stem(name) == stem), None)
        pattern = f"{stem}.so.*"
        here = name and (system.find_library(pattern) or system.find_untold(pattern) or system.find_packaged(pattern))
        if name and here:
            version = (rocm_version(system) if product == "ROCm" else None) or str(_major(here.name))
            return f"this machine has {product} {version} ({here.name}), and {product} {_major(name)} is needed"
    return None


def architecture_problem(
    provider: Provider, system: System, library: Path | None, device_id: int = 0
) -> Problem | None:
    """Does the provider have machine code for the GPU."""
    gpus = amd_gpus(system) if provider.architectures and not system.environ.get(OVERRIDE) else []
    if not gpus:
        return None
    renumbered = any(map(system.environ.get, _RENUMBERING))
    used = gpus if renumbered or device_id >= len(gpus) else [gpus[device_id]]
    known = set(provider.architectures)
    if not any(gpu.architecture in known for gpu in used) and library:
        known = _installed_architectures(library) or known  # another build of this release may have more
    if any(gpu.architecture in known for gpu in used):
        return None
    gpu = used[0]
    names = ", ".join(sorted(known, key=lambda name: (len(name), name)))
    message = f"{provider.name} has no machine code for {gpu.architecture}, {gpu.name}; it has it for {names}"
    relative, value = _RELATIVES.get(gpu.architecture, ("", ""))
    step = _compiling(provider)
    if relative in known:
        hint = f"export {OVERRIDE}={value} lets the GPU run the code for {relative}, which often works"
        step = f"{hint} and which AMD does not support. Else: {step}"
    return Problem("architecture", message, step)


def _compiling(provider: Provider) -> str:
    """Words about other providers for the vendor's GPUs, which need no machine code for each."""
    others = [other for other in PROVIDERS.values() if other.vendor == provider.vendor and not other.architectures]
    if not others:
        return provider.needs
    other = others[0]
    return f"Use {other.name}, which compiles on the machine, in place of {provider.name}:\n{other.install}"


def _installed_architectures(library: Path) -> set[str]:
    try:
        return code_objects(library)
    except OSError:
        return set()


def _stem(soname: str) -> str:
    return soname.partition(".so")[0]


def _major(soname: str) -> int | None:
    match = re.search(r"\.so\.(\d+)", soname)
    return int(match[1]) if match else None
