"""Files of strangers are opened once, checked as what was opened, and read within a bound."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sdort.errors import BadModelError
from sdort.files.input_file import copy_input, open_input, read_input


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"{}" * 10)
    assert read_input(path, limit=20) == b"{}" * 10
    with open_input(path) as file:
        assert os.fstat(file.fileno()).st_size == 20


def test_what_is_no_regular_file_is_named_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    (tmp_path / "circle").symlink_to("circle")
    kinds = {
        tmp_path: "a folder",
        tmp_path / "pipe": "a named pipe",
        tmp_path / "socket": "a socket",
        Path("/dev/zero"): "a device",
        tmp_path / "circle": "links in a circle",
        tmp_path / "none": "No such file",
        Path("a\0b"): "null byte",
    }
    before = descriptors()
    for path, what in kinds.items():
        with pytest.raises(BadModelError, match=what):
            read_input(path, "the config", limit=100)
    listener.close()
    assert descriptors() == before - 1  # the listener


def test_a_link_is_refused_where_none_is_meant(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert read_input(tmp_path / "link", limit=1) == b"x"
    with pytest.raises(BadModelError, match="symbolic link"):
        read_input(tmp_path / "link", limit=1, links=False)


def test_size_is_bounded_before_and_while_reading(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(bytes(101))
    with pytest.raises(BadModelError, match="has 101 B, and such a file has at most 100 B"):
        read_input(path, limit=100)
    # Says that it has no bytes, and has many: what /proc shows of a file does not bound what it gives.
    with pytest.raises(BadModelError, match="grows while it is read"):
        read_input(Path("/proc/self/maps"), limit=100)


def test_a_file_may_have_all_that_is_allowed_and_its_error_has_all_that_is_known(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    assert read_input(path, limit=100) == bytes(100)
    with open_input(path, limit=100):
        pass
    (tmp_path / "folder").mkdir()
    for wrong, limit, message in (
        (path, 99, "the config .*file has 100 B"),
        (tmp_path / "none", 100, "cannot read the config .*none: No such file"),
    ):
        with (
            pytest.raises(BadModelError, match=message) as caught,
            open_input(wrong, "the config", limit=limit, hint="Look.", component="unet"),
        ):
            pass
        assert (caught.value.hint, caught.value.component) == ("Look.", "unet")
    for hint, told in (("Look.", "Look."), (None, "Give a file.")):
        with (
            pytest.raises(BadModelError, match="is a folder") as caught,
            open_input(tmp_path / "folder", hint=hint, component="vae"),
        ):
            pass
        assert (caught.value.hint, caught.value.component) == (told, "vae")
    with pytest.raises(BadModelError) as caught:
        read_input(tmp_path / "none", limit=1, hint="Look.")
    assert caught.value.hint == "Look."


def test_a_copy_is_a_new_file_of_the_same_content_and_no_link(tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000  # several pieces
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "link").symlink_to("file")
    copy_input(tmp_path / "file", tmp_path / "copy", limit=len(content))
    assert (tmp_path / "copy").read_bytes() == content
    with pytest.raises(FileExistsError):
        copy_input(tmp_path / "file", tmp_path / "copy", limit=len(content))
    with pytest.raises(BadModelError, match="symbolic link"):
        copy_input(tmp_path / "link", tmp_path / "other", limit=len(content))
    with pytest.raises(BadModelError, match="at most"):
        copy_input(tmp_path / "file", tmp_path / "other", limit=len(content) - 1)
    with pytest.raises(BadModelError, match="grows while it is read"):
        copy_input(Path("/proc/self/maps"), tmp_path / "grown", limit=1)
    assert not (tmp_path / "other").exists()
