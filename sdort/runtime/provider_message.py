"""The announcement of the execution provider that will run."""

from __future__ import annotations

from sdort.console import detail, say, warn
from sdort.operator_library.library import library_hash, resolve
from sdort.providers import AUTO
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import tuning_remark
from sdort.runtime.environment import device_name
from sdort.runtime.probe import choose_provider


def announce(options: RuntimeOptions, chosen: tuple[Provider, str | None] | None = None) -> None:
    """Say which provider will run and why it is not another, and what ``--tuning`` does there.

    Args:
        chosen: what :func:`sdort.runtime.probe.choose_provider` gave, where it was asked already.

    Raises:
        ProviderError: as :func:`sdort.runtime.probe.choose_provider`.
    """
    provider, fallback = chosen or choose_provider(options)
    if fallback:
        warn(fallback)
    if fallback or options.provider == AUTO:
        say(f"running on {provider.name}: {device_name(provider, options.device_id)}")
    library = resolve(options.custom_ops)
    if library:
        detail(f"custom operators: {library}")
    remark = tuning_remark(provider, options)
    if remark:
        (say if options.tuning else detail)(remark)


def custom_ops_hash(options: RuntimeOptions) -> str | None:
    """A short hash of the library of custom operators that takes part; None without one."""
    library = resolve(options.custom_ops)
    return library_hash(library) if library else None
