"""The cache of checkpoints that are optimized on first use: each is read once, and gets its own model or none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sdort.errors import BadModelError
from sdort.integrations import optimized_models
from sdort.integrations.optimized_models import Making, optimized_model
from sdort.machine.cache_folder import models_folder
from sdort.machine.file_digest import file_digest
from sdort.pipelines import remembered_hashes
from sdort.pipelines.own_files import write_own_files

MAKING = Making(("unet",), "cpu")


@pytest.fixture(autouse=True)
def _made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made of a checkpoint is a file of its content."""

    def fake(source: Path, out: Path, **_: Any) -> None:
        out.mkdir()
        (out / "of").write_bytes(source.read_bytes() if source.is_file() else (source / "of").read_bytes())
        write_own_files(out, {}, {})

    for name in ("export", "optimize"):
        monkeypatch.setattr(optimized_models, name, fake)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read, which count as settled at once."""
    names: list[str] = []

    def digest(path: Path) -> str:
        names.append(path.name)
        return file_digest(path)

    monkeypatch.setattr(remembered_hashes, "SETTLED_NS", 0)
    monkeypatch.setattr(optimized_models, "file_digest", digest)
    return names


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_checkpoint_is_read_once_until_it_changes(kind: str, read: list[str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "models"
    checkpoint.mkdir()
    file, other = checkpoint / "of", checkpoint / "other"
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
    with pytest.raises(BadModelError, match=r"is not of two\.safetensors"):
        optimized_model(tmp_path / "two.safetensors", MAKING)


def _cut(path: Path) -> None:
    path.write_text(path.read_text()[:20])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda folder: (folder / optimized_models.MADE_OF).unlink(), r"made-of\.json: No such file", id="record"
        ),
        pytest.param(
            lambda folder: (folder / optimized_models.MODEL / "sdort.json").unlink(),
            r"model has no sdort\.json that lists its files",
            id="list",
        ),
        pytest.param(
            lambda folder: _cut(folder / optimized_models.MODEL / "sdort.json"), r"model.sdort\.json", id="half a list"
        ),
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
    monkeypatch.setattr(optimized_models, "export", lambda *_, **__: file.write_bytes(b"half of another"))
    monkeypatch.setattr(optimized_models, "optimize", lambda _, out, **__: out.mkdir())
    file.write_bytes(b"one")
    with pytest.raises(BadModelError, match="changed while it was exported"):
        optimized_model(file, MAKING)
    assert not list(models_folder().glob("model-*"))
