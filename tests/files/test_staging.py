"""OUT appears complete or not at all, whatever happens to the process that makes it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.infotext import record

from sdort.errors import OutputError
from sdort.files.staging import check_output, check_output_file, staged_directory, staged_file, write_atomically
from sdort.generation.files.image_files import free_for_output, save_image
from sdort.machine.os_calls import os_calls


def why_foreign(folder: Path) -> str | None:
    """Photographs are nobody's but the user's."""
    photos = sorted(path.name for path in folder.rglob("*.jpg"))
    return f"holds {', '.join(photos)}" if photos else None


def make(out: Path, text: str, overwrite: bool = False) -> None:
    with staged_directory(out, overwrite, why_foreign=why_foreign) as stage:
        (stage / "unet").mkdir()
        (stage / "unet" / "model.onnx").write_text(text)


def content(out: Path) -> str:
    return (out / "unet" / "model.onnx").read_text()


def test_the_folder_appears_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with staged_directory(out, False) as stage:
        assert stage.parent == tmp_path  # the same file system, so that the rename is atomic
        assert stage.name.startswith(".")
        (stage / "file").write_text("x")
        assert not out.exists()
    assert (out / "file").read_text() == "x"
    assert os.listdir(tmp_path) == ["out"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o777 & ~umask()


def umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


def test_missing_parents_are_made_and_go_with_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), staged_directory(tmp_path / "a" / "b" / "out", False):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
    make(tmp_path / "a" / "b" / "out", "1")
    assert content(tmp_path / "a" / "b" / "out") == "1"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("exists", [False, True])
def test_a_failure_leaves_everything_as_it_was(tmp_path: Path, error: type[BaseException], exists: bool) -> None:
    out = tmp_path / "out"
    if exists:
        make(out, "old")

    def fail() -> None:
        with staged_directory(out, exists, why_foreign=why_foreign) as stage:
            (stage / "half").write_text("new")
            raise error

    with pytest.raises(error):
        fail()
    assert os.listdir(tmp_path) == (["out"] if exists else [])
    assert not exists or content(out) == "old"


def test_an_existing_folder_is_kept_without_overwrite(tmp_path: Path) -> None:
    make(tmp_path / "out", "old")
    with pytest.raises(OutputError, match="exists") as caught:
        make(tmp_path / "out", "new")
    assert caught.value.hint
    assert "--overwrite" in caught.value.hint
    assert content(tmp_path / "out") == "old"
    (tmp_path / "empty").mkdir()
    with pytest.raises(OutputError, match="exists"):
        make(tmp_path / "empty", "new")


@pytest.mark.parametrize("exchange", [True, False])
def test_overwrite_swaps(tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchange:
        monkeypatch.setattr(os_calls, "exchange", lambda first, second: False)
    out = tmp_path / "out"
    make(out, "old")
    (out / "extra.txt").write_text("gone afterwards")
    with staged_directory(out, True, why_foreign=why_foreign) as stage:
        (stage / "model.onnx").write_text("new")
        assert content(out) == "old"
    assert os.listdir(out) == ["model.onnx"]
    assert os.listdir(tmp_path) == ["out"]


def test_out_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def race() -> None:
        with staged_directory(out, False):
            make(out, "theirs")

    with pytest.raises(OutputError, match="exists"):
        race()
    assert content(out) == "theirs"
    assert os.listdir(tmp_path) == ["out"]


def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    source = tmp_path / "in"
    make(source, "in")
    (tmp_path / "link").symlink_to(source)
    for out in (source, tmp_path / "link", tmp_path / "in" / ".." / "in", source / "unet", tmp_path):
        reads = [source, source / "unet" / "model.onnx"]
        with pytest.raises(OutputError, match="is the input, or holds it"), staged_directory(out, True, reads):
            raise AssertionError("entered")
    with staged_directory(source / "optimized", True, [source, source / "unet" / "model.onnx"]) as stage:
        (stage / "x").write_text("")
    assert content(source) == "in"


def test_what_is_not_its_own_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped OUT with --overwrite must not delete a folder of photographs, or the home folder."""
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.jpg").write_text("")
    with pytest.raises(OutputError, match=r"photos is not replaced: it holds a\.jpg"):
        make(photos, "new", overwrite=True)
    (photos / "a.jpg").rename(photos / "model.onnx")
    with pytest.raises(OutputError, match="is not empty"), staged_directory(photos, True):
        raise AssertionError("entered: only an empty folder is replaced by who does not say what is its own")
    monkeypatch.setenv("HOME", str(photos))
    for out in (photos, tmp_path):
        with pytest.raises(OutputError, match="is or holds the home folder"):
            make(out, "new", overwrite=True)
    assert os.listdir(photos) == ["model.onnx"]
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="not a folder"):
        make(tmp_path / "file", "new", overwrite=True)
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty", "new", overwrite=True)
    assert content(tmp_path / "empty") == "new"


def test_a_folder_that_another_run_replaces_while_it_is_looked_at_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list is read in one folder, and the files are looked for in the other."""
    out, other = tmp_path / "out", tmp_path / "other"
    make(out, "old")
    make(other, "of another run")
    swaps = [True]

    def meanwhile(folder: Path) -> str | None:
        if not swaps:
            return None
        swaps.pop()
        assert os_calls.exchange(out, other)
        return "holds what its list does not name"

    monkeypatch.setitem(globals(), "why_foreign", meanwhile)
    make(out, "new", overwrite=True)
    assert content(out) == "new"
    assert swaps == []


def test_where_one_works_and_what_is_mounted_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    make(out, "old")
    with monkeypatch.context() as context:
        context.chdir(out / "unet")
        with pytest.raises(OutputError, match="is not replaced: it is or holds the folder that one works in"):
            make(out, "new", overwrite=True)
    with monkeypatch.context() as context:
        context.setattr(os.path, "ismount", lambda path: Path(path) == out)
        with pytest.raises(OutputError, match="is not replaced: it is a mount point"):
            make(out, "new", overwrite=True)
    assert content(out) == "old"
    make(out, "new", overwrite=True)
    assert content(out) == "new"


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("looks", [1, 2])
def test_out_that_becomes_precious_meanwhile_is_kept(
    tmp_path: Path, exchange: bool, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A photograph comes while the result is made, or after the last look at the folder by its name."""
    if not exchange:
        monkeypatch.setattr(os_calls, "exchange", lambda first, second: False)
    out = tmp_path / "out"
    make(out, "old")
    left = [True] * looks

    def meanwhile(folder: Path) -> str | None:
        kept = why_foreign(folder)
        if left and (left.pop() and not left):
            (out / "unet" / "model.onnx").rename(out / "unet" / "photo.jpg")
        return kept

    with (
        pytest.raises(OutputError, match=r"out is not replaced: it holds photo\.jpg"),
        staged_directory(out, True, why_foreign=meanwhile) as stage,
    ):
        (stage / "model.onnx").write_text("new")
    assert left == []
    assert os.listdir(out / "unet") == ["photo.jpg"]
    assert os.listdir(tmp_path) == ["out"]


def test_the_input_is_found_behind_links(tmp_path: Path) -> None:
    make(tmp_path / "real", "in")
    (tmp_path / "link").symlink_to("real")
    with (
        pytest.raises(OutputError, match="is the input"),
        staged_directory(tmp_path / "real", True, [tmp_path / "link"]),
    ):
        raise AssertionError("entered")
    assert content(tmp_path / "real") == "in"


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    make(tmp_path / "out", "0")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        make(tmp_path / "out", str(number), overwrite=True)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_to_the_output_stays_a_link(tmp_path: Path) -> None:
    make(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to("real")
    make(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "real") == "new"
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_a_parent_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot make .*file"):
        make(tmp_path / "file" / "out", "new")
    with pytest.raises(OutputError, match="cannot write in /proc"):
        make(Path("/proc/out"), "new")


def test_a_rename_that_fails_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OutputError, match=r"cannot put the result at .*Invalid cross-device link"):
        make(tmp_path / "out", "new")
    assert os.listdir(tmp_path) == []


def test_a_second_rename_that_fails_puts_the_old_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system cannot exchange folders, OUT is away for a moment."""
    out = tmp_path / "out"
    make(out, "old")
    real, calls = Path.rename, []

    def rename(source: Path, target: Path) -> Path:
        calls.append(source)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return real(source, target)

    monkeypatch.setattr(os_calls, "exchange", lambda first, second: False)
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OutputError, match="Input/output error"):
        make(out, "new", overwrite=True)
    assert content(out) == "old"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EIO])
def test_systems_that_cannot_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    class System:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def renameat2(self, *_: Any) -> int:
            ctypes.set_errno(code)
            return -1

    make(tmp_path / "out", "old")
    monkeypatch.setattr(ctypes, "CDLL", System)
    if code == errno.EIO:  # it can, and failed
        with pytest.raises(OutputError, match="Input/output error"):
            make(tmp_path / "out", "new", overwrite=True)
    else:
        make(tmp_path / "out", "new", overwrite=True)
    assert content(tmp_path / "out") == ("old" if code == errno.EIO else "new")
    assert os.listdir(tmp_path) == ["out"]


def test_exchange(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make(tmp_path / name, name)
    if not os_calls.exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system cannot exchange folders")
    assert (content(tmp_path / "a"), content(tmp_path / "b")) == ("b", "a")
    assert os_calls.exchange(tmp_path / "a", tmp_path / "a" / "unet") is False  # EINVAL, as where unsupported
    with pytest.raises(FileNotFoundError):
        os_calls.exchange(tmp_path / "a", tmp_path / "missing")


def test_a_new_folder_that_is_taken_for_a_leftover_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run may lock and remove it in the instant between its making and its locking."""
    real = fcntl.flock
    removed: list[Path] = []

    def flock(descriptor: int, operation: int) -> None:
        if not removed:
            (stage,) = tmp_path.iterdir()
            removed.append(stage)
            stage.rmdir()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    make(tmp_path / "out", "new")
    assert len(removed) == 1
    assert content(tmp_path / "out") == "new"


# ---------------------------------------------------------------------------------------------- killed processes

WORK = """
import sys
from pathlib import Path
from sdort.files.staging import staged_directory, staged_file
with staged_directory(Path(sys.argv[1]), True, why_foreign=lambda folder: None) as stage:
    (stage / "model.onnx").write_text("half")
    print(stage.name, flush=True)
    sys.stdin.readline()
"""


def start(out: Path) -> tuple[subprocess.Popen[str], str]:
    """A process that is in the middle of making ``out``, and the name of its hidden folder."""
    process = subprocess.Popen([sys.executable, "-c", WORK, str(out)], stdin=-1, stdout=-1, text=True)
    assert process.stdout
    return process, process.stdout.readline().strip()


def stop(process: subprocess.Popen[str], how: int | None = None) -> None:
    if how is not None:
        process.send_signal(how)
    process.communicate("go on\n" if how is None else None)


@pytest.mark.parametrize("exists", [False, True])
def test_a_killed_run_leaves_a_hidden_folder_that_the_next_run_removes(tmp_path: Path, exists: bool) -> None:
    out = tmp_path / "out"
    if exists:
        make(out, "old")
    process, name = start(out)
    stop(process, signal.SIGKILL)
    assert sorted(os.listdir(tmp_path)) == ([name, "out"] if exists else [name])
    assert name.startswith(".out.sdort-")
    assert not exists or content(out) == "old"
    make(out, "new", overwrite=True)
    assert os.listdir(tmp_path) == ["out"]
    assert content(out) == "new"


def test_the_next_run_leaves_a_living_one_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process, name = start(out)
    make(out, "first")
    assert sorted(os.listdir(tmp_path)) == [name, "out"]
    assert (tmp_path / name / "model.onnx").read_text() == "half"
    stop(process)
    assert process.returncode == 0
    assert os.listdir(tmp_path) == ["out"]
    assert (out / "model.onnx").read_text() == "half"


def test_leftovers_of_other_outputs_are_left_alone(tmp_path: Path) -> None:
    for name in (".out2.sdort-new-0", ".out.sdort-new-1", ".o?t.sdort-new-2", ".out"):
        (tmp_path / name).mkdir()
    (tmp_path / ".out.sdort-new-3").symlink_to(tmp_path / ".out2.sdort-new-0")
    (tmp_path / ".out.sdort-new-4").write_text("a file")
    make(tmp_path / "o?t", "new")
    assert not (tmp_path / ".o?t.sdort-new-2").exists()
    assert (tmp_path / ".out.sdort-new-1").exists()  # a ? is a letter here, not any letter
    make(tmp_path / "out", "new")
    assert not (tmp_path / ".out.sdort-new-1").exists()
    kept = {".out", ".out2.sdort-new-0", ".out.sdort-new-3", ".out.sdort-new-4", "o?t", "out"}
    assert set(os.listdir(tmp_path)) == kept


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    """Where the file system cannot exchange folders, OUT is renamed away first; a kill there leaves only that."""
    out = tmp_path / "out"
    make(out, "old")
    out.rename(tmp_path / ".out.sdort-old-1")
    with pytest.raises(OutputError, match="exists"):
        make(out, "new")
    assert content(out) == "old"
    assert os.listdir(tmp_path) == ["out"]


def test_what_was_renamed_away_is_no_more_than_that_once_out_is_there(tmp_path: Path) -> None:
    """A kill right after the second rename leaves both."""
    make(tmp_path / "out", "new")
    make(tmp_path / ".out.sdort-old-1", "old")
    with pytest.raises(OutputError, match="exists"):
        make(tmp_path / "out", "newer")
    assert content(tmp_path / "out") == "new"
    assert os.listdir(tmp_path) == ["out"]


def test_a_link_is_no_leftover(tmp_path: Path) -> None:
    """Who can write here could otherwise have any folder put in OUT's place."""
    make(tmp_path / "elsewhere", "theirs")
    (tmp_path / ".out.sdort-old-1").symlink_to("elsewhere")
    make(tmp_path / "out", "mine")
    assert content(tmp_path / "out") == "mine"
    assert content(tmp_path / "elsewhere") == "theirs"
    assert not (tmp_path / "out").is_symlink()


def test_a_half_made_folder_never_becomes_out(tmp_path: Path) -> None:
    make(tmp_path / ".out.sdort-new-1", "half")
    with staged_directory(tmp_path / "out", False) as stage:
        assert [path.name for path in tmp_path.iterdir()] == [stage.name]
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == []


# -------------------------------------------------------------------------------------------------------- files


def put(path: Path, text: str, error: BaseException | None = None) -> None:
    with staged_file(path) as file:
        file.write(text.encode())
        if error:
            raise error


def test_a_file_takes_its_place_when_all_of_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill at the rename must not leave a file that is cut off."""
    real, seen = os.replace, []

    def replace(source: Path, target: Path) -> None:
        seen.append((Path(source).read_text(), target, target.exists()))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    put(tmp_path / "file", "new")
    assert seen == [("new", tmp_path / "file", False)]
    assert (tmp_path / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask()


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt()])
def test_a_failure_leaves_the_file_as_it_was(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        put(tmp_path / "file", "half", error)
    assert os.listdir(tmp_path) == []
    put(tmp_path / "file", "old")
    with pytest.raises(type(error)):
        put(tmp_path / "file", "half", error)
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_half_written_files_of_killed_processes_go_and_living_ones_stay(tmp_path: Path) -> None:
    for name in (".file.sdort-new-1", ".file2.sdort-new-2"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".file.sdort-new-3").mkdir()
    with staged_file(tmp_path / "file") as living:
        (name,) = {path.name for path in tmp_path.glob(".file.sdort-new-*")} - {".file.sdort-new-3"}
        put(tmp_path / "file", "first")
        assert (tmp_path / name).exists()
        living.write(b"second")
    assert (tmp_path / "file").read_text() == "second"
    assert sorted(os.listdir(tmp_path)) == [".file.sdort-new-3", ".file2.sdort-new-2", "file"]


def test_a_new_file_that_is_taken_for_a_leftover_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may lock and remove it in the instant between its making and its locking."""
    real = fcntl.flock
    removed: list[Path] = []

    def flock(descriptor: int, operation: int) -> None:
        if not removed:
            (stage,) = tmp_path.iterdir()
            removed.append(stage)
            stage.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    put(tmp_path / "file", "new")
    assert len(removed) == 1
    assert (tmp_path / "file").read_text() == "new"


def test_an_output_that_cannot_be_written_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*missing.*: No such file or directory"):
        write_atomically(tmp_path / "missing" / "file", "text")
    write_atomically(tmp_path / "file", "grün")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "grün"


def test_a_file_that_is_refused(tmp_path: Path) -> None:
    """Before the work begins, whatever would fail after it, and never at the cost of an input."""
    model = tmp_path / "model" / "unet" / "model.onnx"
    make(tmp_path / "model", "in")
    (tmp_path / "page.html").write_text("old")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(model)
    refused = {
        model: "belongs to the input",
        tmp_path / "link": "belongs to the input",
        tmp_path / "pipe": "is no regular file",
        tmp_path: "is a folder",
        tmp_path / "missing" / "page.html": "does not exist",
        tmp_path / "page.html" / "page.html": "Not a directory",
        tmp_path / ("x" * 300): "File name too long",
    }
    for path, reason in refused.items():
        with pytest.raises(OutputError, match=reason):
            check_output_file(path, True, [tmp_path / "model"])
    with pytest.raises(OutputError, match="exists"):
        check_output_file(tmp_path / "page.html", False)
    check_output_file(tmp_path / "page.html", True)
    check_output_file(tmp_path / "model" / "page.html", True, [tmp_path / "model"])
    assert sorted(os.listdir(tmp_path)) == ["link", "model", "page.html", "pipe"]
    assert content(tmp_path / "model") == "in"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.bind(f"/proc/self/fd/{os.open(path.parent, os.O_PATH)}/{path.name}")


def _linked_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("away"))
    path.symlink_to("away")


ODD: dict[str, Callable[[Path], None]] = {
    "a named pipe": lambda path: os.mkfifo(path),
    "a socket": _socket,
    "a folder": lambda path: path.mkdir(),
    "a link to a pipe": _linked_pipe,
    "a link to a device": lambda path: path.symlink_to("/dev/null"),
    "a link to a folder": lambda path: path.symlink_to("."),
    "a link in a circle": lambda path: path.symlink_to(path.name),
}
WRITERS: dict[str, Callable[[Path], object]] = {
    "check": lambda path: check_output_file(path, True),
    "text": lambda path: write_atomically(path, "new"),
    "plan of images": lambda path: free_for_output([path], True),
    "image": lambda path: save_image(path, np.zeros((8, 8, 3), np.uint8), record(), 1, overwrite=True),
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_no_regular_file_is_never_replaced(writer: str, what: str, tmp_path: Path) -> None:
    """Not even with --overwrite: a pipe has a reader that waits, and a device is no place for a file."""
    path = tmp_path / "image.png"
    ODD[what](path)
    before = path.lstat()
    with pytest.raises(OutputError, match=r"no regular file|is a folder"):
        WRITERS[writer](path)
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("writer", ["text", "image"])
def test_a_link_stays_and_what_it_leads_to_is_written(writer: str, exists: bool, tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    target = tmp_path / "away" / "file"
    if exists:
        target.write_text("old")
    (tmp_path / "image.png").symlink_to("away/file")
    WRITERS[writer](tmp_path / "image.png")
    assert os.readlink(tmp_path / "image.png") == "away/file"
    assert target.read_bytes()[:3] in (b"new", b"\x89PN")
    assert os.listdir(tmp_path / "away") == ["file"]


def test_a_name_that_is_taken_by_a_link_to_nothing_is_taken(tmp_path: Path) -> None:
    (tmp_path / "image.png").symlink_to("gone")
    path = save_image(tmp_path / "image.png", np.zeros((8, 8, 3), np.uint8), record(), 1)
    assert path.name == "image-run2.png"


def test_a_folder_with_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    out = tmp_path / ("x" * 300)
    with pytest.raises(OutputError, match="File name too long"):
        check_output(out, True, why_foreign=why_foreign)
    with pytest.raises(OutputError, match="File name too long"):
        make(out, "new")
    assert os.listdir(tmp_path) == []


def test_overwrite_is_offered_only_where_it_would_replace(tmp_path: Path) -> None:
    make(tmp_path / "out", "old")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    for out, offered in ((tmp_path / "out", True), (tmp_path / "photos", False)):
        with pytest.raises(OutputError, match="exists") as caught:
            make(out, "new")
        assert ("--overwrite" in str(caught.value.hint)) is offered
