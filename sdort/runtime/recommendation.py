"""The provider for this machine: what ``auto`` takes, and what is recommended where it is not installed yet."""

from __future__ import annotations

import platform
from collections.abc import Collection
from dataclasses import dataclass

from sdort.machine.gpus import amd_architectures, amd_gpus, nvidia_gpus
from sdort.machine.system import System
from sdort.providers import CPU, PROVIDERS
from sdort.providers.cards import Way, ways_on
from sdort.providers.provider import Provider


def ways_here(system: System, os_name: str | None = None) -> list[tuple[str, Way]]:
    """The ways of this machine's cards that sdort has a provider for, the best first, each with its architecture.

    Args:
        os_name: as :func:`platform.system` names it, by default this one.
    """
    cards = [*amd_architectures(system), *(gpu.architecture or "sm_0" for gpu in nvidia_gpus(system))]
    found: dict[str, tuple[str, Way]] = {}
    for architecture in cards:
        for way in ways_on(architecture, os_name or platform.system()):
            if way.provider in PROVIDERS:
                found.setdefault(way.provider, (architecture, way))
    return [*found.values()]


def auto_order(available: Collection[str], system: System | None = None) -> list[Provider]:
    """The providers that ONNX Runtime lists, in the order in which ``auto`` tries them: those for this machine's cards,
    the best first (:data:`sdort.providers.cards.GENERATIONS`), then all others, and the CPU at last.

    Args:
        available: what ONNX Runtime calls those that it was built with.
    """
    listed = {name: provider for name, provider in PROVIDERS.items() if provider.ep in available}
    if sum(provider.on_gpu for provider in listed.values()) < 2:  # nothing to choose from: no card is asked
        return [*listed.values()]
    preferred = [way.provider for _, way in ways_here(system or System())]
    rank = {name: number for number, name in enumerate(preferred)}
    return sorted(listed.values(), key=lambda each: (each.is_fallback, rank.get(each.name, len(rank)), each.rank))


@dataclass(frozen=True)
class Recommendation:
    """The provider that fits a machine.

    Attributes:
        provider: its name.
        package: what pip installs to get it.
        card: the card that it is for; empty for the processor.
        architecture: of that card.
        installed: whether the installed ONNX Runtime has it, and it loads.
        why: in a few words.
        source: the public page of that; empty where there is none.
    """

    provider: str
    package: str
    card: str = ""
    architecture: str = ""
    installed: bool = False
    why: str = "there is no GPU that another one is for"
    source: str = ""


def recommend(loading: Collection[str], system: System, os_name: str | None = None) -> Recommendation:
    """The provider for a machine: the first of its cards' ways that loads, else the first that is not at its end.

    Args:
        loading: the names of the providers that are installed and load.
        os_name: as of :func:`ways_here`.
    """
    ways = ways_here(system, os_name)
    here = [each for each in ways if each[1].provider in loading]
    lasting = sorted(ways, key=lambda each: PROVIDERS[each[1].provider].last_release != "")
    for architecture, way in here or lasting:
        cards = (*amd_gpus(system), *nvidia_gpus(system))
        card = next((gpu.name for gpu in cards if gpu.architecture in (architecture, "")), "")
        loads = way.provider in loading
        return Recommendation(way.provider, way.package, card, architecture, loads, way.why, way.source)
    return Recommendation(CPU.name, "onnxruntime", installed=CPU.name in loading)
