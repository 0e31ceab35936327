"""Imports run one way: docs/layout.md lists the folders, and each imports only from those above it."""

from __future__ import annotations

import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support import import_graph
from support.import_graph import Imports, imports_of

ROOT = Path(__file__).parents[2]
LOOSE = {"console", "tables"}
"""The only modules at the root, beside the package itself and ``python -m sdort``."""
ENTRY = "sdort.__main__"
FACE = "sdort"
"""``sdort/__init__.py`` names the public functions; it stands above all folders, so that none may import from it."""


def sources(root: Path) -> dict[str, str]:
    """Module -> source text; ``fusions/`` is the package ``sdort.fusions``."""
    paths = import_graph.sources(root, {"sdort": "sdort", "fusions": "sdort.fusions"})
    return {name: path.read_text() for name, path in paths.items()}


@cache
def layers() -> list[str]:
    """The folders of docs/layout.md's table, from the ground up."""
    table = (ROOT / "docs" / "layout.md").read_text().partition("## Layers")[2]
    return re.findall(r"^\| `([\w/]+)` \|", table.partition("Outside of")[0], re.M)


def folder(module: str) -> str:
    """The row of a module: ``generation/files`` where its folder has one of its own, else the folder of ``sdort``."""
    _, first, *rest = module.split(".")
    own = f"{first}/{rest[0]}" if rest else first
    return own if own in layers() else first


def upwards(imports: Imports, order: list[str]) -> list[str]:
    """Imports against the order, as ``importer -> imported``."""
    level = {name: number for number, name in enumerate(order)}
    return [
        f"{module} -> {target}"
        for module, targets in sorted(imports.items())
        for target in sorted(targets)
        if module not in (FACE, ENTRY) and (target == FACE or folder(module) != folder(target))
        if target == FACE or level[folder(target)] > level[folder(module)]
    ]


def cycle(imports: Imports) -> list[str] | None:
    """Modules that import each other in a circle; None without one."""
    try:
        TopologicalSorter({m: ts for m, ts in imports.items() if m != FACE}).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return None


def test_the_table_lists_every_folder_once() -> None:
    names = layers()
    assert len(names) == len(set(names))
    assert set(names) == {folder(name) for name in sources(ROOT) if name not in (FACE, ENTRY)}


def test_two_modules_are_loose() -> None:
    assert {path.stem for path in (ROOT / "sdort").glob("*.py")} == LOOSE | {"__init__", "__main__"}


def test_no_import_runs_upwards_and_none_in_a_circle() -> None:
    imports = imports_of(sources(ROOT))
    assert upwards(imports, layers()) == []
    assert cycle(imports) is None


@pytest.mark.parametrize(
    ("module", "text", "fault"),
    [
        ("sdort.graph.weights", "from sdort.cli import main", "upwards"),
        ("sdort.graph.weights", "def f():\n    from sdort.rewrite import editor", "upwards"),
        ("sdort.graph.weights", "from sdort import __version__", "upwards"),
        ("sdort.graph.weights", "if TYPE_CHECKING:\n    import sdort.runtime.session", "upwards"),
        ("sdort.graph.pieces", "def f():\n    from sdort.graph import weights", "cycle"),
        ("sdort.fusions.gelu", "from sdort.passes.fold import fold", "upwards"),
        ("sdort.generation.prompts.wildcards", "from sdort.generation.requests import request", "upwards"),
        ("sdort.generation.files.infotext", "import sdort.generation.pipeline", "upwards"),
    ],
)
def test_a_wrong_import_is_seen(module: str, text: str, fault: str) -> None:
    modules = sources(ROOT)
    imports = imports_of({**modules, module: f"{modules[module]}\n{text}\n"})
    assert bool(upwards(imports, layers())) == (fault == "upwards")
    assert (cycle(imports) is not None) == (fault == "cycle") or fault == "upwards"
