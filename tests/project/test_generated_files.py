"""Scripts that generate files write what differs, remove what is to go, and only name it with ``--check``."""

from __future__ import annotations

from pathlib import Path

import generated_files
import pytest
from generated_files import parse_check, settle


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(generated_files, "REPOSITORY", tmp_path)
    (tmp_path / "same").write_text("same")
    (tmp_path / "other").write_text("old")
    (tmp_path / "gone").write_text("old")
    return tmp_path


def contents(place: Path) -> dict[Path, str | None]:
    texts = {"same": "same", "other": "new", "folder/new": "new", "gone": None, "never": None}
    return {place / name: text for name, text in texts.items()}


def test_a_check_names_what_differs_and_writes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_text() for path in place.iterdir()}
    assert settle(contents(place), check=True)
    assert capsys.readouterr().out == "differs: other\ndiffers: folder/new\ndiffers: gone\n"
    assert {path.name: path.read_text() for path in place.iterdir()} == before
    assert not settle({place / "same": "same", place / "never": None}, check=True)


def test_what_differs_is_written_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not settle(contents(place), check=False)
    assert capsys.readouterr().out == "wrote: other\nwrote: folder/new\nwrote: gone\n"
    assert {path.name for path in place.iterdir()} == {"same", "other", "folder"}
    assert [(place / name).read_text() for name in ("same", "other", "folder/new")] == ["same", "new", "new"]
    assert not settle(contents(place), check=False)
    assert capsys.readouterr().out == ""


def test_a_check_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, asked in ((["--check"], True), ([], False)):
        monkeypatch.setattr("sys.argv", ["script", *words])
        assert parse_check("What it does.") is asked
