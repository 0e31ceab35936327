"""Options of ONNX Runtime's providers and sessions, made of a request to the runtime."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from sdort.errors import UsageError, did_you_mean
from sdort.machine.distributions import flavour
from sdort.operator_library.library import register, resolve
from sdort.providers import PROVIDERS
from sdort.providers.plugins import find_plugin, own_name
from sdort.providers.provider import KnownOptions, Provider
from sdort.providers.runtime_options import RuntimeOptions


def provider_options(provider: Provider, options: RuntimeOptions) -> dict[str, str]:
    """The options that ONNX Runtime gets for ``provider``.

    Raises:
        UsageError: as :func:`check_options`.
    """
    check_options(provider, options)
    library = find_plugin(provider, options.ep_libraries)
    result = {"device_id": str(options.device_id)} if provider.numbered and not library else {}
    result.update(provider.options)
    result.update(provider.memory)
    if options.tuning:
        result.update(provider.tuning)
    if "tunable_op_tuning_enable" in result:
        result["tunable_op_max_tuning_duration_ms"] = str(options.tuning_ms)
    if options.graph:
        result.update(provider.graph)
    if options.stream:
        result[provider.stream] = str(options.stream)
    result.update(options.provider_options)
    if library is None:
        return result
    plugin = library.plugin
    return {**plugin.sets, **{plugin.own_name(name): value for name, value in result.items()}}


def check_options(provider: Provider, options: RuntimeOptions) -> None:
    """Refuse what ``provider`` cannot be asked for, before a session is made.

    Raises:
        UsageError: ``options.graph`` where there are no graphs; ``options.stream`` where none is taken;
            ``options.device_kind`` where no plugin brings it; one of
            ``options.provider_options`` that this release of the provider does not know, that has no such value, or
            that is set otherwise or to no effect.
    """
    if options.graph and not provider.graph:
        raise UsageError(
            f"--graph is not possible on {provider.name}: {provider.no_graph}",
            hint=f"Leave it out, or run on {' or '.join(name for name, known in PROVIDERS.items() if known.graph)}.",
        )
    if options.stream and not provider.stream:
        raise UsageError(f"{provider.name} takes no stream of its caller's")
    if options.device_kind and not find_plugin(provider, options.ep_libraries):
        raise UsageError(
            f"--device-kind chooses among the devices of a plugin, and no plugin brings {provider.name}",
            hint="Leave it out; --device-id has the number of a GPU.",
        )
    if not options.provider_options:
        return
    owner, known = known_options(provider, options.ep_libraries)
    seen: dict[str, str] = {}
    for name, value in options.provider_options.items():
        _check_option(owner, known, name, value)
        other = seen.setdefault(own_name(provider, name, options.ep_libraries), name)
        if other != name:
            raise UsageError(f"{other} and {name} are the same option of {owner}", hint="Leave one of them out.")


def known_options(provider: Provider, libraries: Mapping[str, str]) -> tuple[str, KnownOptions]:
    """The options that a provider knows here, and who has them, in words: a release of ONNX Runtime, or a plugin.

    Args:
        libraries: plugins, as :func:`sdort.providers.plugins.find_plugin` takes them.

    Raises:
        ProviderError: as :func:`sdort.providers.plugins.find_plugin`.
    """
    library = find_plugin(provider, libraries)
    if library:
        plugin = library.plugin
        elsewhere = {name: plugin.options[own] for name, own in plugin.own_names.items() if own in plugin.options}
        return f"{plugin.execution_provider} of {library.source}", {**plugin.options, **elsewhere}
    release, known = provider.known_options(flavour().version)
    return f"{provider.ep} of ONNX Runtime {release}", known


def _check_option(ep: str, known: KnownOptions, name: str, value: str) -> None:
    option = known.get(name)
    if option is None:
        usable = ", ".join(usable_name for usable_name, rule in known.items() if not rule.instead) or "none at all"
        raise UsageError(f"{ep} has no option {name!r}", hint=f"{did_you_mean(name, known)}It has: {usable}.")
    if option.instead:
        raise UsageError(f"{name} cannot be set by --provider-option", hint=option.instead)
    if not re.fullmatch(option.values, value):
        raise UsageError(f"--provider-option {name}={value}: the value is {option.words}")


def session_options(
    onnxruntime: Any, provider: Provider, options: RuntimeOptions, severity: int, left_out: Collection[str] = ()
) -> Any:
    """ONNX Runtime's ``SessionOptions`` for ``provider``, logging from ``severity`` (0 verbose ... 4 fatal) on.

    ``left_out`` names operators of sdort's library that are not registered.

    Raises:
        ProviderError: the custom operators are asked for and not built, or cannot be loaded.
        UsageError: ``options.custom_ops`` is no library.
    """
    result = onnxruntime.SessionOptions()
    result.log_severity_level = severity
    result.intra_op_num_threads = options.threads
    # After the first run of a shape it would take one block for all activations, beside what that run took.
    result.enable_mem_pattern = False
    # A tensor's memory would wait, free, for the next tensor that is known to be as large: of a transformer's step the
    # text's tensors do while the image's are computed, and a third of all it takes is that. On a GPU runs with it took
    # less than was counted (docs/measurements.md), and none without it was measured.
    result.enable_mem_reuse = provider.on_gpu
    # Its threads would otherwise go on spinning after a run and take the processor from the scheduler's torch threads.
    result.add_session_config_entry("session.force_spinning_stop", "1")
    if options.profile:
        result.enable_profiling = True
        result.profile_file_prefix = options.profile
    library = resolve(options.custom_ops)
    if library:
        register(result, library, provider.custom_kernels, left_out)
    return result


def can_tune(provider: Provider, options: RuntimeOptions) -> bool:
    """Whether there is something to search: the provider's kernels, or on a GPU sdort's own."""
    return bool(provider.tuning) or (provider.on_gpu and resolve(options.custom_ops) is not None)


def tuning_remark(provider: Provider, options: RuntimeOptions) -> str | None:
    """Remark on ``--tuning`` for the provider that is in use."""
    if options.tuning and not provider.tuning and can_tune(provider, options):
        return f"tuning on {provider.name}: the first steps try the variants of sdort's own kernels and take longer"
    if options.tuning and not provider.tuning:
        return f"--tuning has no effect on {provider.name}: that provider has nothing to search"
    if options.tuning:
        return f"tuning on {provider.name}: the first steps search for the fastest kernels and take longer"
    return provider.note or None
