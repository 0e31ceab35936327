"""A cache gives what was stored for a key, or nothing and a warning."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sdort.doctor.caches import list_cache
from sdort.files.user_folders import checked_folder
from sdort.files.verified_cache import VerifiedCache, key_of
from sdort.generation.requests import schedule_cache
from sdort.onnx_io.component_file import file_identity
from sdort.operator_library.library import libraries_folder, tuning_table, use_tuning_table
from sdort.pipelines import remembered_hashes
from sdort.pipelines.remembered_hashes import RememberedHashes

KEY = {"class": "UNet", "versions": {"torch": "2"}}


@pytest.fixture
def cache(tmp_path: Path) -> VerifiedCache:
    return VerifiedCache(tmp_path / "traces", "the trace", ".trace", 10_000)


def test_content_comes_back_under_its_key_alone(cache: VerifiedCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.load("unet", KEY) is None
    cache.store("unet", KEY, b"line\nline\0")
    assert cache.load("unet", dict(reversed(KEY.items()))) == b"line\nline\0"
    assert cache.load("unet", KEY | {"class": "VAE"}) is None
    assert capsys.readouterr().err == ""


def test_every_flipped_bit_and_every_cut_is_noticed(cache: VerifiedCache, capsys: pytest.CaptureFixture[str]) -> None:
    cache.store("unet", KEY, b"8")
    path = cache.path("unet", KEY)
    whole = path.read_bytes()
    damaged = [whole[:end] for end in range(len(whole))]
    for bit in range(len(whole) * 8):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(changed))
    for content in damaged:
        path.write_bytes(content)
        assert cache.load("unet", KEY) is None
        assert "damaged" in capsys.readouterr().err
    path.write_bytes(whole)
    assert cache.load("unet", KEY) == b"8"


def test_an_entry_under_another_name_is_not_used(cache: VerifiedCache, capsys: pytest.CaptureFixture[str]) -> None:
    other = KEY | {"class": "VAE"}
    cache.store("unet", KEY, b"8")
    cache.path("unet", KEY).rename(cache.path("unet", other))
    assert cache.load("unet", other) is None
    assert "made for something else" in " ".join(capsys.readouterr().err.split())


def test_a_link_in_the_place_of_an_entry_is_not_followed(
    cache: VerifiedCache, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.store("unet", KEY, b"8")
    path = cache.path("unet", KEY)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    assert cache.load("unet", KEY) is None
    assert "symbolic link" in " ".join(capsys.readouterr().err.split())


def test_what_cannot_be_kept_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("unet", "vae_decoder"):
        VerifiedCache(tmp_path / "file" / "below", "the trace", ".trace", 1000).store(name, KEY, b"8")
    VerifiedCache(tmp_path, "the trace", ".trace", 100).store("unet", KEY, bytes(100))
    VerifiedCache(tmp_path / "off", "the trace", ".trace", 1000, keeps=False).store("unet", KEY, b"8")
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("cannot keep the trace") == 1
    assert "more than the cache takes" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize("more", [-1, 0, 1, 64, 65, 66])
def test_what_is_kept_can_be_read_up_to_the_limit(
    more: int, cache: VerifiedCache, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.store("unet", KEY, b"")
    path = cache.path("unet", KEY)
    content = bytes(cache.limit - path.stat().st_size + more)
    path.unlink()
    cache.store("unet", KEY, content)
    assert path.exists() == (more <= 0)
    assert cache.load("unet", KEY) == (content if more <= 0 else None)
    assert ("more than the cache takes" in " ".join(capsys.readouterr().err.split())) == (more > 0)


NO_KEYS = (
    b"", b"[1]", b"x", b"null", b'"folder"', b"5e400", b"1" * 5000, b"[" * 400_000, b"\xff\xfe", b'{"a": 1, "a": 2}',
    b'{"folder": NaN}', b'{"folder": 1}', b'{"folder": "\\ud800"}', b'{"folder": "\\u0000"}', b'{"folder": ["/gone"]}',
)  # fmt: skip


@pytest.mark.parametrize("text", NO_KEYS, ids=lambda text: repr(text[:20]))
def test_a_file_that_is_named_by_what_is_no_key_hinders_nobody(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who can write a shared cache can hash what he likes and name a file by it."""
    cache = VerifiedCache(checked_folder(), "the record of checked files", ".json", 1 << 20)
    cache.folder.mkdir(parents=True)
    line = text + b"\n"
    entry = cache.folder / f"files-{hashlib.sha256(line).hexdigest()[:32]}.json"
    entry.write_bytes(hashlib.sha256(line + b"{}").hexdigest().encode() + b"\n" + line + b"{}")
    key = key_of(entry)
    assert key is None or isinstance(key, dict)
    assert [found.name for found in list_cache(["checked"]).entries] == [entry.name]
    remember(cache.folder, monkeypatch)


def remember(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember a file of a folder, and find it again."""
    monkeypatch.setattr(remembered_hashes, "SETTLED_NS", -1)
    file = folder / "large"
    file.write_bytes(b"1")
    hashes = RememberedHashes(folder, "sha256")
    assert hashes.find("large") is None
    hashes.add("large", file_identity(file), "ab")
    hashes.keep()
    assert RememberedHashes(folder, "sha256").find("large") == "ab"


CONTENTS = (*NO_KEYS, b"{}", b"[]", b'{"large": "ab"}', b'{"large": []}', b'{"large": [[1, 2], "ab"]}', b"[1, -1]",
            b"[true, true]", b'["a", 1]', b"[1, 1e300]", b'[true, "int64", [[-1], [1, 2], [2]]]\nab',
            b'[true, "int64", [[1267650600228229401496703205376], [1, 2], [2]]]\nabcdefgh',
            b'[true, "int64", [[1e308], [1, 2], [2]]]\nabcdefgh', b'[true, "int64", {"a": 1}]\n')  # fmt: skip


@pytest.mark.parametrize("content", CONTENTS, ids=lambda text: repr(text[:20]))
def test_content_of_another_form_is_made_anew(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every reader of such entries, with a hash and a key that are right."""
    key = {"folder": str(tmp_path), "hash": "sha256"}
    VerifiedCache(checked_folder(), "the record", ".json", 1 << 20).store("files", key, content)
    remember(tmp_path, monkeypatch)
    assert schedule_cache._unpack(content) is None
    cache = VerifiedCache(tmp_path, "the schedule", ".schedule", 1 << 20)
    cache.store("schedule", KEY, content)
    assert schedule_cache._counts(cache.load_json("schedule", KEY)) is None


def _garbage(path: Path) -> None:
    path.write_text("\0\n" * 50)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stream:
        os.chdir(path.parent)  # names of sockets are short
        stream.bind(path.name)


ODD: Mapping[str, Callable[[Path], None]] = {
    "a folder": Path.mkdir,
    "a named pipe": _fifo,
    "a socket": _socket,
    "a dangling link": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a terabyte": _huge,
    "garbage": _garbage,
}


@pytest.mark.parametrize("what", ODD)
def test_what_lies_in_the_place_of_an_entry_costs_a_warning(
    what: str, cache: VerifiedCache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path.cwd())
    cache.folder.mkdir()
    ODD[what](cache.path("unet", KEY))
    assert cache.load("unet", KEY) is None
    assert "made anew" in " ".join(capsys.readouterr().err.split())
    cache.store("unet", KEY, b"8")
    assert cache.load("unet", KEY) == (None if what == "a folder" else b"8")
    assert "bug" not in capsys.readouterr().err


@pytest.mark.parametrize("what", ODD)
def test_a_tuning_table_that_cannot_be_read_costs_a_warning(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path.cwd())
    monkeypatch.delenv("SDORT_OPS_TUNING", raising=False)
    libraries_folder().mkdir(parents=True)
    ODD[what](tuning_table())
    use_tuning_table()
    assert ("not been tuned" in " ".join(capsys.readouterr().err.split())) == (what == "a terabyte")
    list_cache()
