"""What the standard library lacks on Windows, by the type stubs that mypy has; and processes that lack it.

The stubs (typeshed) say ``if sys.platform != "win32":`` around each name that Windows has not.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import mypy

STUBS = Path(mypy.__file__).parent / "typeshed" / "stdlib"
NEWEST = (3, 14)


@cache
def names_on(module: str, platform: str) -> frozenset[str]:
    """The public names that a module of the standard library has on a platform; none if it has no stub."""
    paths = [path for path in (STUBS / f"{module}.pyi", STUBS / module / "__init__.pyi") if path.is_file()]
    names = _names(ast.parse(paths[0].read_text()).body, platform) if paths else ()
    return frozenset(name for name in names if name[0] != "_")


def _names(body: Iterable[ast.stmt], platform: str) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.If():
                system = SimpleNamespace(platform=platform, version_info=NEWEST, byteorder="little")
                try:
                    holds = eval(compile(ast.Expression(statement.test), "stub", "eval"), {"sys": system})
                except NameError:  # TYPE_CHECKING
                    holds = False
                yield from _names(statement.body if holds else statement.orelse, platform)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case ast.ImportFrom(names=names):
                yield from (each.asname for each in names if each.asname)


@cache
def lacking(module: str, platform: str, other: str) -> frozenset[str]:
    """The public names that a module has on one platform and not on the other."""
    return names_on(module, other) - names_on(module, platform)


@cache
def is_lacking(module: str, platform: str, other: str) -> bool:
    """Whether a whole module of the standard library is empty on a platform and not on the other."""
    return bool(names_on(module, other)) and not names_on(module, platform)


ENCODING = "cp1252"
"""Of pipes on a Windows of western Europe or America."""

MODULES = ("os", "signal", "socket", "time", "select", "mmap", "subprocess", "threading", "asyncio", "ctypes", "errno")
"""Modules of which a process as on Windows lacks names."""


def run(commands: Sequence[Sequence[object]], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``sdort`` with these arguments one after another in one process as on Windows (``sitecustomize.py``), up to
    one that fails; so are the processes that it starts.

    Args:
        folder: where it works, and where its home is.
    """
    arguments = json.dumps([[str(each) for each in command] for command in commands])
    return _python(["-c", _COMMANDS, arguments], folder)


def run_code(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python code in such a process. What it does itself counts as sdort's if it calls itself so."""
    return _python(["-c", code], folder)


def _python(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    names = {module: sorted(lacking(module, "win32", "linux")) for module in MODULES}
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XDG_CACHE_HOME")}
    own |= {
        "PYTHONPATH": str(Path(__file__).parent),
        "SDORT_TEST_LACKING": json.dumps(names),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONIOENCODING": ENCODING,
        "PYTHONUTF8": "0",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, cwd=folder, env=own, encoding=ENCODING, check=False)


_COMMANDS = """
import json, sys
from sdort.__main__ import main

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["sdort", *arguments]
    try:
        main()
    except SystemExit as left:
        if left.code:
            print("failed:", *arguments, file=sys.stderr)
            sys.exit(left.code)
"""
