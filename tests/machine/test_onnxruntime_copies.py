"""Copies of ONNX Runtime on Python's path: who installed which, and which one Python imports."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.runtime_copies import PLACE, install

from sdort.errors import ProviderError
from sdort.machine import distributions, onnxruntime_copies
from sdort.machine.onnxruntime_copies import Flavour, RuntimeCopy, find_copies

NAMES = ("onnxruntime", "onnxruntime-qnn", "acme.ort-build")


@pytest.mark.parametrize("here", [each for n in (1, 2, 3) for each in itertools.combinations(NAMES, n)], ids="+".join)
def test_what_installed_the_package_is_found_under_any_name(here: tuple[str, ...], tmp_path: Path) -> None:
    install(tmp_path, "onnxruntime-genai", "0.9", ("onnxruntime_genai/__init__.py",))
    install(tmp_path, "onnxruntime-plugin", "2.0", ("onnxruntime/plugins/acme.so",))  # adds to it, lies over nothing
    install(tmp_path, "numpy", "2.0", ("numpy/__init__.py",))
    records = [install(tmp_path, name, "1.27") for name in here]
    assert find_copies([str(tmp_path)]) == [
        RuntimeCopy(tmp_path.resolve(), tuple(Flavour(name, "1.27") for name in sorted(here)), tuple(sorted(records)))
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(("empty", "leftover", "a", "b"))), ids="-".join)
def test_the_first_on_the_path_is_what_python_imports(order: tuple[str, ...], tmp_path: Path) -> None:
    for name in order:
        (tmp_path / name).mkdir()
    (tmp_path / "leftover" / "onnxruntime" / "capi").mkdir(parents=True)
    install(tmp_path / "a", "onnxruntime", "1")
    install(tmp_path / "b", "onnxruntime-gpu", "2")
    path = [str(tmp_path / name) for name in order]
    found = find_copies([*path, str(tmp_path / "nowhere"), str(tmp_path / order[-1])])
    assert [copy.folder.name for copy in found] == [name for name in order if name in "ab"]
    code = "import onnxruntime; print(onnxruntime.__version__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": os.pathsep.join(path)}, capture_output=True, text=True
    )
    assert done.stdout.strip() == found[0].owners[0].version


def test_a_folder_under_several_names_is_one_copy(tmp_path: Path) -> None:
    """``lib64`` is a link to ``lib`` in environments of some systems, and both are on the path."""
    install(tmp_path / "lib", "onnxruntime", "1")
    (tmp_path / "lib64").symlink_to("lib")
    names = [tmp_path / "lib64", tmp_path / "lib", tmp_path / "lib" / ".." / "lib64"]
    for path in itertools.permutations(map(str, names)):
        assert [copy.folder for copy in find_copies(path)] == [(tmp_path / "lib").resolve()]
    (tmp_path / "lib" / "onnxruntime" / "__init__.py").unlink()  # and so where its code is gone
    onnxruntime_copies._copy.cache_clear()
    assert [copy.folder for copy in find_copies(map(str, names))] == [(tmp_path / "lib").resolve()]


def test_a_copy_that_no_distribution_lists_is_called_what_its_build_says(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime" / "capi").mkdir(parents=True)
    (tmp_path / "onnxruntime" / "__init__.py").touch()
    assert find_copies([str(tmp_path)])[0].owners == (Flavour("onnxruntime", "unknown"),)
    other = tmp_path / "other"
    (other / "onnxruntime" / "capi").mkdir(parents=True)
    (other / "onnxruntime" / "__init__.py").touch()
    built = other / "onnxruntime" / "capi" / "build_and_package_info.py"
    built.write_text("package_name = 'onnxruntime-gpu'\n__version__ = '1.31.1'\ncuda_version = '13.0'\n")
    assert find_copies([str(other)])[0].owners == (Flavour("onnxruntime-gpu", "1.31.1"),)


def test_a_package_of_linux_lists_no_files(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").touch()
    info = tmp_path / "onnxruntime-1.21.0.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Name: onnxruntime\nVersion: 1.21.0\n")
    (info / "top_level.txt").write_text("onnxruntime\n")
    assert find_copies([str(tmp_path)])[0].owners == (Flavour("onnxruntime", "1.21.0"),)


def test_a_distribution_whose_code_another_one_took_along_is_still_found(tmp_path: Path) -> None:
    install(tmp_path, "onnxruntime", "1")
    (tmp_path / "onnxruntime" / "__init__.py").unlink()
    assert find_copies([str(tmp_path)])[0].owners == (Flavour("onnxruntime", "1"),)
    whole = tmp_path / "whole"
    install(whole, "onnxruntime-gpu", "2")
    assert [copy.folder.name for copy in find_copies([str(tmp_path), str(whole)])] == ["whole"]


def test_two_in_one_folder_are_refused_with_what_repairs_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip uninstalls where it installs; a folder on PYTHONPATH is removed, and where another one wins nothing is."""
    install(tmp_path, "onnxruntime", "1", ("onnxruntime/__init__.py", "onnxruntime/capi/a.so"))
    install(tmp_path, "acme-ort", "2")
    monkeypatch.setattr(distributions, "installed_copies", lambda: find_copies([str(tmp_path)]))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ProviderError, match=r"2 distributions .*: acme-ort, onnxruntime\n") as caught:
        distributions.flavour()
    hint = str(caught.value.hint)
    (command,) = (line for line in hint.splitlines() if "rm -r" in line)
    subprocess.run(shlex.split(command), check=True)
    assert list(tmp_path.iterdir()) == []
    assert "uninstall" not in hint

    install(tmp_path, "onnxruntime", "1")
    install(tmp_path, "acme-ort", "2")
    monkeypatch.setattr(sys, "path", [str(PLACE), str(tmp_path)])
    with pytest.raises(ProviderError) as caught:
        distributions.flavour()
    assert "rm -r" not in str(caught.value)
    assert "install --ignore-installed --no-deps 'onnxruntime>=" in str(caught.value)


def test_one_behind_another_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "venv", "onnxruntime-rocm", "1.22.2")
    install(tmp_path / "user", "onnxruntime", "1.31")
    install(tmp_path / "user", "onnxruntime-gpu", "1.31")
    path = [str(tmp_path / "venv"), str(tmp_path / "user")]
    monkeypatch.setattr(distributions, "installed_copies", lambda: find_copies(path))
    assert distributions.flavour() == Flavour("onnxruntime-rocm", "1.22.2")
