"""The installed distribution of ONNX Runtime.

Every distribution installs the same import package, ``onnxruntime``. Two of them overwrite each other's files, and
uninstalling one then breaks the other, so exactly one must be there.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any

from sdort.errors import ProviderError

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

_INSTALL = (
    "Install the one for your device: pip install 'sdort[rocm]' (AMD), 'sdort[migraphx]' (AMD), "
    "'sdort[cuda]' (NVIDIA) or 'sdort[cpu]'."
)


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
        raise ProviderError("ONNX Runtime is not installed", hint=_INSTALL)
    if len(flavours) > 1:
        names = [installed.distribution for installed in flavours]
        raise ProviderError(
            f"{len(flavours)} distributions of ONNX Runtime are installed over each other: {', '.join(names)}",
            hint=f"Keep exactly one: pip uninstall -y {' '.join(names)}, then install it again. {_INSTALL}",
        )
    return flavours[0]


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
            f"{installed.distribution} {installed.version} is installed but does not import: {error}",
            hint="Install it again: "
            f"pip install --force-reinstall --no-deps {installed.distribution}=={installed.version}",
        ) from error
    return module


def start_session(onnxruntime: Any, model: str | bytes, settings: Any, providers: Sequence[Any]) -> tuple[Any, str]:
    """An ``InferenceSession``, and what ONNX Runtime printed meanwhile; nothing else in sdort makes one.

    Args:
        onnxruntime: the module (:func:`import_onnxruntime`).
        model: the path of an ``.onnx`` file, or a serialized model.
        settings: ONNX Runtime's ``SessionOptions``.
        providers: as ``InferenceSession`` takes them. Up to 1.22 it prints why one of them does not load and goes on
            without it, so ask the session's ``get_providers()``; from 1.23 on it raises.
    """
    printed = io.StringIO()
    with redirect_stdout(printed):
        session = onnxruntime.InferenceSession(model, settings, providers=providers, enable_fallback=0)
    session.disable_fallback()  # a failure in the middle of a run is an error, not a silent second try on the CPU
    return session, printed.getvalue()
