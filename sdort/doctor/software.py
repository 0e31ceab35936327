"""The installed software: Python, sdort, ONNX Runtime, and which of its providers really load."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from sdort.doctor.finding import OK, PROBLEM, WARNING, Finding
from sdort.errors import ProviderError
from sdort.machine.distributions import flavour, hidden_copies, import_onnxruntime, installed_flavours, pip
from sdort.machine.onnxruntime_copies import Flavour, RuntimeCopy
from sdort.machine.subprocesses import WorkerError, run_worker
from sdort.machine.version import __version__
from sdort.providers import PROVIDERS
from sdort.providers.plugins import is_there
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.operator_trials import in_words, tried
from sdort.runtime.probe import installed_library, why_not

_SECTION = "software"
_TIMEOUT = 300
"""Seconds for a provider to load; MIGraphX compiles."""


@dataclass(frozen=True)
class TriedKernels:
    """The outcome of trying a provider's operators (:mod:`sdort.runtime.operator_trials`).

    Attributes:
        told: in words.
        wrong: whether one computes something else than it should.
    """

    told: str
    wrong: bool


@dataclass(frozen=True)
class Software:
    """ONNX Runtime here.

    Attributes:
        flavours: the installed distributions, of which there should be one.
        error: why it cannot be imported, with the commands that repair it; None if it can.
        listed: the providers that it was built with, by our names.
        refusals: those of them that do not load, and why.
        libraries: the providers' shared libraries.
        hidden: copies of ONNX Runtime further down on Python's path.
        kernels: what came of trying the operators of those that load.
        plugins: libraries of plugins that the user names, by the provider's name.
        imported: the version that the module which Python imports says of itself.
    """

    flavours: tuple[Flavour, ...]
    error: ProviderError | None = None
    listed: tuple[str, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, Path] = field(default_factory=dict)
    hidden: tuple[RuntimeCopy, ...] = ()
    kernels: Mapping[str, TriedKernels] = field(default_factory=dict)
    plugins: Mapping[str, str] = field(default_factory=dict)
    imported: str = ""

    def works(self, name: str | None) -> bool:
        """Whether a provider would be used if asked for; without a name, whether any would."""
        return any(provider not in self.refusals for provider in self.listed if name in (None, provider))


def installed_software(device_id: int = 0, plugins: Mapping[str, str] | None = None) -> Software:
    """The packages of this environment; every provider is loaded once, in a process of its own.

    Args:
        plugins: libraries, by the provider's name (``--ep-library``).
    """
    plugins = plugins or {}
    flavours, hidden = tuple(installed_flavours()), tuple(hidden_copies())
    try:
        flavour()
        listed = tuple(name for name, provider in PROVIDERS.items() if is_there(provider, plugins))
    except ProviderError as error:
        return Software(flavours, error, hidden=hidden)
    refusals = {name: refusal(name, device_id, plugins) for name in listed}
    libraries = {name: installed_library(PROVIDERS[name]) for name in listed}
    kernels = {name: tried_kernels(name, device_id, plugins) for name in listed if refusals[name] is None}
    return Software(
        flavours,
        None,
        listed,
        {name: reason for name, reason in refusals.items() if reason is not None},
        {name: path for name, path in libraries.items() if path is not None},
        hidden,
        {name: told for name, told in kernels.items() if told is not None},
        plugins,
        str(import_onnxruntime().__version__),
    )


def refusal(name: str, device_id: int = 0, plugins: Mapping[str, str] | None = None) -> str | None:
    """The reason why a provider does not load, None if it does: asked in a process that a driver may end."""
    if PROVIDERS[name].is_fallback:
        return None
    task = {"name": name, "device_id": device_id, "plugins": dict(plugins or {})}
    try:
        reason: str | None = run_worker("sdort.doctor.software:load", task, timeout=_TIMEOUT)
    except TimeoutExpired:
        return f"it did not load within {_TIMEOUT} s. Look for messages of the GPU's driver in dmesg"
    except WorkerError as error:
        return f"loading it ended the process with code {error.code}, which said: {error.said}"
    return reason


def load(name: str, device_id: int, plugins: Mapping[str, str]) -> str | None:
    """Load a provider in this process; the reason why it does not, None if it does."""
    return why_not(PROVIDERS[name], RuntimeOptions(device_id=device_id, ep_libraries=plugins))


def tried_kernels(name: str, device_id: int = 0, plugins: Mapping[str, str] | None = None) -> TriedKernels | None:
    """The outcome of trying a provider's operators; None where there are none, or no answer."""
    if PROVIDERS[name].is_fallback:
        return None
    task = {"name": name, "device_id": device_id, "plugins": dict(plugins or {})}
    try:
        answer = run_worker("sdort.doctor.software:try_kernels", task, timeout=2 * _TIMEOUT)
    except (TimeoutExpired, WorkerError):
        return None
    return None if answer is None else TriedKernels(**answer)


def try_kernels(name: str, device_id: int, plugins: Mapping[str, str]) -> dict[str, Any] | None:
    """Try a provider's operators, in its usual precision; :class:`TriedKernels` as JSON values."""
    provider = PROVIDERS[name]
    dtype = {"fp16": "float16", "fp32": "float32"}[provider.usual_precision]
    trials = tried(provider, RuntimeOptions(name, device_id=device_id, ep_libraries=plugins), dtype)
    return asdict(TriedKernels(in_words(trials, dtype), any(t.wrong for t in trials.values()))) if trials else None


def software_findings(software: Software, requested: str | None) -> Iterator[Finding]:
    """Versions, and every provider that is listed or wanted."""
    yield Finding(_SECTION, "Python", OK, f"{platform.python_version()}, {sys.executable}")
    yield Finding(_SECTION, "sdort", OK, __version__)
    if software.error:
        yield Finding(_SECTION, "ONNX Runtime", PROBLEM, software.error.message, software.error.hint or "")
        return
    here = software.flavours[0]
    yield _runtime(here, software.imported)
    for copy in software.hidden:
        owners = ", ".join(f"{owner.distribution} {owner.version}" for owner in copy.owners)
        message = f"{owners} in {copy.folder}, behind the one above on Python's path: not used, and in nobody's way"
        yield Finding(_SECTION, "other copy", OK, message)
    for name in PROVIDERS:
        if name in software.listed:
            yield _listed(name, software.refusals.get(name), PROBLEM if requested == name else _severity(name))
            yield from _superseding(name)
            if kernels := software.kernels.get(name):
                step = "sdort optimize leaves what is wrong in standard operators." if kernels.wrong else ""
                yield Finding(_SECTION, f"{name} kernels", WARNING if kernels.wrong else OK, kernels.told, step)
        elif name == requested:
            message = f"{here.distribution} was built without {PROVIDERS[name].ep}"
            yield Finding(_SECTION, name, PROBLEM, message, PROVIDERS[name].how_to_get)


def _runtime(installed: Flavour, imported: str) -> Finding:
    """The distribution, and whether its code is what Python imports: another one may have been copied over it."""
    what = f"{installed.distribution} {installed.version}"
    if not imported or _release(imported) == _release(installed.version):
        return Finding(_SECTION, "ONNX Runtime", OK, what)
    step = f"Install it again:\n{pip('install', '--force-reinstall', '--no-deps', what.replace(' ', '=='))}"
    message = f"{what} is installed, and what Python imports is {imported}: other files lie over its own"
    return Finding(_SECTION, "ONNX Runtime", PROBLEM, message, step)


def _release(version: str) -> list[str]:
    """The first three numbers of a version: packagers add to them (``1.22.2.post3``)."""
    return re.findall(r"\d+", version)[:3]


def _superseding(name: str) -> Iterator[Finding]:
    """Variables of the environment that decide in the place of options."""
    for variable, option in PROVIDERS[name].superseding.items():
        if variable in os.environ:
            what = f"takes the place of the option {option}" if option else f"changes what {name} does"
            message = f"{variable}={os.environ[variable]} is set and {what}, whatever sdort asks for"
            yield Finding(_SECTION, name, WARNING, message, f"unset {variable}, unless it is meant so.")


def _severity(name: str) -> str:
    """Severity of a provider's failure to load, where nobody asked for it."""
    return WARNING if PROVIDERS[name].on_request else PROBLEM


def _listed(name: str, reason: str | None, severity: str) -> Finding:
    if reason is None:
        return Finding(_SECTION, name, OK, f"{PROVIDERS[name].ep} is listed and loads")
    message, _, step = reason.partition(". ")
    return Finding(_SECTION, name, severity, f"{PROVIDERS[name].ep} is listed and does not load: {message}", step)
