"""What lies beside ``sdort`` in a checkout must be of the same checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import sdort
from sdort.errors import UsageError
from sdort.files.checkout import import_part
from sdort.operator_library.library import source_folder
from sdort.rewrite.fusion import load_fusions


@pytest.mark.parametrize(("name", "use"), [("fusions", load_fusions), ("custom_ops", source_folder)])
def test_another_checkout_is_told(
    name: str, use: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with PYTHONPATH on one clone and another one's import hook: the modules are the other one's."""
    assert Path(import_part(name).__path__[0]).name == name
    other = tmp_path / "clone" / name
    load_fusions.cache_clear()
    source_folder.cache_clear()
    monkeypatch.setattr(import_part(name), "__path__", [str(other)])
    with pytest.raises(UsageError, match="two checkouts are mixed") as caught:
        use()
    assert str(other) in str(caught.value)
    assert str(Path(sdort.__path__[0]).parent) in str(caught.value.hint)


def test_a_wheel_has_them_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_part("fusions"), "__path__", [str(Path(sdort.__path__[0]) / "fusions")])
    assert import_part("fusions").__name__ == "sdort.fusions"


@pytest.mark.parametrize("name", ["fusions", "custom_ops"])
def test_a_checkout_on_the_path_that_is_not_installed_finds_its_parts(name: str) -> None:
    """Without site no import hook of an editable install answers."""
    root = Path(sdort.__file__).resolve().parents[1]
    path = os.pathsep.join([str(root), str(Path(numpy.__file__).parents[1])])
    code = f"from sdort.files.checkout import import_part; print(import_part({name!r}).__path__[0])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (str(root / name), "")
