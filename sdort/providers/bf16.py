"""Opening a model that was made for bf16 (:mod:`sdort.onnx_io.bf16`): the provider's option is set, and asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sdort.errors import ProviderError, UsageError
from sdort.machine.distributions import flavour
from sdort.onnx_io.bf16 import made_for_bf16
from sdort.providers.options import Provider, RuntimeOptions

_ON = ("1", "true", "True")


def with_bf16(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> RuntimeOptions:
    """The options that a model is opened with: those of a provider that computes in bf16 are added where it is to.

    The CPU takes such a model as the fp32 model that it is.

    Raises:
        ProviderError: the provider, or this release of it, has no bf16.
        UsageError: the user asked for another precision.
    """
    if not provider.on_gpu or not made_for_bf16(path):
        return options
    if not provider.bf16:
        raise ProviderError(
            f"{path} was made for bf16, in which {provider.name} does not compute",
            component=component,
            hint=f"Run it on migraphx, or make one for here: sdort optimize ORIGINAL OUT --provider {provider.name}.",
        )
    release, known = provider.known_options(flavour().version)
    missing = [name for name in provider.bf16 if name not in known]
    if missing:
        raise ProviderError(
            f"{provider.ep} of ONNX Runtime {release} has no {missing[0]}, which {path} needs",
            component=component,
            hint=f"Install a newer one: pip install -U 'sdort[{provider.name}]'.",
        )
    for name, value in options.provider_options.items():
        if name in provider.precisions and (value in _ON) != (name in provider.bf16):
            raise UsageError(
                f"--provider-option {name}={value}: {path} was made for bf16",
                hint="Leave it out, or optimize the model without --bf16.",
            )
    return replace(options, provider_options={**options.provider_options, **provider.bf16})


def check_bf16(ort: Any, component: str, provider: Provider, options: RuntimeOptions) -> None:
    """Ask a session that was opened with :func:`with_bf16` whether it does.

    Raises:
        ProviderError: the provider left the option as it was.
    """
    asked = {name: value for name, value in provider.bf16.items() if options.provider_options.get(name) == value}
    given: Mapping[str, str] = ort.get_provider_options().get(provider.ep, {}) if asked else {}
    for name in asked:
        if given.get(name) not in _ON:
            raise ProviderError(
                f"{provider.name} was asked for {name}=1 and has {given.get(name, 'no such option')}: this is not bf16",
                component=component,
                hint="Optimize the model without --bf16 for this release.",
            )
