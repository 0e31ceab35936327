"""The cache of checkpoints that are optimized on first use: each is read once, and gets its own model or none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.first_use import copy_of, replace_making

from sdort.errors import BadModelError
from sdort.first_use import given_checkpoint
from sdort.first_use.making_plan import Making
from sdort.first_use.models import optimized_model
from sdort.machine.cache_folder import models_folder
from sdort.machine.file_digest import file_digest
from sdort.pipelines import remembered_hashes
from sdort.pipelines.kept_models import MADE_OF, MODEL

MAKING = Making(("unet",), "cpu")


@pytest.fixture(autouse=True)
def _made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made of a checkpoint is a file of its content."""
    replace_making(monkeypatch)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read, which count as settled at once."""
    names: list[str] = []

    def digest(path: Path, **options: Any) -> str:
        names.append(path.name)
        return file_digest(path, **options)

    monkeypatch.setattr(remembered_hashes, "SETTLED_NS", 0)
    monkeypatch.setattr(given_checkpoint, "file_digest", digest)
    return names


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_checkpoint_is_read_once_until_it_changes(kind: str, read: list[str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "models"
    checkpoint.mkdir()
    file, other = checkpoint / "of.safetensors", checkpoint / "other.json"
    for path in (file, other):
        path.write_bytes(b"one")
    asked = file if kind == "file" else checkpoint
    expected = [file.name] if kind == "file" else [file.name, other.name]
    first = optimized_model(asked, MAKING)
    assert optimized_model(asked, MAKING) == first
    assert read == expected
    status = file.stat()
    with file.open("r+b") as opened:  # in place, of the same size, as old as before
        opened.write(b"two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = optimized_model(asked, MAKING)
    assert (second / "of").read_bytes() == b"two"
    assert (first / "of").read_bytes() == b"one"
    assert read == [*expected, file.name]


def test_a_model_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    folders = []
    for content in (b"one", b"two"):
        (tmp_path / f"{content.decode()}.safetensors").write_bytes(content)
        folders.append(optimized_model(tmp_path / f"{content.decode()}.safetensors", MAKING))
        assert (folders[-1] / "of").read_bytes() == content
    one, two = (folder.parent for folder in folders)
    two.rename(tmp_path / "away")
    one.rename(two)
    with pytest.raises(BadModelError, match="is not of two: its record"):
        optimized_model(tmp_path / "two.safetensors", MAKING)


def _cut(path: Path) -> None:
    path.write_text(path.read_text()[:20])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda folder: (folder / MADE_OF).unlink(), r"made-of\.json: No such file", id="record"),
        pytest.param(
            lambda folder: (folder / MODEL / "sdort.json").unlink(),
            r"model has no sdort\.json that lists its files",
            id="list",
        ),
        pytest.param(lambda folder: _cut(folder / MODEL / "sdort.json"), r"model.sdort\.json", id="half a list"),
    ],
)
def test_a_model_that_cannot_be_checked_is_refused(
    change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "one.safetensors"
    file.write_bytes(b"one")
    change(optimized_model(file, MAKING).parent)
    with pytest.raises(BadModelError, match=rf"{message}(.|\n)*made anew:\n    rm -r "):
        optimized_model(file, MAKING)


def test_a_checkpoint_that_changes_while_it_is_made_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "one.safetensors"

    def fill(*given: Any) -> None:
        copy_of(*given)
        file.write_bytes(b"half of another")

    replace_making(monkeypatch, fill)
    file.write_bytes(b"one")
    with pytest.raises(BadModelError, match="changed while it was exported"):
        optimized_model(file, MAKING)
    assert not list(models_folder().glob("model-*"))
