"""The machine that a tuning result depends on: the GPU, its toolkit, and ONNX Runtime's execution provider."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from functools import cache

from sdort.errors import ProviderError
from sdort.machine.distributions import flavour, import_onnxruntime
from sdort.providers import PROVIDERS
from sdort.providers.plugins import find_plugin


@dataclass(frozen=True)
class Machine:
    """A device and the software that drives it.

    ``compute_units`` is part of it as MIOpen names its databases by both: two cards of one gfx architecture differ.
    """

    architecture: str
    compute_units: int
    toolkit: str
    """The version of the HIP or CUDA runtime."""
    ep: str
    ep_version: str
    onnxruntime: str
    """Distribution and version."""


@cache
def this_machine(provider: str, device_id: int = 0, libraries: tuple[tuple[str, str], ...] = ()) -> Machine:
    """The machine as ``provider`` sees it.

    Args:
        libraries: of plugins, by name (:func:`sdort.providers.plugins.find_plugin`).

    Raises:
        ProviderError: the driver does not tell what GPU there is, or no ONNX Runtime is installed.
    """
    installed = flavour()
    architecture, units, toolkit = _device(provider, device_id)
    plugin = find_plugin(PROVIDERS[provider], dict(libraries))
    return Machine(
        architecture,
        units,
        toolkit,
        plugin.plugin.execution_provider if plugin else PROVIDERS[provider].ep,
        plugin.source if plugin else installed.version,
        f"{installed.distribution} {installed.version}",
    )


def _device(provider: str, device_id: int) -> tuple[str, int, str]:
    vendor = PROVIDERS[provider].vendor
    if not vendor:
        return platform.machine(), 0, ""
    if vendor not in _DRIVERS:
        raise ProviderError(f"sdort does not know how to ask the driver which GPU {provider} runs on")
    try:
        return _DRIVERS[vendor](device_id)
    except (OSError, AttributeError) as error:
        raise ProviderError(f"the driver does not tell which GPU {provider} runs on: {error}") from error


# hipDeviceProp_tR0600 of HIP 6 and 7 (hip_runtime_api.h): its size, and where two of its fields are.
_HIP_PROPERTIES, _HIP_UNITS, _HIP_ARCHITECTURE = 1472, 388, 1160


def _hip(device_id: int) -> tuple[str, int, str]:
    hip = _load("libamdhip64.so.7", "libamdhip64.so.6")
    properties = ctypes.create_string_buffer(2 * _HIP_PROPERTIES)
    _check(hip.hipGetDevicePropertiesR0600(properties, device_id), "hipGetDeviceProperties")
    version = ctypes.c_int()
    _check(hip.hipRuntimeGetVersion(ctypes.byref(version)), "hipRuntimeGetVersion")
    units = ctypes.c_int.from_buffer(properties, _HIP_UNITS).value
    name = properties.raw[_HIP_ARCHITECTURE : _HIP_ARCHITECTURE + 256].split(b"\0", 1)[0].decode(errors="replace")
    major, rest = divmod(version.value, 10_000_000)
    return name, units, f"HIP {major}.{rest // 100_000}.{rest % 100_000}"


# CUdevice_attribute of cuda.h.
_UNITS, _MAJOR, _MINOR = 16, 75, 76


def _cuda(device_id: int) -> tuple[str, int, str]:
    cuda = _load("libcuda.so.1")
    _check(cuda.cuInit(0), "cuInit")
    device, value = ctypes.c_int(), ctypes.c_int()
    _check(cuda.cuDeviceGet(ctypes.byref(device), device_id), "cuDeviceGet")
    numbers = []
    for attribute in (_MAJOR, _MINOR, _UNITS):
        _check(cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device), "cuDeviceGetAttribute")
        numbers.append(value.value)
    _check(cuda.cuDriverGetVersion(ctypes.byref(value)), "cuDriverGetVersion")
    built_for = getattr(import_onnxruntime(), "cuda_version", "")
    driver = f"driver for {value.value // 1000}.{value.value % 1000 // 10}"
    return f"sm_{numbers[0]}{numbers[1]}", numbers[2], f"CUDA {built_for}, {driver}"


_DRIVERS = {"amd": _hip, "nvidia": _cuda}
"""By vendor: what asks its driver for a GPU's architecture, its compute units and the toolkit."""


def _load(*names: str) -> ctypes.CDLL:
    for name in names[:-1]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return ctypes.CDLL(names[-1])


def _check(code: int, call: str) -> None:
    if code:
        raise OSError(f"{call} failed with {code}")
