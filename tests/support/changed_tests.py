"""The tests that see a change, for ``scripts/test.sh --changed``: those that stand nearest to each changed file.

    python tests/support/changed_tests.py [SINCE]    # a commit; by default where this branch left main

Nearest to a module are the tests that import it, by themselves or through tests/support. Where there are none, the
tests of what imports the module are, and so on. Nothing imports fusions, operators and commands, which are found by
their names: the tests of their folder are theirs. A test that names a page, a script or a fusion in its text is a test
of it. Each test file is printed on a line of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support import import_graph  # noqa: E402
from support.import_graph import Imports  # noqa: E402

PACKAGES = {"sdort": "sdort", "fusions": "sdort.fusions", "scripts": "", "tests/support": "support", "tests": "tests"}
ALWAYS = ("project/test_layers.py", "project/test_direct_opens.py", "project/test_runtime_imports.py")
"""What holds for every module."""
PAGES = ("project/test_docs.py",)
"""What holds for every page."""
BY_NAME = ("fusions/", "sdort/cli/", "sdort/operators/")
"""Modules that are found by their names: the tests of their folder see them, whatever imports them besides."""
IN_TEXTS = ("fusions/", "scripts/", "docs/", "custom_ops/")
"""Where files are that tests may name without an import."""


def changed(since: str) -> list[str]:
    """The files that differ from a commit, new ones too, relative to the checkout; those that are gone too."""
    asked = (("diff", "--name-only", since), ("ls-files", "--others", "--exclude-standard"))
    said = [subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True) for words in asked]
    return sorted({line for done in said for line in done.stdout.splitlines()})


def left_main() -> str:
    """Where this branch left main; without a branch of one's own, the commit before."""
    for main in ("origin/main", "main", "origin/HEAD"):
        done = subprocess.run(["git", "merge-base", "HEAD", main], cwd=ROOT, capture_output=True, text=True)
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        if done.returncode == 0 and done.stdout != head.stdout:
            return done.stdout.strip()
    return "HEAD~1" if not changed("HEAD") else "HEAD"


def nearest_tests(files: Collection[str], modules: Mapping[str, Path]) -> list[str]:
    """The test files, relative to the checkout."""
    places = {path.relative_to(ROOT).as_posix(): name for name, path in modules.items()}
    texts = {name: path.read_text() for name, path in modules.items()}
    tests = {name for name in modules if name.rpartition(".")[2].startswith("test_")}
    importers = reversed_imports(import_graph.imports_of(texts))
    found = {name for file in files if (name := places.get(file)) in tests}
    for file in files:
        if (module := places.get(file)) and module not in tests:
            found |= nearest(module, importers, tests) or in_folder(module, tests)
            found |= in_folder(module, tests) if file.startswith(BY_NAME) else set()
        if file.startswith(IN_TEXTS) or "/" not in file:
            found |= {name for name in tests if names(texts[name], file)}
    wanted = {modules[name].relative_to(ROOT).as_posix() for name in found}
    wanted |= {f"tests/{name}" for name in ALWAYS if any(file.endswith(".py") for file in files)}
    wanted |= {f"tests/{name}" for name in PAGES if any(file.endswith(".md") for file in files)}
    return sorted(wanted)


def reversed_imports(imports: Imports) -> Imports:
    """Module -> the modules that import it."""
    found: Imports = {}
    for module, targets in imports.items():
        for target in targets:
            found.setdefault(target, set()).add(module)
    return found


def nearest(module: str, importers: Imports, tests: Collection[str]) -> set[str]:
    """The tests at the smallest number of imports from a module; a step through tests/support does not count."""
    seen, ring = {module}, {module}
    while ring:
        near = with_support(ring, importers)
        if reached := {name for name in near if name in tests}:
            return reached
        ring = {name for name in near if not name.startswith("support.")} - seen
        seen |= ring
    return set()


def in_folder(module: str, tests: Collection[str]) -> set[str]:
    """The tests of the folder that a module of sdort is in."""
    parts = module.split(".")
    return {name for name in tests if name.startswith(f"tests.{parts[min(1, len(parts) - 1)]}.")}


def with_support(ring: Collection[str], importers: Imports) -> set[str]:
    """The importers of some modules, and those that import them through modules of tests/support."""
    found: set[str] = set()
    left = list(ring)
    while left:
        new = importers.get(left.pop(), set()) - found
        found |= new
        left += [name for name in new if name.startswith("support.")]
    return found


def names(text: str, file: str) -> bool:
    """Whether a test's text names a file: a module by its stem in quotes, another file by its name."""
    path = Path(file)
    wanted = rf"""["'/]{re.escape(path.stem)}(\.py)?["']""" if path.suffix == ".py" else re.escape(path.name)
    return re.search(wanted, text) is not None


def known_modules() -> dict[str, Path]:
    """Every module, under the name by which others import it."""
    found = import_graph.sources(ROOT, PACKAGES)
    return {name: path for name, path in found.items() if not name.startswith("tests.support.")}


def lines(since: str) -> Iterator[str]:
    yield from nearest_tests(changed(since), known_modules())


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines(sys.argv[1] if len(sys.argv) > 1 else left_main()))
