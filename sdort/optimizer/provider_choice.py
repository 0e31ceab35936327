"""The execution provider to optimize for where none is named: what this machine has."""

from __future__ import annotations

from sdort.console import say, warn
from sdort.errors import ProviderError
from sdort.machine.distributions import flavour, installed_flavours
from sdort.machine.gpus import Gpu, amd_gpus, nvidia_gpus
from sdort.machine.system import System
from sdort.providers import AUTO, CPU, PROVIDERS
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.environment import device_name
from sdort.runtime.probe import choose_provider, why_not
from sdort.runtime.recommendation import recommend


def provider_here(name: str) -> str:
    """The provider that a name stands for: ``auto`` is the one on which ``sdort run`` would run; which, is said.

    Without ONNX Runtime, which optimizing does not need, the GPUs decide.

    Raises:
        ProviderError: several distributions of ONNX Runtime lie over each other, or the one here does not import.
    """
    if name != AUTO:
        return name
    if not installed_flavours():
        provider, gpu = for_gpus(System())
        reason = f"this machine has {gpu.name}" if gpu else "this machine has no GPU that another one is for"
        say(f"optimizing for {provider.name}: ONNX Runtime is not installed, and {reason}")
        return provider.name
    provider, refused = choose_provider(RuntimeOptions(AUTO))
    here = flavour()
    say(
        f"optimizing for {provider.name}, which the installed {here.distribution} {here.version} runs here "
        f"({device_name(provider)}); --provider is for another machine"
    )
    if provider.is_fallback:
        _remark_on_gpu(refused)
    return provider.name


def _remark_on_gpu(refused: str | None) -> None:
    """Say why a GPU is not what is optimized for."""
    fitting, gpu = for_gpus(System())
    if refused:
        warn(refused)
    elif gpu:
        warn(f"the installed ONNX Runtime is not for {gpu.name}: sdort doctor --provider {fitting.name} says which is")


def for_gpus(system: System) -> tuple[Provider, Gpu | None]:
    """The provider for the GPUs of a machine, and the GPU; the CPU's without any.

    It is the one that is recommended where none is installed (:func:`sdort.runtime.recommendation.recommend`).
    """
    found = recommend((), system)
    if not found.card:
        return CPU, None
    cards = (*amd_gpus(system), *nvidia_gpus(system))
    return PROVIDERS[found.provider], next(gpu for gpu in cards if gpu.name == found.card)


def best_here() -> Provider:
    """The provider that ``sdort run`` would take; the CPU's where none works."""
    try:
        return choose_provider(RuntimeOptions(AUTO))[0]
    except ProviderError:
        return CPU


def runs_here(name: str) -> bool:
    """Whether a provider works on this machine, for hints of what to do next."""
    try:
        flavour()
        return why_not(PROVIDERS[name], RuntimeOptions(name)) is None
    except ProviderError:
        return False
