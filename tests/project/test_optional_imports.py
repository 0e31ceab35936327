"""Every import of torch, diffusers, transformers and onnxscript comes after a check that says what to install."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPTIONAL = {"torch", "diffusers", "transformers", "onnxscript"}
BEHIND = {
    "sdort.console": "quiet_libraries is for a block that uses them",
    "sdort.families.data": "called with a module of torch, by what checked",
    "sdort.engines.fast_torch": "a TorchEngine, which checked",
    "sdort.engines.torch_prompts": "given a pipeline of TorchEngine's, which checked",
    "sdort.engines.torch_runners": "made by TorchEngine, which checked",
    "sdort.integrations.comfyui": "imported by the file in ComfyUI's folder, which says what is missing",
    "sdort.generation.schedules.schedulers": "checked before a scheduler that is diffusers' alone is made",
    "sdort.generation.schedules.diffusers_sampler": "given a scheduler of these",
}
"""Modules and packages whose imports another one has checked."""

Scope = ast.Module | ast.ClassDef | ast.FunctionDef


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {name_of(path): path for path in sorted((ROOT / "sdort").rglob("*.py"))}


def imports(node: ast.AST, scopes: tuple[Scope, ...] = ()) -> Iterator[tuple[str, tuple[Scope, ...]]]:
    """What a module imports when it runs, and the scopes around each import, the module first."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.ImportFrom) and node.module:
        yield from ((name, scopes) for name in (node.module, *(f"{node.module}.{each.name}" for each in node.names)))
    if isinstance(node, ast.Import):
        yield from ((each.name, scopes) for each in node.names)
    if isinstance(node, Scope):
        scopes = (*scopes, node)
    for child in ast.iter_child_nodes(node):
        yield from imports(child, scopes)


def checks(scope: Scope) -> bool:
    """Whether a function calls ``need_packages``, a class when it is made, or a module when it is imported."""
    statements: list[ast.stmt] = scope.body
    if isinstance(scope, ast.ClassDef):
        statements = [each for each in scope.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    if isinstance(scope, ast.Module):
        statements = [each for each in scope.body if isinstance(each, ast.Expr)]
    calls = (node for each in statements for node in ast.walk(each) if isinstance(node, ast.Call))
    return any(ast.unparse(call.func) == "need_packages" for call in calls)


TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}
IMPORTS = {name: list(imports(tree)) for name, tree in TREES.items()}


def is_checked(module: str) -> bool:
    """Whether the import of a module, or of a package around it, checks; or another one has checked."""
    around = [module.rsplit(".", count)[0] for count in range(module.count(".") + 1)]
    return any(name in BEHIND or (name in TREES and checks(TREES[name])) for name in around)


def find_needing() -> set[str]:
    """The modules whose import imports one of them, and that nothing has checked for."""
    found: set[str] = set()
    while more := {
        name
        for name in TREES
        if name not in found
        and not is_checked(name)
        and any(len(scopes) == 1 and is_one(imported, found) for imported, scopes in IMPORTS[name])
    }:
        found |= more
    return found


def is_one(imported: str, needing: set[str]) -> bool:
    return imported.partition(".")[0] in OPTIONAL or imported in needing


NEEDING = find_needing()


def test_an_import_of_them_comes_after_a_check() -> None:
    unchecked = {
        f"{module}: {imported}"
        for module in TREES.keys() - NEEDING
        if not is_checked(module)
        for imported, scopes in IMPORTS[module]
        if is_one(imported, NEEDING) and not any(map(checks, scopes))
    }
    assert unchecked == set()


def test_what_imports_them_at_once_is_only_what_traces_and_reads_for_it() -> None:
    """Each of these is imported in a function that checks, by the test above."""
    assert {
        "sdort.demo.random_pipeline",
        "sdort.exporter.pickles",
        "sdort.exporter.torch_modules",
        "sdort.exporter.trace",
    } == NEEDING
