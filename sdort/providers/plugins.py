"""The plugin through which a provider is reached, where ONNX Runtime was built without it.

Packages ``onnxruntime-ep-*`` have a library each and a module that says where it is. Only the module of a provider that
is asked for is imported, and nothing is loaded here (:mod:`sdort.runtime.plugins` does that).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sdort.errors import ProviderError
from sdort.errors.plain_text import library_reason
from sdort.files.user_folders import config_file
from sdort.machine.distributions import built_in, installed_version, pip
from sdort.providers import check_plugins
from sdort.providers.configured import configured_libraries
from sdort.providers.provider import Plugin, Provider


@dataclass(frozen=True)
class PluginLibrary:
    """The library of a plugin on this machine.

    Attributes:
        plugin: the plugin.
        path: its file.
        source: what has it, in words: ``onnxruntime-ep-openvino 1.8.1``.
    """

    plugin: Plugin
    path: Path
    source: str


def find_plugin(provider: Provider, libraries: Mapping[str, str]) -> PluginLibrary | None:
    """The library that brings ``provider`` to this ONNX Runtime; None where it is built in, or none is there.

    Args:
        libraries: those that the user names (``--ep-library``), by the provider's name or ONNX Runtime's. They come
            before those of the user's configuration, and these before what is built in or installed.

    Raises:
        ProviderError: ONNX Runtime is not installed, or a package that should have the library has not.
        UsageError: as :func:`sdort.providers.configured.configured_libraries`, or that names a provider of no plugin.
    """
    if not provider.plugins:
        return None
    configured = configured_libraries()
    check_plugins(configured, f"{config_file()}: [providers]")
    for named in (libraries, configured):
        for plugin in provider.plugins:
            if path := named.get(plugin.execution_provider) or named.get(provider.name):
                return PluginLibrary(plugin, Path(path), path)
    if provider.ep in built_in():
        return None
    return next(filter(None, map(installed_plugin, provider.plugins)), None)


def is_there(provider: Provider, libraries: Mapping[str, str]) -> bool:
    """Whether ONNX Runtime has a provider built in or by a plugin; whether it loads, a session tells.

    Raises:
        ProviderError: as :func:`find_plugin`.
    """
    return provider.ep in built_in() or find_plugin(provider, libraries) is not None


def own_name(provider: Provider, option: str, libraries: Mapping[str, str]) -> str:
    """The name of an option of ``provider`` where it runs: that of its plugin, if there is one.

    Args:
        libraries: as :func:`find_plugin`.
    """
    library = find_plugin(provider, libraries)
    return library.plugin.own_name(option) if library else option


@cache
def installed_plugin(plugin: Plugin) -> PluginLibrary | None:
    """The library of a plugin whose package is installed; None where it is not.

    Raises:
        ProviderError: the package has none.
    """
    if importlib.util.find_spec(plugin.module) is None:
        return None
    version = installed_version(plugin.package) or "of unknown version"
    try:
        path = Path(importlib.import_module(plugin.module).get_library_path())
    except Exception as error:  # a stranger's module raises what it likes
        raise ProviderError(
            f"{plugin.package} {version} is installed and has no library: {library_reason(error)}",
            hint="Install it again:\n" + pip("install", "--force-reinstall", "--no-deps", plugin.package),
        ) from error
    return PluginLibrary(plugin, path, f"{plugin.package} {version}")
