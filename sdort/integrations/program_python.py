"""The Python of another program: what it has installed, and the command that adds sdort and changes nothing of that.

Programs that draw bring their torch, in the build for the machine's GPU. pip replaces no installed package that fits
what is asked for, so the torch that is there is asked for by its version: pip refuses before it takes another one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from sdort.machine.onnxruntime_copies import RuntimeCopy, find_copies
from sdort.machine.system import System
from sdort.optimizer.provider_choice import for_gpus

_ENVIRONMENTS = ("venv", ".venv", "env", ".env", "python_embeded", "python_embedded", "../venv", "../.venv")
"""Where programs have their environment, from their folder."""
_CHECKOUT = Path(__file__).resolve().parents[2]
_OF_BUILDS = {"rocm": "migraphx", "cu": "cuda", "cpu": "cpu", "xpu": "cpu"}
"""The start of a build's name in torch's version -> the extra of sdort with the ONNX Runtime for the same device."""


@dataclass(frozen=True)
class ProgramPython:
    """The environment of a program.

    Attributes:
        python: its interpreter.
        versions: of the packages in it, by name.
        runtimes: the copies of ONNX Runtime in it.
    """

    python: Path
    versions: dict[str, str]
    runtimes: tuple[RuntimeCopy, ...]


def find_python(folder: Path) -> ProgramPython | None:
    """The environment in a program's folder, or beside it; None where there is none to be seen."""
    for place in _ENVIRONMENTS:
        packages = sorted((folder / place).glob("lib/python3*/site-packages"))
        python = folder / place / "bin" / "python"
        if packages and python.exists():
            path = [str(each) for each in packages]
            versions = {each.metadata["Name"].lower(): each.version for each in distributions(path=path)}
            return ProgramPython(python, versions, tuple(find_copies(path)))
    return None


def advice(found: ProgramPython | None, program: str) -> Iterator[str]:
    """Instructions for a program's Python, with a command to copy on a line of its own.

    Args:
        program: its name.
    """
    if found is None:
        extra = for_gpus(System())[0].name
        yield f"The Python that runs {program} needs sdort too. To install it, with that Python{_where()}:"
        yield _pip(Path("python"), "install", f"{_checkout()}[{extra},export]")
        yield f"This replaces no torch. If {program} has an ONNX Runtime already, leave {extra} out."
        return
    owners = [owner.distribution for copy in found.runtimes[:1] for owner in copy.owners]
    if len(owners) > 1:
        yield f"{program}'s Python has {len(owners)} ONNX Runtimes over each other. Remove them first:"
        yield _pip(found.python, "uninstall", "-y", *owners)
    extras = ["export"] if len(owners) == 1 else [_flavour(found), "export"]
    if "sdort" in found.versions and len(owners) == 1:
        yield f"{program}'s Python has sdort {found.versions['sdort']} and {owners[0]}."
        return
    torch = [f"torch=={found.versions['torch']}"] if "torch" in found.versions else []
    yield f"{program}'s Python needs sdort too. To install it{_where()}:"
    yield _pip(found.python, "install", f"{_checkout()}[{','.join(extras)}]", *torch)
    if torch:
        yield f"{torch[0]} is there and stays: pip ends with an error before it takes another."


def _pip(python: Path, *arguments: str) -> str:
    return "    " + shlex.join([str(python), "-m", "pip", *arguments])


def _flavour(found: ProgramPython) -> str:
    """The extra with the ONNX Runtime for the device that the program's torch is for; without a torch, for the GPUs."""
    build = re.search(r"\+([a-z]+)", found.versions.get("torch", ""))
    if build and build[1] in _OF_BUILDS:
        return _OF_BUILDS[build[1]]
    return for_gpus(System())[0].name


def _checkout() -> str:
    return str(_CHECKOUT) if (_CHECKOUT / "pyproject.toml").is_file() else "."


def _where() -> str:
    return ", in sdort's checkout" if _checkout() == "." else ""
