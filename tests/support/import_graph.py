"""Which module imports which, read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

Imports = dict[str, set[str]]
"""Module -> the modules, of those that are asked about, that it imports."""


def sources(root: Path, packages: Mapping[str, str]) -> dict[str, Path]:
    """Module -> its file.

    Args:
        packages: folder of ``root`` -> the package that it is; "" where its modules are imported by their bare names.
    """
    found = {}
    for folder, package in packages.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = [*package.split("."), *path.relative_to(root / folder).with_suffix("").parts]
            found[".".join(part for part in (parts[:-1] if parts[-1] == "__init__" else parts) if part)] = path
    return found


def imports_of(modules: Mapping[str, str]) -> Imports:
    """Every import statement of the modules' texts, wherever it stands."""
    return {name: {each for each in _known(text, modules) if each != name} for name, text in modules.items()}


def _known(text: str, modules: Mapping[str, str]) -> Iterator[str]:
    for module, name in _imported(text):
        if module in modules:
            submodule = f"{module}.{name}"
            yield submodule if name and submodule in modules else module


@cache
def _imported(text: str) -> tuple[tuple[str, str], ...]:
    """Each import's module and name; "" for a name where the module is imported."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, alias.name) for alias in node.names]
    return tuple(found)
