"""Plugins of ONNX Runtime in this process: their libraries are registered, and a session gets one of their devices.

A library stays registered until the process ends: sessions on its devices may be anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from sdort.errors import ProviderError
from sdort.machine.distributions import built_in, import_onnxruntime
from sdort.providers.plugins import PluginLibrary
from sdort.runtime.failures import reason_of

RECORD = "session.record_ep_graph_assignment_info"
"""ONNX Runtime's setting by which a session can say which provider has taken which nodes."""

_registered: set[Path] = set()
_lock = Lock()


def plugin_devices(library: PluginLibrary) -> list[Any]:
    """ONNX Runtime's ``OrtEpDevice`` of each device of this machine that a plugin computes on, in its order.

    Raises:
        ProviderError: the library does not load, is no plugin, or this ONNX Runtime takes none.
    """
    register(library)
    name, path = library.plugin.execution_provider, library.path.resolve()
    found = [device for device in import_onnxruntime().get_ep_devices() if device.ep_name == name]
    # Another program in this process may have registered a library with the same provider.
    own = [device for device in found if Path(device.ep_metadata.get("library_path", "")).resolve() == path]
    return own or found


def plugin_device(library: PluginLibrary, number: int) -> Any:
    """One of :func:`plugin_devices`.

    Raises:
        ProviderError: as :func:`plugin_devices`, or there is no such device.
    """
    devices = plugin_devices(library)
    if number >= len(devices):
        raise ProviderError(_no_device(library, len(devices), number))
    return devices[number]


def register(library: PluginLibrary) -> None:
    """Load a plugin's library into ONNX Runtime, once in a process.

    Raises:
        ProviderError: as :func:`plugin_devices`.
    """
    onnxruntime = import_onnxruntime()
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise ProviderError(
            f"ONNX Runtime {onnxruntime.__version__} takes no plugins, so that {library.source} cannot be used",
            hint="They are taken since ONNX Runtime 1.23.",
        )
    built_in()  # from now on ONNX Runtime's list has the plugin's provider too
    path = library.path.resolve()
    with _lock:
        if path in _registered:
            return
        try:
            onnxruntime.register_execution_provider_library(str(path), str(path))
        except Exception as error:  # its classes share no base but Exception
            raise ProviderError(
                f"the plugin {path} does not load: {reason_of(error)}",
                hint="Install a plugin that was built for this ONNX Runtime and this system.",
            ) from error
        _registered.add(path)


def use_plugin(settings: Any, library: PluginLibrary, options: Mapping[str, str], number: int) -> None:
    """Have the sessions of ``settings`` run on a device of a plugin's, and tell what it takes of their graphs.

    Args:
        settings: ONNX Runtime's ``SessionOptions``; the session then takes no ``providers``.
        options: the provider's.
        number: which of the plugin's devices.

    Raises:
        ProviderError: as :func:`plugin_devices`, or there is no such device.
    """
    device = plugin_device(library, number)
    settings.add_session_config_entry(RECORD, "1")
    settings.add_provider_for_devices([device], dict(options))


def taken_nodes(session: Any, execution_provider: str) -> int:
    """Number of nodes that a provider has taken in a session that was opened with :func:`use_plugin`.

    Nodes without a name are not in ONNX Runtime's list, so that a graph of such alone counts as one node.
    """
    taken = [part for part in session.get_provider_graph_assignment_info() if part.ep_name == execution_provider]
    return sum(max(1, len(part.get_nodes())) for part in taken)


def _no_device(library: PluginLibrary, count: int, number: int) -> str:
    if not count:
        return f"{library.source} finds no device here that it computes on: it takes {library.plugin.computes_on}"
    return f"{library.source} has no device {number}: it finds {count} here"
