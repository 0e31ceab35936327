"""Packages that sdort imports where they are needed and does not require: torch, and what is used beside it.

Nothing that sdort requires brings a torch, and no hint of it lets pip choose one: there is a build for each vendor's
GPUs, and the package index's is the one for CUDA.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from sdort.errors import MissingPackageError
from sdort.errors.plain_text import library_reason, some
from sdort.machine.distributions import installed_version, pip

TORCH = "torch>=2.10"
"""Requirement of the extra ``torch``."""
REQUIREMENTS = {
    "diffusers": "diffusers>=0.41",
    "onnxscript": "onnxscript>=0.7.1",
    "transformers": "transformers>=5.20",
}
"""Package -> what the extra ``export`` asks for. None of these requires torch."""
SERVING = {
    "fastapi": "fastapi>=0.115",
    "prometheus_client": "prometheus-client>=0.20",
    "python_multipart": "python-multipart>=0.0.18",
    "uvicorn": "uvicorn>=0.30",
}
"""Package -> what the extra ``serve`` asks for."""
SCALING = {"ray": "ray>=2.50"}
"""Package -> what the extra ``scale`` asks for."""
_ASKED = {**REQUIREMENTS, **SERVING, **SCALING}
TRACING = ("torch", *REQUIREMENTS)
"""Packages that read a checkpoint's architecture and trace it."""
COMPARING = ("torch", "diffusers", "transformers")
"""Packages that run a checkpoint in torch."""
RUNNING = "running a checkpoint in torch"
"""The purpose of those, in words for :func:`need_packages`."""

TORCH_INDEXES = {
    "AMD": "https://download.pytorch.org/whl/rocm7.2",
    "NVIDIA": "",
    "no GPU": "https://download.pytorch.org/whl/cpu",
}
"""Whose GPUs a build of torch is for -> the index that has it; empty is the one that pip asks anyhow."""

_DISTRIBUTIONS = {"PIL": "pillow"}
"""Import name -> the package's name on an index, where it is another."""
_CHECKOUT = Path(__file__).resolve().parents[2]


def need_packages(*names: str, what: str) -> None:
    """Check that packages are installed, before they are imported.

    Args:
        names: import names, ``torch`` and those of :data:`REQUIREMENTS`, :data:`SERVING` and :data:`SCALING`.
        what: who needs them, in words, to begin a sentence with.

    Raises:
        MissingPackageError: some are not; the hint has the commands that install them.
    """
    missing = [name for name in names if not is_installed(name)]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise MissingPackageError(
            f"{what} needs {some(missing, len(missing))}, which {are} not installed", hint=_install(missing)
        )
    for name in names:
        _remark_on_age(name)


def is_installed(name: str) -> bool:
    """Whether a top package is there to be imported; a folder without code in it is not."""
    if name in sys.modules:
        return sys.modules[name] is not None
    try:
        spec: ModuleSpec | None = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # something that stands in the way of imports
        return False
    return spec is not None and spec.origin is not None


def of_failed_import(error: ImportError) -> MissingPackageError | None:
    """An import that failed as sdort's own error; None where a module of sdort is what was not found."""
    name = (error.name or "").partition(".")[0]
    if isinstance(error, MissingPackageError) or name in ("", "sdort"):
        return None
    if not isinstance(error, ModuleNotFoundError):
        reason = library_reason(error)
        return MissingPackageError(f"{name} is installed and does not import: {reason}", hint=_again(name))
    return MissingPackageError(f"{name} is not installed", hint=_install([name]))


def _install(names: list[str]) -> str:
    """The commands that install packages, for a person who knows which GPU is in the machine."""
    lines = []
    if "torch" in names:
        lines.append("Install torch in the build for this machine's GPU, one of:")
        here = _vendors_here()
        for vendor, index in sorted(TORCH_INDEXES.items(), key=lambda entry: entry[0] not in here):
            mark = ", as here" if vendor in here else ""
            lines.append(f"{pip('install', TORCH, *(['--index-url', index] if index else []))}   # {vendor}{mark}")
    others = [_ASKED[name] for name in names if name in _ASKED]
    if others:
        lines += ["Install what lacks; none of it brings or replaces a torch:", pip("install", *others)]
    rest = [name for name in names if name != "torch" and name not in _ASKED]
    return "\n".join([*lines, *(_own(rest) if rest else [])])


def _vendors_here() -> set[str]:
    """The vendors of this machine's GPUs, as :data:`TORCH_INDEXES` names them."""
    # With click and rich, which may be what is not installed.
    from sdort.machine.gpus import amd_gpus, nvidia_gpus
    from sdort.machine.system import System

    system = System()
    found = {vendor for vendor, gpus in (("AMD", amd_gpus(system)), ("NVIDIA", nvidia_gpus(system))) if gpus}
    return found or {"no GPU"}


def _own(names: list[str]) -> list[str]:
    """The commands that install what sdort itself requires."""
    if not _is_installed_itself() and (_CHECKOUT / "pyproject.toml").is_file():
        return [
            f"{_CHECKOUT} is a source tree that is not installed. Install it with what it needs, and with the ONNX "
            "Runtime for this machine's GPU: rocm, migraphx, cuda, or cpu without one:",
            pip("install", "-e", f"{_CHECKOUT}[cpu]"),
        ]
    return ["Install it:", pip("install", *(_DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in names))]


def _is_installed_itself() -> bool:
    """Whether pip installed sdort; a build leaves metadata in a source tree, which lists no files."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution("sdort").read_text("RECORD") is not None
    except PackageNotFoundError:
        return False


def _again(name: str) -> str:
    if name == "torch":
        return "Install the build of torch for this machine's GPU again."
    version = installed_version(name)
    what = f"{name}=={version}" if version else name
    return f"Install it again:\n{pip('install', '--force-reinstall', '--no-deps', what)}"


@cache
def _remark_on_age(name: str) -> None:
    """Say once that a package is older than what sdort is tested with: pip cannot, where it did not install it."""
    wanted = {"torch": TORCH, **_ASKED}[name].partition(">=")[2]
    here = installed_version(name)
    if here is not None and _numbers(here) < _numbers(wanted):
        from sdort.console import warn  # with rich, which may be what is not installed

        warn(f"{name} {here} is installed, and sdort is tested with {wanted} and newer")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))
