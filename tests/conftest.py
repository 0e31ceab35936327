"""Fixtures that several test modules share, and homes of the tests' own.

Torch is imported only by the tests that export.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import any_vendor, homes, json_documents, waiting_threads

from sdort import console

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from support.exports import Case
    from support.tiny_pipeline import Tiny

_HOME, _WATCH = pytest.StashKey[Path](), pytest.StashKey[homes.Watch]()
_numbers = itertools.count()
COLLECTOR = (100_000, 20, 100)
"""Of the garbage collector: new objects before it looks at them, and how often it looks before it takes older ones."""


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported: libraries look for their folders once."""
    config.stash[_WATCH] = homes.Watch(homes.users_homes(), homes.own_folders(config.rootpath))
    config.stash[_HOME] = Path(tempfile.mkdtemp(prefix="sdort-tests-"))
    homes.move_in(config.stash[_HOME])
    # Sizes of a trace are expressions of sympy's, which by default forgets all but a thousand: a tenth of its time.
    os.environ.setdefault("SYMPY_CACHE_SIZE", "100000")
    console.set_verbosity(console.NORMAL)  # as under the command line
    json_documents.check_all_commands()
    waiting_threads.stop_spinning()
    any_vendor.stand_in()
    config.stash[_WATCH].start()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and the libraries that they import stay to the end: the garbage collector skips them.

    What tests import later it cannot skip: it looks less often through that, which took up to a tenth of their time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*COLLECTOR)
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_HOME], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first: processes share tests out as they go, and a long one at the end keeps all others waiting.

    Processes that share tests out know them by their names, in which there may be no address of an object, and no set,
    whose order differs from process to process.
    """
    moving = [item.nodeid for item in items if " at 0x" in item.nodeid or _has_a_set(item)]
    assert not moving, f"give ids to {moving[:3]}"
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def _has_a_set(item: pytest.Item) -> bool:
    values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return any(isinstance(v, set | frozenset) and len(v) > 1 and str(v) in item.nodeid for v in values)


@pytest.fixture(autouse=True)
def _restore_environment() -> Iterator[None]:
    """What a test, or what it runs in this process, sets in the environment ends with it: TMPDIR, MIOpen's folders.

    It ends after ``monkeypatch``, which would put back what the test itself had set before it patched that.
    """
    pytests_own = "PYTEST_CURRENT_TEST"
    before = {name: value for name, value in os.environ.items() if name != pytests_own}
    yield
    for name in os.environ.keys() - before.keys() - {pytests_own}:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _a_home_of_its_own(
    _restore_environment: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """No test finds what another left in a cache, and none touches the user's."""
    home = request.config.stash[_HOME] / str(next(_numbers))
    home.mkdir()
    for name, value in homes.settings(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("COLUMNS", raising=False)  # tables in pipes would wrap
    yield
    touched = request.config.stash[_WATCH].touched
    found, touched[:] = list(touched), []
    assert not found, f"touched the user's home: {found}"


@pytest.fixture(autouse=True)
def _restore_verbosity() -> Iterator[None]:
    """A command's ``-v`` or ``-q`` ends with its test."""
    yield
    console.set_verbosity(console.NORMAL)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A tiny Stable Diffusion pipeline, as diffusers and as ONNX; tests leave it as it is."""
    from support import tiny_pipeline

    return tiny_pipeline.shared(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for pages, see :mod:`support.browser`; not longer than a module: other tests fork, or need a loop."""
    from support.browser import opened_browser

    with opened_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def exported(request: pytest.FixtureRequest) -> Callable[[Case], Path]:
    """``exported(Case("sd1", "dy23"))`` is the path of that case's ``.onnx`` file, weights inside.

    Traces live in pytest's own cache folder under a key of their sources and exporters, so test processes and
    later runs share them; ``pytest --cache-clear`` drops them.
    """
    folder = request.config.cache.mkdir("exports")

    def export(case: Case) -> Path:
        from support.exports import export_case

        return export_case(case, folder)

    return export
