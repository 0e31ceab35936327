"""The installed distribution of ONNX Runtime.

Every distribution installs the same import package, ``onnxruntime``. Two of them in one folder overwrite each other's
files, and uninstalling one then breaks the other, so exactly one must be there. In two folders the first on Python's
path is imported, and the other one is in nobody's way.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from sdort.errors import ProviderError
from sdort.errors.plain_text import library_reason
from sdort.machine.onnxruntime_copies import PACKAGE, Flavour, RuntimeCopy, find_copies

REQUIREMENTS = {
    "rocm": "onnxruntime-rocm==1.22.2.post3",
    "migraphx": "onnxruntime-migraphx>=1.23",
    "cuda": "onnxruntime-gpu>=1.22",
    "dml": "onnxruntime-directml>=1.24",
    "cpu": "onnxruntime>=1.22",
    "report": "matplotlib>=3.8",
}
"""Requirement of each extra of sdort in pyproject.toml. sdort is on no package index, so a hint names the package."""

_DEVICES = {
    "rocm": "AMD",
    "migraphx": "AMD, compiles for every GPU",
    "cuda": "NVIDIA",
    "dml": "Windows alone: every GPU for DirectX 12",
    "cpu": "no GPU",
}

FALLBACK = "CPUExecutionProvider"
"""The execution provider that every build has, and gives the nodes that no other takes."""


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, None when it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # sixty modules, which --help needs not

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def installed_copies() -> list[RuntimeCopy]:
    """The copies of ONNX Runtime on this Python's path, the one that it imports first."""
    return find_copies(sys.path)


def installed_flavours() -> list[Flavour]:
    """Every distribution that installed the copy of ONNX Runtime that Python imports, by name."""
    copies = installed_copies()
    return list(copies[0].owners) if copies else []


def hidden_copies() -> list[RuntimeCopy]:
    """The copies of ONNX Runtime behind the one that Python imports, which are in nobody's way."""
    return installed_copies()[1:]


def flavour() -> Flavour:
    """The one installed distribution.

    Raises:
        ProviderError: none or several are installed; the hint has the commands that repair it.
    """
    flavours = installed_flavours()
    if not flavours:
        raise ProviderError("ONNX Runtime is not installed", hint=_one_of_each())
    if len(flavours) > 1:
        copy = installed_copies()[0]
        names, removal = _names(copy), _removal(copy)
        hint = [f"Exactly one can be in {copy.folder}.{' Remove them:' * bool(removal)}", *removal, _one_of_each()]
        raise ProviderError(
            f"{len(flavours)} distributions of ONNX Runtime are installed over each other: {', '.join(names)}",
            hint="\n".join(hint),
        )
    return flavours[0]


def _removal(copy: RuntimeCopy) -> list[str]:
    """The command that removes a copy: pip's, where pip installs to; it does not know a folder on ``PYTHONPATH``."""
    if _is_pips(copy):
        return [pip("uninstall", "-y", *_names(copy))]
    if _is_behind(copy):  # what pip installs wins
        return []
    return ["    " + shlex.join(["rm", "-r", str(copy.folder / PACKAGE), *map(str, copy.records)])]


def _is_pips(copy: RuntimeCopy) -> bool:
    import sysconfig  # --help needs it not

    return str(copy.folder) in {os.path.realpath(place) for place in (*sysconfig.get_paths().values(), *_user_site())}


def _is_behind(copy: RuntimeCopy) -> bool:
    """Whether the copy stands behind the folder that pip installs to, as those of an environment's base do."""
    import sysconfig

    path, own = [os.path.realpath(entry) for entry in sys.path], os.path.realpath(sysconfig.get_paths()["purelib"])
    return own in path and str(copy.folder) in path and path.index(own) < path.index(str(copy.folder))


def _user_site() -> list[str]:
    import site

    return [site.getusersitepackages()] if site.ENABLE_USER_SITE else []


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
    name = _name(requirement)
    if not re.match(r"onnxruntime(?!-ep-)|ort-", name):  # a plugin lies beside it
        return pip("install", requirement)
    copies = installed_copies()
    if any(_is_pips(copy) and name in _names(copy) for copy in copies[:1]):
        return pip("install", "-U", requirement)
    return "\n".join([*(_removal(copies[0]) if copies else []), _install(requirement)])


def _install(requirement: str) -> str:
    """The command that installs a distribution of ONNX Runtime here, though pip sees one by its name elsewhere."""
    elsewhere = [name for copy in installed_copies() if not _is_pips(copy) for name in _names(copy)]
    again = ["--ignore-installed", "--no-deps"] if _name(requirement) in elsewhere else []
    return pip("install", *again, requirement)


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0]


def _names(copy: RuntimeCopy) -> list[str]:
    return [owner.distribution for owner in copy.owners]


def _one_of_each() -> str:
    lines = [f"{_install(REQUIREMENTS[name])}   # {device}" for name, device in _DEVICES.items()]
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


@cache
def built_in() -> frozenset[str]:
    """The execution providers that this ONNX Runtime was built with, by its names; those of plugins are added to its
    own list when they are registered, so that this is to be asked before.

    Raises:
        ProviderError: as :func:`import_onnxruntime`.
    """
    return frozenset(import_onnxruntime().get_available_providers())


def start_session(
    onnxruntime: Any, model: str | bytes, settings: Any, providers: Sequence[Any] | None
) -> tuple[Any, str]:
    """An ``InferenceSession``, and what ONNX Runtime printed meanwhile; nothing else in sdort makes one. In any thread.

    Args:
        onnxruntime: the module (:func:`import_onnxruntime`).
        model: the path of an ``.onnx`` file, or a serialized model.
        settings: ONNX Runtime's ``SessionOptions``.
        providers: as ``InferenceSession`` takes them; None where the settings have a plugin's device. Up to 1.22 it
            prints why one of them does not load and goes on without it, so ask the session's ``get_providers()``; from
            1.23 on it raises.
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
