"""``scripts/test.sh --changed``: of each file, the tests that see its change."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from support import changed_tests
from support.changed_tests import ALWAYS, ROOT, in_folder, known_modules, nearest, nearest_tests
from support.import_graph import imports_of


@cache
def modules() -> dict[str, Path]:
    return known_modules()


def seen(*files: str) -> set[str]:
    """Beside those that are always run."""
    return {test.removeprefix("tests/") for test in nearest_tests(files, modules())} - set(ALWAYS)


@pytest.mark.parametrize(
    ("file", "near", "far"),
    [
        ("sdort/generation/requests/deep_cache.py", "generation/test_deep_cache.py", "cli/test_cli.py"),
        ("tests/generation/test_deep_cache.py", "generation/test_deep_cache.py", "cli/test_cli.py"),
        ("tests/support/group_norm_cases.py", "operator_library/test_ops_group_norm.py", "cli/test_cli.py"),
        ("fusions/gelu_tanh.py", "fusions/test_fusion_checks.py", "cli/test_cli.py"),
        ("fusions/skip_layer_normalization.py", "verification/test_verify_bisect.py", "cli/test_cli.py"),
        ("sdort/cli/run.py", "cli/test_forwarded_options.py", "generation/test_loop.py"),
        ("scripts/bench_tasks.py", "project/test_scripts.py", "cli/test_cli.py"),
        ("docs/guide/run.md", "project/test_docs.py", "project/test_layers.py"),
        ("custom_ops/REGISTERS.md", "operator_library/test_ops_code.py", "cli/test_cli.py"),
    ],
)
def test_the_nearest_tests_are_taken(file: str, near: str, far: str) -> None:
    assert (ROOT / file).exists()
    assert near in seen(file)
    assert far not in seen(file)


def test_every_module_has_a_test() -> None:
    """Of a module that no test imports, the tests of what imports it, or those of its folder."""
    texts = {name: path.read_text() for name, path in modules().items()}
    importers = changed_tests.reversed_imports(imports_of(texts))
    tests = {name for name in modules() if name.rpartition(".")[2].startswith("test_")}
    product = {name for name in modules() if name.startswith("sdort.")}
    found = {name: nearest(name, importers, tests) or in_folder(name, tests) for name in product}
    assert {name for name, near in found.items() if not near} == {"sdort.__main__"}


def test_a_file_that_is_gone_has_no_tests_and_is_no_error() -> None:
    assert seen("sdort/none.py") == set()
