"""A cache gives what was stored for a key, or nothing and a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdort.machine.verified_cache import VerifiedCache

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
