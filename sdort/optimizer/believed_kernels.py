"""A provider's target by what its kernels computed on this machine (:mod:`sdort.runtime.operator_trials`)."""

from __future__ import annotations

from sdort.errors import ProviderError
from sdort.optimizer.provider_choice import runs_here
from sdort.providers import PROVIDERS
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.target import Target
from sdort.runtime.operator_trials import Trials, kept, tried


def believed_target(name: str, dtype: str) -> Target:
    """The target that graphs are made for: without the operators that are wrong here, with doubted ones that are right.

    Operators are tried now only where one is doubted and the provider is on this machine; else what was found before
    counts. A kernel that does not run says so itself when it is loaded, and changes nothing.

    Args:
        name: the provider's, as ``--provider`` takes it.
        dtype: of the graph's floats, ``float32`` or ``float16``.
    """
    provider = PROVIDERS[name]
    trials = {} if provider.is_fallback else _trials(provider, dtype)
    return provider.target.judged({name: trial.wrong for name, trial in trials.items() if trial.error is not None})


def _trials(provider: Provider, dtype: str) -> Trials:
    options = RuntimeOptions(provider.name)
    try:
        trials = kept(provider, options, dtype)
    except ProviderError:  # no ONNX Runtime is installed, or none that imports
        return {}
    if trials is None and provider.target.doubted and runs_here(provider.name):
        trials = tried(provider, options, dtype)
    return trials or {}
