"""The diagnosis of this machine: :func:`sdort.diagnose`, which ``sdort doctor`` calls."""

from __future__ import annotations

import os
from collections.abc import Mapping

from sdort.doctor.diagnosis import Diagnosis, diagnosis_of
from sdort.doctor.software import installed_software
from sdort.errors import SdortError
from sdort.machine.system import System
from sdort.operator_library.library import Description, built_library, describe_library
from sdort.options.number_ranges import DEVICE_ID
from sdort.options.option_types import typed
from sdort.providers import check_plugins


@typed
def diagnose(
    *, provider: str | None = None, device_id: int = 0, ep_libraries: Mapping[str, str] | None = None
) -> Diagnosis:
    """Examine this machine: ONNX Runtime, GPUs, drivers, caches, permissions, disk and memory.

    Providers are loaded for real, as their being listed tells little.

    Args:
        provider: look at what this execution provider needs; by default at all.
        device_id: the number of the GPU.
        ep_libraries: libraries of plugins that bring a provider to ONNX Runtime, by the provider's name.

    Returns:
        Findings with next steps; ``works`` is whether the provider (by default any) would be used.

    Raises:
        UsageError: ``device_id`` is no number of a GPU, or ``ep_libraries`` has a name that no plugin brings.

    Example:
        >>> sdort.diagnose(provider="cpu").works
        True
    """
    DEVICE_ID.check(device_id)
    check_plugins(ep_libraries or {}, "--ep-library")
    library = built_library()
    description: Description | SdortError | None
    try:
        description = describe_library(library) if os.path.isfile(library) else None
    except SdortError as error:  # built for another machine, damaged, or somebody else's
        description = error
    return diagnosis_of(System(), installed_software(device_id, ep_libraries or {}), provider, library, description)
