"""bf16: which providers compute in it, and opening a model that was made for it (:mod:`sdort.onnx_io.precision_mark`).

The provider's option is set, and asked for. No other provider takes bf16 graphs; kernels and their types: ONNX
Runtime's docs/OperatorKernels.md for CUDA and the CPU, the wheel's provider library for ROCm. Without the fused norms
and convolutions a bf16 graph would be slower than an fp16 graph that keeps some nodes in fp32.

What runs before the steps of a denoiser stays in fp32: places and timesteps times frequencies need more than 8 bits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sdort.errors import ProviderError, UsageError
from sdort.onnx_io.precision_mark import made_for_bf16
from sdort.providers import PROVIDERS
from sdort.providers.plugins import find_plugin, own_name
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import known_options

_ON = ("1", "true", "True")


def refuse_bf16(provider: Provider) -> None:
    """Say why, where a provider has no bf16.

    Raises:
        UsageError: it has none.
    """
    if provider.bf16:
        return
    hint = "Take --fp16 auto: it keeps in fp32 what fp16 cannot hold."
    others = [name for name in _with_bf16() if provider.on_gpu and PROVIDERS[name].vendor == provider.vendor]
    if others:
        hint += f" For an {provider.vendor.upper()} GPU also: --provider {' or '.join(others)}."
    raise UsageError(f"--bf16 is not possible for {provider.name}: {provider.no_bf16}", hint=hint)


def _with_bf16() -> list[str]:
    return [name for name, provider in PROVIDERS.items() if provider.bf16]


def with_bf16(
    path: Path, component: str, provider: Provider, options: RuntimeOptions, made: bool | None = None
) -> RuntimeOptions:
    """The options that a model is opened with: those of a provider that computes in bf16 are added where it is to.

    The CPU takes such a model as the fp32 model that it is.

    Args:
        made: whether the model was made for bf16; None asks the file.

    Raises:
        ProviderError: the provider, or this release of it, has no bf16.
        UsageError: the user asked for another precision.
    """
    if provider.is_fallback or not (made_for_bf16(path) if made is None else made):
        return options
    if not provider.bf16:
        raise ProviderError(
            f"{path} was made for bf16, in which {provider.name} does not compute",
            component=component,
            hint=f"Run it on {' or '.join(_with_bf16())}, or make one for here:\n"
            f"    sdort optimize ORIGINAL OUT --provider {provider.name}",
        )
    libraries = options.ep_libraries
    owner, known = known_options(provider, libraries)
    missing = [name for name in provider.bf16 if name not in known]
    if missing:
        raise ProviderError(
            f"{owner} has no {missing[0]}, which {path} needs",
            component=component,
            hint=f"Install another one:\n{provider.install}",
        )
    precisions, asked = (
        {own_name(provider, name, libraries) for name in names} for names in (provider.precisions, provider.bf16)
    )
    for name, value in options.provider_options.items():
        own = own_name(provider, name, libraries)
        if own in precisions and (value in _ON) != (own in asked):
            raise UsageError(
                f"--provider-option {name}={value}: {path} was made for bf16",
                hint="Leave it out, or optimize the model without --bf16.",
            )
    for name, option in provider.superseding.items():
        if (
            name in os.environ
            and option in provider.precisions
            and (os.environ[name] in _ON) != (option in provider.bf16)
        ):
            raise ProviderError(
                f"{name}={os.environ[name]} in the environment takes the place of {option}; {path} was made for bf16",
                component=component,
                hint=f"unset {name}, or optimize the model without --bf16.",
            )
    return replace(options, provider_options={**options.provider_options, **provider.bf16})


def without_bf16(provider: Provider, options: RuntimeOptions) -> RuntimeOptions:
    """The options of :func:`with_bf16` for a part of the model that stays in fp32."""
    kept = {name: value for name, value in options.provider_options.items() if name not in provider.bf16}
    return replace(options, provider_options=kept)


def check_bf16(ort: Any, component: str, provider: Provider, options: RuntimeOptions) -> None:
    """Ask a session that was opened with :func:`with_bf16` whether it does.

    Raises:
        ProviderError: the provider left the option as it was.
    """
    asked = {name: value for name, value in provider.bf16.items() if options.provider_options.get(name) == value}
    library = find_plugin(provider, options.ep_libraries) if asked else None
    ep = library.plugin.execution_provider if library else provider.ep
    active: Mapping[str, str] = ort.get_provider_options().get(ep, {}) if asked else {}
    for name in (own_name(provider, each, options.ep_libraries) for each in asked):
        if active.get(name) not in _ON:
            raise ProviderError(
                f"{provider.name} was asked for {name}=1 and has {active.get(name, 'no such option')}: "
                "this is not bf16",
                component=component,
                hint="Optimize the model without --bf16 for this release.",
            )
