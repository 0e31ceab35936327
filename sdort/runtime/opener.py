"""The one opener of ONNX Runtime sessions: every model of sdort's is opened by :func:`create_session`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

from sdort.console import VERBOSE, verbosity
from sdort.errors import ProviderError
from sdort.machine.distributions import FALLBACK, import_onnxruntime, start_session
from sdort.machine.process_settings import variables
from sdort.operator_library.library import resolve
from sdort.operator_library.opening import prepare_model
from sdort.providers.plugins import find_plugin
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import provider_options, session_options
from sdort.runtime.memory_pool import MemoryPool
from sdort.runtime.plugins import use_plugin

_stops: list[Callable[[], None]] = []


class stoppable:  # as contextlib's; a generator's takes the time of a microsecond, in every run
    """A block that ``stop``, called in another thread, lets fail soon."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        _stops.append(self._stop)

    def __exit__(self, *_: object) -> None:
        _stops.remove(self._stop)


def stop_all() -> None:
    """End every run and every loading that goes on in this process; each raises in its own thread."""
    for stop in list(_stops):
        stop()


_turns: dict[str, RLock] = {}
"""Locks of the providers that take one call at a time, by name."""


def turn(provider: Provider) -> AbstractContextManager[object]:
    """A block in which no other thread calls into a provider that takes one call at a time."""
    return _turns.setdefault(provider.name, RLock()) if provider.in_turn else nullcontext()


_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
FATAL, _ERROR = 4, 3
"""Severities of ONNX Runtime's log. Errors are raised too, and reported once, by us."""

ALL, BASIC, NONE = "ORT_ENABLE_ALL", "ORT_ENABLE_BASIC", "ORT_DISABLE_ALL"
"""ONNX Runtime's own optimizations: all; none that fuse, for references; none, and the nodes in their order."""


class NotLoadedError(ProviderError):
    """A provider that was asked for and that the session does not have; ``reason`` is what ONNX Runtime says."""

    def __init__(self, provider: Provider, reason: str) -> None:
        super().__init__(f"{provider.name} does not load: {reason}")
        self.reason = reason


def create_session(
    model: str | bytes,
    provider: Provider,
    options: RuntimeOptions,
    *,
    severity: int = FATAL,
    data_folder: Path | None = None,
    optimization: str = ALL,
    initializers: Mapping[str, Any] | None = None,
    pool: MemoryPool | None = None,
    packs: bool = True,
) -> Any:
    """An ``InferenceSession`` on ``provider``, without ONNX Runtime's messages on the terminal.

    Args:
        model: the path of an ``.onnx`` file, or a serialized model.
        data_folder: where the external data of a serialized model lies.
        optimization: :data:`ALL`, :data:`BASIC` or :data:`NONE`.
        initializers: values that the session has for initializers of the model, where they are: an ``OrtValue`` of
            the provider's memory that does not own it, by name.
        pool: where the session allocates the device's memory; None for ONNX Runtime's arenas.
        packs: whether kernels of the CPU may hold copies of weights, in an order of their own.

    Raises:
        UsageError: the provider cannot be asked for these options.
        NotLoadedError: ONNX Runtime went on without the provider.
        ProviderError: ONNX Runtime is not installed, or the custom operators cannot be loaded.
        Exception: whatever ONNX Runtime raises; :mod:`sdort.runtime.failures` says what it means.
    """
    onnxruntime = import_onnxruntime()
    plugin = find_plugin(provider, options.ep_libraries)
    if not plugin and provider.ep not in onnxruntime.get_available_providers():
        raise NotLoadedError(provider, f"this ONNX Runtime was built without {provider.ep}")
    asked = provider_options(provider, options)
    chain: list[Any] | None = [FALLBACK] if provider.is_fallback else [(provider.ep, asked), FALLBACK]
    # The default logger's errors are libraries that do not load. It warns of every session whose provider is no plugin,
    # and of every convolution plan that cuDNN rejects in a run.
    onnxruntime.set_default_logger_severity(_ERROR if verbosity() >= VERBOSE else FATAL)
    left_out: Collection[str] = ()
    if resolve(options.custom_ops):
        model, folder, left_out = prepare_model(model)
        data_folder = data_folder or folder
    settings = session_options(onnxruntime, provider, options, severity, left_out)
    if plugin:
        use_plugin(settings, plugin, asked, options.device_id, options.device_kind)
        chain = None
    if pool:
        settings.add_session_config_entry("session.use_env_allocators", "1")
    if not packs:
        settings.add_session_config_entry("session.disable_prepacking", "1")
    if data_folder:
        settings.add_session_config_entry(_DATA_FOLDER, str(data_folder.resolve()))
    if optimization != ALL:
        settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, optimization)
    if optimization == NONE:
        settings.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    for name, value in (initializers or {}).items():
        settings.add_initializer(name, value)
    used = pool.used() if pool else nullcontext()
    with turn(provider), stoppable(partial(_cancel_loading, settings)), _read_once(provider), used:
        session, printed = start_session(onnxruntime, model, settings, chain)
    loaded = plugin.plugin.execution_provider if plugin else provider.ep
    if loaded not in session.get_providers():
        raise NotLoadedError(provider, _printed_reason(printed) or "ONNX Runtime gives no reason")
    return session


_started: set[str] = set()
"""Providers that have had a session in this process."""


def _read_once(provider: Provider) -> AbstractContextManager[None]:
    """Variables that a provider's libraries read when its first session is made, but for those that the user set."""
    if provider.name in _started:
        return nullcontext()
    _started.add(provider.name)
    return variables({name: value for name, value in provider.variables.items() if name not in os.environ})


def _cancel_loading(settings: Any) -> None:
    if hasattr(settings, "set_load_cancellation_flag"):  # since ONNX Runtime 1.21
        settings.set_load_cancellation_flag(True)


def _printed_reason(printed: str) -> str | None:
    """The error in what ONNX Runtime 1.22 prints before it falls back."""
    errors = [line.removeprefix("EP Error ") for line in printed.splitlines() if line.startswith("EP Error ")]
    return errors[0] if errors else None
