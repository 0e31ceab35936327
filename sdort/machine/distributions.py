"""The installed distribution of ONNX Runtime.

Every distribution installs the same import package, ``onnxruntime``. Two of them overwrite each other's files, and
uninstalling one then breaks the other, so exactly one must be there.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sdort.errors import ProviderError
from sdort.errors.plain_text import library_reason

DISTRIBUTIONS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-rocm",
    "onnxruntime-migraphx",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-training",
    "ort-nightly",
    "ort-nightly-gpu",
    "ort-nightly-rocm",
)
"""Distributions on package indexes whose import name is ``onnxruntime``."""

REQUIREMENTS = {
    "rocm": "onnxruntime-rocm==1.22.2.post3",
    "migraphx": "onnxruntime-migraphx>=1.23",
    "cuda": "onnxruntime-gpu>=1.22",
    "cpu": "onnxruntime>=1.22",
    "report": "matplotlib>=3.8",
}
"""What each extra of sdort in pyproject.toml asks for. sdort is on no package index, so a hint names the package."""

_DEVICES = {"rocm": "AMD", "migraphx": "AMD, compiles for every GPU", "cuda": "NVIDIA", "cpu": "no GPU"}

FALLBACK = "CPUExecutionProvider"
"""The execution provider that every build has, and gives the nodes that no other takes."""


@dataclass(frozen=True)
class Flavour:
    """The installed distribution, such as ``onnxruntime-rocm`` ``1.22.2``."""

    distribution: str
    version: str


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, None when it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # sixty modules, which --help needs not

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def installed_flavours() -> list[Flavour]:
    """Every installed distribution of ONNX Runtime, in the order of :data:`DISTRIBUTIONS`."""
    versions = {name: installed_version(name) for name in DISTRIBUTIONS}
    return [Flavour(name, installed) for name, installed in versions.items() if installed is not None]


def flavour() -> Flavour:
    """The one installed distribution.

    Raises:
        ProviderError: none or several are installed; the hint has the pip commands that repair it.
    """
    flavours = installed_flavours()
    if not flavours:
        raise ProviderError("ONNX Runtime is not installed", hint=_one_of_each())
    if len(flavours) > 1:
        names = [installed.distribution for installed in flavours]
        raise ProviderError(
            f"{len(flavours)} distributions of ONNX Runtime are installed over each other: {', '.join(names)}",
            hint=f"Exactly one can be there. Uninstall them:\n{pip('uninstall', '-y', *names)}\n{_one_of_each()}",
        )
    return flavours[0]


def pip(*arguments: str) -> str:
    """The command line, indented by four spaces, with which this environment's packages are changed.

    uv's environments have no pip of their own.
    """
    python = sys.executable if shutil.which("python") != sys.executable else "python"
    command = [python, "-m", "pip", *arguments]
    if importlib.util.find_spec("pip") is None and shutil.which("uv"):
        command = ["uv", "pip", arguments[0], "--python", sys.executable, *arguments[1:]]
        command = [word for word in command if (arguments[0], word) != ("uninstall", "-y")]  # it never asks
    return "    " + shlex.join(command)


def install_commands(requirement: str) -> str:
    """The command lines that install ``requirement``, each indented by four spaces.

    A distribution of ONNX Runtime takes the place of those that are there: they are uninstalled first.
    """
    name = re.split(r"[^\w.-]", requirement)[0]
    others = [other.distribution for other in installed_flavours() if name in DISTRIBUTIONS]
    if name in others:
        return pip("install", "-U", requirement)
    return "\n".join([*([pip("uninstall", "-y", *others)] if others else []), pip("install", requirement)])


def _one_of_each() -> str:
    lines = [f"{pip('install', REQUIREMENTS[name])}   # {device}" for name, device in _DEVICES.items()]
    return "\n".join(["Install the one for your device:", *lines])


@cache
def import_onnxruntime() -> Any:
    """The ``onnxruntime`` module, after checking, once, that exactly one distribution provides it.

    Raises:
        ProviderError: none or several are installed, or the installed one does not import.
    """
    installed = flavour()
    try:
        module = importlib.import_module("onnxruntime")
        # What an uninstalled second distribution leaves behind is an empty namespace package, which imports.
        _ = module.InferenceSession
    except (ImportError, AttributeError, OSError) as error:
        raise ProviderError(
            f"{installed.distribution} {installed.version} is installed but does not import: {library_reason(error)}",
            hint="Install it again:\n"
            + pip("install", "--force-reinstall", "--no-deps", f"{installed.distribution}=={installed.version}"),
        ) from error
    return module


def start_session(onnxruntime: Any, model: str | bytes, settings: Any, providers: Sequence[Any]) -> tuple[Any, str]:
    """An ``InferenceSession``, and what ONNX Runtime printed meanwhile; nothing else in sdort makes one. In any thread.

    Args:
        onnxruntime: the module (:func:`import_onnxruntime`).
        model: the path of an ``.onnx`` file, or a serialized model.
        settings: ONNX Runtime's ``SessionOptions``.
        providers: as ``InferenceSession`` takes them. Up to 1.22 it prints why one of them does not load and goes on
            without it, so ask the session's ``get_providers()``; from 1.23 on it raises.
    """
    # Of that module alone: standard output is the whole process's.
    vars(sys.modules[onnxruntime.InferenceSession.__module__])["print"] = _print
    lines: list[str] = []
    _printed.lines = lines
    try:
        session = onnxruntime.InferenceSession(model, settings, providers=providers, enable_fallback=0)
    finally:
        del _printed.lines
    session.disable_fallback()  # a failure in the middle of a run is an error, not a silent second try on the CPU
    return session, "\n".join(lines)


_printed = threading.local()
"""``lines`` of the session that a thread is opening."""


def _print(*words: object, **options: Any) -> None:
    """ONNX Runtime's ``print``: what it says of a session that is being opened is kept."""
    lines: list[str] | None = getattr(_printed, "lines", None)
    if lines is None:
        print(*words, **options)  # noqa: T201 - who else uses ONNX Runtime in this process
    else:
        lines.append(" ".join(map(str, words)))
