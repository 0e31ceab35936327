"""The tests neither read nor write the home of whoever runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import homes

import sdort.files.user_folders
import sdort.tuning.store
from sdort.operator_library import library

ROOT = Path(__file__).resolve().parents[2]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder, with its time and its bytes."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, b"" if path.is_dir() else path.read_bytes())
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize(
    "place",
    [library.libraries_folder, sdort.files.user_folders.traces_folder, sdort.tuning.store.tuning_folder, Path.home],
)
def test_every_cache_is_the_tests_own(place: Callable[[], Path]) -> None:
    assert not [home for home in homes.users_homes() if place().resolve().is_relative_to(home)]
    assert not place().is_dir() or not list(place().iterdir())


def test_a_home_of_the_users_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever variable told of it."""
    for name in ("HOME", "XDG_CACHE_HOME", "HF_HUB_CACHE", "SDORT_OPS_TUNING", "MIOPEN_USER_DB_PATH", "TORCH_HOME"):
        monkeypatch.setenv(name, "/users/place")
    monkeypatch.setenv("SDORT_OPS_BUILD", "/a/build")
    homes.move_in(tmp_path)
    assert {name: value for name, value in os.environ.items() if value == "/users/place"} == {}
    assert os.environ["SDORT_OPS_BUILD"] == "/a/build"
    assert Path.home() == tmp_path


TESTS = """
import os
def test_one_that_sets():
    os.environ["TMPDIR"] = "/of/one"
    del os.environ["PATH"]
def test_one_that_patches_what_it_had_set(monkeypatch):
    os.environ["MIOPEN_USER_DB_PATH"] = "/of/one"
    monkeypatch.setenv("MIOPEN_USER_DB_PATH", "/patched")
def test_another():
    assert not {"TMPDIR", "MIOPEN_USER_DB_PATH"} & os.environ.keys() and "PATH" in os.environ
"""


def test_what_a_test_sets_in_the_environment_ends_with_it(tmp_path: Path) -> None:
    """Be it set by sdort, which gives the libraries a folder for their temporary files."""
    (tmp_path / "test_two.py").write_text(TESTS)
    options = ("-q", "-p", "no:cacheprovider", "--noconftest", "-p", "conftest", f"--rootdir={tmp_path}")
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_two.py")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_touches_a_home_is_seen(tmp_path: Path) -> None:
    watch = homes.Watch([tmp_path], [tmp_path / ".venv"])
    cache = tmp_path / ".cache" / "sdort"
    watch.start()  # to the end of the process, for this folder
    cache.mkdir(parents=True)
    (cache / "a").write_text("a")
    (cache / "a").read_text()
    (cache / "a").unlink()
    list(cache.iterdir())
    seen = [each.split()[0] for each in watch.touched]
    assert seen[0] == "os.mkdir"
    assert seen.count("open") == 2
    assert {"os.remove", "os.listdir"} <= {*seen} or {"os.remove", "os.scandir"} <= {*seen}
    watch.touched.clear()
    for mine in (tmp_path / "checkout" / "file", tmp_path / ".venv" / "file"):
        mine.parent.mkdir()
        mine.write_text("mine")
    assert watch.touched == []


def test_a_library_and_settings_in_the_users_home_make_no_difference(tmp_path: Path) -> None:
    """Sessions are opened and models written, with a home that spoils whatever reads it."""
    cache = tmp_path / ".cache" / "sdort"
    spoilt = (cache / "ops" / library.source_digest() / library.LIBRARY_FILE, cache / "ops" / "tuning.tsv",
              cache / "tuning" / "bundle" / "bundle.json", tmp_path / ".cache" / "huggingface" / "token",
              tmp_path / ".config" / "matplotlib" / "matplotlibrc")  # fmt: skip
    for path in spoilt:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not what it seems\n")
    before = contents(tmp_path)
    given = {
        name: value for name, value in os.environ.items() if name not in (*homes.settings(tmp_path), homes.USERS_HOME)
    }
    given |= {
        "HOME": str(tmp_path),
        "SDORT_OPS_TUNING": str(spoilt[1]),
        "HF_HOME": str(tmp_path / ".cache" / "huggingface"),
    }
    # Of the runtime, what imports no diffusers.
    tests = [
        "tests/runtime/test_runtime.py",
        "tests/optimizer/test_optimize.py::test_a_pipeline_folder",
        "-k",
        "not scheduler",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert contents(tmp_path) == before


def test_onnx_runtime_reports_nothing_unless_the_user_says_so(tmp_path: Path) -> None:
    script = "import os, sdort, onnxruntime; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    name = "ORT_DISABLE_TELEMETRY"
    given = {key: value for key, value in os.environ.items() if key not in (name, *homes.settings(tmp_path), "CI")}
    for said, then in ((None, "1"), ("0", "0"), ("", "")):
        home = tmp_path / repr(said)
        home.mkdir()
        told = {} if said is None else {name: said}
        command = [sys.executable, "-B", "-c", script]
        done = subprocess.run(
            command, env={**given, "HOME": str(home), **told}, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == then
        if then == "1":
            assert contents(home) == {}
