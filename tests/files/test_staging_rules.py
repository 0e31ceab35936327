"""What may be written where: folders of files, files beside an input, names that are taken, who holds what."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from sdort.errors import OutputError
from sdort.files import staging
from sdort.files.staging import (
    check_output,
    check_output_file,
    check_output_folder,
    held,
    is_abandoned,
    remove_abandoned,
    scratch_folder,
    staged_directory,
    staged_file,
    staged_output,
    temporary_folder,
)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_for_files(tmp_path: Path, overwrite: bool) -> None:
    check_output_folder(tmp_path / "new", overwrite)
    (tmp_path / "empty").mkdir()
    check_output_folder(tmp_path / "empty", overwrite)
    (tmp_path / "file").touch()
    (tmp_path / "gone").symlink_to("nowhere")
    for name in ("file", "gone"):
        with pytest.raises(OutputError, match=f"{name} is not a folder"):
            check_output_folder(tmp_path / name, overwrite)
    with pytest.raises(OutputError, match="does not exist") as caught:
        check_output_folder(tmp_path / "a b" / "new", overwrite)
    assert caught.value.hint == f"Create it:\n    mkdir -p '{tmp_path / 'a b'}'"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    (tmp_path / "link").symlink_to("full")
    for name in ("full", "link"):
        if overwrite:
            check_output_folder(tmp_path / name, overwrite)
        else:
            with pytest.raises(OutputError, match="is not empty") as caught:
                check_output_folder(tmp_path / name, overwrite)
            assert "--overwrite" in str(caught.value.hint)
    assert sorted(os.listdir(tmp_path)) == ["empty", "file", "full", "gone", "link"]
    assert os.listdir(tmp_path / "full") == ["a"]
    assert os.listdir(tmp_path / "empty") == []


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("a.onnx", True), ("a", True), ("a.json", True), ("a.safetensors", True), ("a.html", False), ("a.png", False),
        ("a.csv", False), ("a.PNG", False), ("deep/a.png", False), ("deep/a.txt", True),
    ],
)  # fmt: skip
def test_results_in_an_inputs_folder_are_replaced_and_what_is_read_is_not(
    tmp_path: Path, name: str, kept: bool
) -> None:
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True)
    check_output_file(path, True, [tmp_path / "in"])  # there is nothing yet
    path.touch()
    check_output_file(path, True, [tmp_path / "other", tmp_path / "in2"])
    for sources in ([tmp_path / "in"], [tmp_path / "other", tmp_path / "in"]):
        if kept:
            with pytest.raises(OutputError, match=f"{path} belongs to the input {tmp_path / 'in'}"):
                check_output_file(path, True, sources)
        else:
            check_output_file(path, True, sources)
    with pytest.raises(OutputError, match="belongs to the input"):
        check_output_file(path, True, [path])  # whatever its ending


def test_the_output_may_lie_in_the_input_and_not_hold_it(tmp_path: Path) -> None:
    model = tmp_path / "models" / "model"
    model.mkdir(parents=True)
    check_output(model / "out", True, [model])
    check_output(tmp_path / "models" / "model2", True, [model])
    for out in (model, tmp_path / "models", tmp_path):
        with pytest.raises(OutputError, match="is the input, or holds it"):
            check_output(out, True, [tmp_path / "elsewhere", model])


@pytest.mark.parametrize("links", [True, False])
def test_a_new_name_replaces_nothing(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not links:

        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "a"
    with staged_file(path, overwrite=False) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(FileExistsError), staged_file(path, overwrite=False) as file:
        file.write(b"newer")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("link", "a"):
        with pytest.raises(FileExistsError), staged_output(tmp_path / name, overwrite=False) as file:
            file.write(b"newer")
    assert path.read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["a", "link"]


def test_a_file_that_came_meanwhile(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), staged_file(tmp_path / "a", overwrite=False):
        (tmp_path / "a").write_text("theirs")
    assert (tmp_path / "a").read_text() == "theirs"
    with staged_file(tmp_path / "a") as file:
        file.write(b"ours")
    assert (tmp_path / "a").read_text() == "ours"
    with pytest.raises(OutputError, match="is a folder"), staged_file(tmp_path / "b", regular=True):
        (tmp_path / "b").mkdir()
    with pytest.raises(OutputError, match="no regular file"), staged_file(tmp_path / "c", regular=True):
        os.mkfifo(tmp_path / "c")
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


def test_whose_error_it_is(tmp_path: Path) -> None:
    """Errors of what is read are named by who reads it; those of the stage, and of none, are the output's."""
    out = tmp_path / "out"
    with pytest.raises(FileNotFoundError, match="input"), staged_directory(out, False):
        (tmp_path / "input").read_text()
    with pytest.raises(OutputError, match=f"cannot write {out}: No such file"), staged_directory(out, False) as stage:
        (stage / "deep" / "file").write_text("x")
    with pytest.raises(OutputError, match=f"cannot write {out}: No space left"), staged_directory(out, False):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OutputError, match=f"cannot write {out}: odd"), staged_directory(out, False):
        raise OSError("odd")
    assert os.listdir(tmp_path) == []


def test_scratch_folders_are_private_and_leftovers_of_all_names_go(tmp_path: Path) -> None:
    for leftover in ("pre-old", "pre-[x]"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "a").touch()
    (tmp_path / "other-old").mkdir()
    (tmp_path / "pre-file").touch()
    with scratch_folder(tmp_path, "pre-", "name-") as first, scratch_folder(tmp_path, "pre-", "name-") as second:
        assert first != second
        assert first.is_dir()
        assert second.is_dir()
        for folder in (first, second):
            assert folder.name.startswith("pre-name-")
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert not is_abandoned(folder)
        assert sorted(os.listdir(tmp_path)) == sorted(["other-old", first.name, second.name])
        (first / "deep").mkdir()
    assert os.listdir(tmp_path) == ["other-old"]


def test_a_prefix_is_plain_text(tmp_path: Path) -> None:
    (tmp_path / "pa").mkdir()
    (tmp_path / "p[a]b").mkdir()
    with scratch_folder(tmp_path, "p[a]"):
        assert (tmp_path / "pa").is_dir()
        assert not (tmp_path / "p[a]b").exists()


def test_a_folder_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pre-theirs").mkdir()
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with scratch_folder(tmp_path, "pre-"):
        assert (tmp_path / "pre-theirs").is_dir()


def test_temporary_folders_lie_where_the_system_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary_folder("demo") as folder:
        assert folder.parent == tmp_path
        assert folder.name.startswith(f"{staging.TEMPORARY_PREFIX}demo-")
    assert os.listdir(tmp_path) == []


def test_what_is_held_is_no_leftover(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").touch()
    with held(folder), held(folder):  # by several at once
        assert not is_abandoned(folder)
        assert not remove_abandoned(folder)
    assert is_abandoned(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert not is_abandoned(link)
    assert not remove_abandoned(link)
    assert not is_abandoned(tmp_path / "nowhere")
    assert remove_abandoned(folder)
    assert not folder.exists()
    (tmp_path / "file").touch()
    assert remove_abandoned(tmp_path / "file")
    assert os.listdir(tmp_path) == ["link"]


def test_without_locks_nothing_is_a_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / "pre-old").mkdir()
    with scratch_folder(tmp_path, "pre-") as folder, held(folder):
        assert folder.is_dir()
    assert os.listdir(tmp_path) == ["pre-old"]
    with staged_directory(tmp_path / "out", False) as stage:
        (stage / "a").touch()
    with staged_file(tmp_path / "file") as file:
        file.write(b"x")
    assert sorted(os.listdir(tmp_path)) == ["file", "out", "pre-old"]


def test_modes_are_those_of_new_files(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        with staged_directory(tmp_path / "out", False) as stage:
            (stage / "a").touch()
        with staged_file(tmp_path / "file") as file:
            file.write(b"x")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
