"""Where sdort's caches are, and the digests of the files by which they know them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from safetensors.numpy import save

from sdort.errors import BadModelError
from sdort.files import user_folders
from sdort.files.file_digest import file_digest


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/home/a"}, "/cache/sdort"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/a"}, "/home/a/.cache/sdort"),
        ({"HOME": "/home/a"}, "/home/a/.cache/sdort"),
    ],
)
def test_the_caches_are_where_the_environment_says(environ: dict[str, str], place: str) -> None:
    assert user_folders.cache_folder(environ) == Path(place)


def test_without_a_home_it_is_the_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_folders.cache_folder({}) == Path(os.path.expanduser("~"), ".cache", "sdort")
    monkeypatch.setenv("HOME", "/home/b")
    assert user_folders.cache_folder({"HOME": "~"}) == Path("/home/b/.cache/sdort")


def test_every_cache_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    found = {
        "traces": user_folders.traces_folder(),
        "schedules": user_folders.schedules_folder(),
        "checked": user_folders.checked_folder(),
        "models": user_folders.models_folder(),
    }
    assert found == {name: Path("/cache/sdort", name) for name in found}


def test_a_digest_is_that_of_the_content_now(tmp_path: Path) -> None:
    path = tmp_path / "file"
    large = bytes(range(256)) * 5000  # more than one piece
    for content in (b"", b"one", b"two", large, large[:-1] + b"\0"):
        path.write_bytes(content)
        assert file_digest(path) == hashlib.sha256(content).hexdigest()
    status = path.stat()
    path.write_bytes(b"\1" + large[1:])  # of the same size, with its old time
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file_digest(path) == hashlib.sha256(b"\1" + large[1:]).hexdigest()


def test_a_digest_is_not_computed_twice_and_not_given_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(name.encode())
    found = []
    for name in ("a", "b", "a"):
        monkeypatch.chdir(tmp_path / name)
        found.append(file_digest(Path("x")))
    assert found == [hashlib.sha256(name).hexdigest() for name in (b"a", b"b", b"a")]


def test_the_digest_of_tensors_leaves_the_header_out(tmp_path: Path) -> None:
    import numpy as np

    digests = []
    for note in ("", "another, longer note"):
        path = tmp_path / f"{len(note)}.safetensors"
        path.write_bytes(save({"w": np.arange(6, dtype=np.float32)}, {"note": note}))
        digests.append((file_digest(path, tensors=True), file_digest(path)))
        assert digests[-1][0] == hashlib.sha256(np.arange(6, dtype=np.float32).tobytes()).hexdigest()
    assert digests[0][0] == digests[1][0]
    assert digests[0][1] != digests[1][1]


def test_what_cannot_be_read_has_no_digest(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(BadModelError):
            file_digest(path)
