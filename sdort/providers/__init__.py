"""The execution providers, one file each: its ``PROVIDER`` says what it runs and what it can be asked for.

A file in this folder is a provider, and that is all there is to adding one (docs/add-a-provider.md): the names that the
command line offers, the order in which ``auto`` tries them, tables and tests come from :data:`PROVIDERS`. The files
import neither ONNX Runtime nor graph libraries.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sdort.errors import UsageError, did_you_mean
from sdort.providers.provider import Provider

if TYPE_CHECKING:
    from sdort.providers.target import Target

_ABOUT_PROVIDERS = frozenset(
    {"bf16", "cards", "configured", "kernels", "plugins", "provider", "runtime_options", "session_settings", "target"}
)
"""The modules of this folder that are no provider, but about all of them."""

AUTO = "auto"
"""The name that stands for the first provider that loads."""

NORMAL, LOW = MEMORY = ("normal", "low")
"""Whether all models of a pipeline are in memory together, or one group of them at a time."""


def _discover() -> Iterator[Provider]:
    for module in pkgutil.iter_modules(__path__):
        if module.name in _ABOUT_PROVIDERS:
            continue
        provider = getattr(importlib.import_module(f"{__name__}.{module.name}"), "PROVIDER", None)
        if not isinstance(provider, Provider) or provider.name != module.name:
            raise TypeError(f"sdort/providers/{module.name}.py has no PROVIDER = Provider(...) named {module.name!r}")
        yield provider


PROVIDERS = {provider.name: provider for provider in sorted(_discover(), key=lambda entry: (entry.rank, entry.name))}
"""By name, in the order in which ``auto`` tries them."""

PROVIDER_NAMES = tuple(PROVIDERS)
"""The names that ``--provider`` takes."""

CPU = PROVIDERS["cpu"]
"""ONNX Runtime's own CPU provider, the one that is always there."""


def check_plugins(libraries: Iterable[str], where: str) -> None:
    """Refuse a library of a provider that nobody knows, or that no plugin brings.

    Args:
        libraries: their names: sdort's of a provider, or ONNX Runtime's.
        where: what names them, in words: ``--ep-library``.

    Raises:
        UsageError: which name, and the nearest that there is.
    """
    brought = ((provider, plugin) for provider in PROVIDERS.values() for plugin in provider.plugins)
    known = dict.fromkeys(name for provider, plugin in brought for name in (provider.name, plugin.execution_provider))
    for name in libraries:
        if name not in known:
            raise UsageError(
                f"{where} {name}: no plugin that sdort knows brings a provider of that name",
                hint=f"{did_you_mean(name, known)}There are {', '.join(known)}.",
            )


def find_provider(name: str) -> Provider:
    """The provider of that name.

    Raises:
        UsageError: no such provider.
    """
    if name not in PROVIDERS:
        raise UsageError(
            f"there is no execution provider {name!r}", hint=f"Choose one of: {', '.join((AUTO, *PROVIDERS))}."
        )
    return PROVIDERS[name]


def load_target(name: str) -> Target:
    """The target that graphs for a provider are made for, by the name that ``--provider`` takes.

    Raises:
        UsageError: no such provider.
    """
    return find_provider(name).target
