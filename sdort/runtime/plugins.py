"""Plugins of ONNX Runtime in this process: their libraries are registered, and a session gets one of their devices.

A library stays registered until the process ends: sessions on its devices may be anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from sdort.errors import ProviderError
from sdort.errors.plain_text import some
from sdort.machine.distributions import built_in, import_onnxruntime
from sdort.providers.plugins import PluginLibrary
from sdort.runtime.failures import reason_of
from sdort.runtime.placement import SHAPE_OPERATORS

RECORD = "session.record_ep_graph_assignment_info"
"""ONNX Runtime's setting by which a session can say which provider has taken which nodes."""

_registered: set[Path] = set()
_lock = Lock()


def plugin_devices(library: PluginLibrary) -> list[Any]:
    """ONNX Runtime's ``OrtEpDevice`` of each device of this machine that a plugin computes on, in its order.

    A plugin that names no execution provider has those of all that its library brings.

    Raises:
        ProviderError: the library does not load, is no plugin, or this ONNX Runtime takes none.
    """
    register(library)
    name, path = library.plugin.execution_provider, library.path.resolve()
    found = [device for device in import_onnxruntime().get_ep_devices() if device.ep_name == name or not name]
    # Another program in this process may have registered a library with the same provider.
    own = [device for device in found if Path(device.ep_metadata.get("library_path", "")).resolve() == path]
    return own or (found if name else [])


def plugin_device(library: PluginLibrary, number: int, kind: str | None = None) -> Any:
    """One of :func:`plugin_devices`.

    Args:
        number: which, of those of the kind.
        kind: as :func:`is_of_kind`.

    Raises:
        ProviderError: as :func:`plugin_devices`, or there is no such device.
    """
    every = plugin_devices(library)
    devices = [device for device in every if is_of_kind(device, kind)]
    if number >= len(devices):
        raise ProviderError(_no_device(library, every, len(devices), number, kind))
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


def is_of_kind(device: Any, kind: str | None) -> bool:
    """Whether a device of :func:`plugin_devices` is of a kind (``gpu``) or vendor (``intel``); all are with None."""
    hardware = device.device
    return kind is None or kind.lower() == hardware.type.name.lower() or kind.lower() in hardware.vendor.lower()


def use_plugin(
    settings: Any, library: PluginLibrary, options: Mapping[str, str], number: int, kind: str | None = None
) -> None:
    """Have the sessions of ``settings`` run on a device of a plugin's, and tell what it takes of their graphs.

    Args:
        settings: ONNX Runtime's ``SessionOptions``; the session then takes no ``providers``.
        options: the provider's.
        number, kind: which of the plugin's devices, as :func:`plugin_device`.

    Raises:
        ProviderError: as :func:`plugin_device`.
    """
    device = plugin_device(library, number, kind)
    settings.add_session_config_entry(RECORD, "1")
    settings.add_provider_for_devices([device], dict(options))


def taken_nodes(session: Any, execution_provider: str) -> int:
    """Number of nodes that a provider has taken in a session that was opened with :func:`use_plugin`.

    Nodes without a name are not in ONNX Runtime's list, so that a graph of such alone counts as one node.
    """
    taken = [part for part in session.get_provider_graph_assignment_info() if part.ep_name == execution_provider]
    return sum(max(1, len(part.get_nodes())) for part in taken)


def refuse_untaken(session: Any, library: PluginLibrary, component: str) -> None:
    """Check that a plugin has taken a part of a model that was opened with :func:`use_plugin`.

    Raises:
        ProviderError: it has not, and the CPU would run more than shape arithmetic; it names the operators.
    """
    name = library.plugin.execution_provider
    if taken_nodes(session, name):
        return
    nodes = (node for part in session.get_provider_graph_assignment_info() for node in part.get_nodes())
    left = {node.op_type for node in nodes} - SHAPE_OPERATORS
    if left:
        raise ProviderError(
            f"{library.source} takes no node of it: all would run on the CPU, as {some(left)}",
            component=component,
            hint="Optimize the model for the provider (sdort optimize --provider), or run it with --provider cpu.",
        )


def _no_device(library: PluginLibrary, every: Sequence[Any], count: int, number: int, kind: str | None) -> str:
    if not every:
        return f"{library.source} finds no device here that it computes on: it takes {library.plugin.computes_on}"
    of_kind = f" of --device-kind {kind}" if kind else ""
    found = ", ".join(f"{device.device.vendor} {device.device.type.name}" for device in every)
    return f"{library.source} has no device {number}{of_kind}: it finds {count} here{f' ({found})' if kind else ''}"
